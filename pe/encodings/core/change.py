"""Options that a model keeps when its encoding is changed to another one.

Options belong to parts. RoPE's theta is kept when YaRN is added, and YaRN's factor is dropped when
YaRN is removed. Parts that rotate queries and keys pass theta and similar options to each other.
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
    """Return the options of ``after`` for a model that was trained with ``before``.

    Args:
        before: the spec of the model's encoding, and ``options`` its options.
        after: the new spec, and ``given`` the options that replace those of the model.
        length: the training length, if the model will be trained at another length. Extension
            methods get it as ``original_length``.

    Raises:
        ValueError: ``after`` changes frequencies that ``before`` does not have, or keeps an option
            without a value that differs between the layers of ``before``.
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
    """Return the options of a model, including those that its spec states.

    Raises:
        ValueError: layers have different values of an option that ``after`` keeps.
    """
    old, new = part_classes(before), part_classes(after)
    all_options = dict(options)
    for name, values in stated_options(before).items():
        if len(values) == 1:
            all_options[name] = values[0]
        elif name not in replaced and any(_carries(name, old, n, c) for n, c in new.items()):
            raise ValueError(
                f"{name} differs between the layers of {before!r}, so it is not clear which value "
                f"{after!r} keeps; state it, as in 'rope({name}=...)'"
            )
    return all_options


def _carries(option: str, old: Mapping[str, Part], name: str, part: Part) -> bool:
    """Return whether a part of the new encoding keeps this option of the old one."""
    if option == "original_length":  # belongs to the model, not to its encoding
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
