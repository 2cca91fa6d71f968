"""From one encoding to another: which options go along, and what would make no sense.

Options belong to parts: RoPE's theta stays when YaRN is put on it, YaRN's factor does not when YaRN
is taken off. Parts that rotate queries and keys hand theta and its like to each other.
"""

from collections.abc import Mapping
from typing import Any

from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.registry import Part, options_of, part_classes, takes


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
        ValueError: ``after`` changes frequencies that ``before`` does not have.
    """
    old, new = part_classes(before), part_classes(after)
    _refuse_strange_frequencies(before, after, old, new)
    kept = {
        name: value
        for name, value in options.items()
        if any(_carries(name, old, part_name, part) for part_name, part in new.items())
    }
    if length is not None and any(takes(part, "original_length") for part in new.values()):
        kept = {"original_length": length} | kept
    return kept | dict(given)


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
