"""From one encoding to another: which options go along, and what would make no sense.

Options belong to parts: RoPE's theta stays when YaRN is put on it, YaRN's factor does not when YaRN
is taken off. Parts that rotate queries and keys hand theta and its like to each other.
"""

from collections.abc import Mapping
from typing import Any

from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.options import options_of, takes
from pe.encodings.core.parts import part_classes, stated_options
from pe.encodings.core.registry import Part


def changed_options(
    before: str,
    options: Mapping[str, Any],
    after: str,
    given: Mapping[str, Any],
    length: int | None = None,
) -> dict[str, Any]:
    """Options of ``after`` for a model that was trained with ``before``: its own, and ``given``.

    Args:
        length: what the model was trained at, if it will be trained at another length; extension
            methods are told, so that they go on counting from it.

    Raises:
        ValueError: ``after`` changes frequencies that ``before`` does not have, or does not state
            an option that differs between the layers of ``before``.
    """
    old, new = part_classes(before), part_classes(after)
    _refuse_strange_frequencies(before, after, old, new)
    stated = stated_options(after)
    kept = {
        name: value
        for name, value in _old_options(before, options, after, {*given, *stated}).items()
        if name not in stated
        and any(_carries(name, old, part_name, part) for part_name, part in new.items())
    }
    if length is not None and any(takes(part, "original_length") for part in new.values()):
        kept = {"original_length": length} | kept
    return kept | dict(given)


def _old_options(
    before: str, options: Mapping[str, Any], after: str, replaced: set[str]
) -> dict[str, Any]:
    """The options of a model, those among them that its spec states.

    Raises:
        ValueError: layers have an option at different values, and ``after`` would go on with it.
    """
    old, new = part_classes(before), part_classes(after)
    all_options = dict(options)
    for name, values in stated_options(before).items():
        if len(values) == 1:
            all_options[name] = values[0]
        elif name not in replaced and any(_carries(name, old, n, c) for n, c in new.items()):
            raise ValueError(
                f"{name} differs between the layers of {before!r}, so it is not clear which value "
                f"{after!r} goes on with; state it, as in 'rope({name}=...)'"
            )
    return all_options


def _carries(option: str, old: Mapping[str, Part], name: str, part: Part) -> bool:
    """Whether a part of the new encoding goes on with this option of the old one."""
    if option == "original_length":  # of the model rather than of its encoding
        return takes(part, option)
    rotates = getattr(part, "rotates", False)
    return option in options_of(part) and any(
        option in options_of(other)
        and (other_name == name or (rotates and getattr(other, "rotates", False)))
        for other_name, other in old.items()
    )


def _refuse_strange_frequencies(
    before: str, after: str, old: Mapping[str, Part], new: Mapping[str, Part]
) -> None:
    changes = [name for name, part in new.items() if issubclass(part, FrequencyTransform)]
    hosts = [name for name, part in new.items() if takes(part, "transforms")]
    for host in hosts if changes else []:
        if host not in old:
            raise ValueError(
                f"{changes[0]!r} changes the frequencies of {host!r}, and the model was trained "
                f"with {before!r}, which has none of them; convert it to {host!r}, train it, then "
                f"convert it to {after!r}"
            )
