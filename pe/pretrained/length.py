"""How long a model's texts were in training, and how that is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pe.pretrained.layers import whole_number
from pe.pretrained.read import blocks
from pe.pretrained.rope import Frozen, Rope

ROOM_FOR_ANSWERS = {("qwen3", 40960): 32768, ("qwen3_moe", 40960): 32768}
"""Released models that state more than the texts of training, by type and stated length."""
_ORIGINAL = "original_max_position_embeddings"


class TrainingLength(Frozen):
    """Tokens of the longest texts that the model, as configured, is meant for."""

    tokens: int
    original: int
    """Before any scaling in the configuration: what scalings count from."""
    how: str
    """Where the numbers come from, in words."""
    certain: bool
    """False where a number is a default of transformers or a guess."""


def training_length(config: Any, raw: Mapping[str, Any] | None, rope: Rope) -> TrainingLength:
    """Read the training length of a configuration with ``rope`` in its main layers.

    Args:
        raw: the file as written; None for a live object.

    Raises:
        ValueError: the configuration has no length at all.
    """
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None:
        raise ValueError(
            f"model type {config.model_type!r} states no max_position_embeddings, so the training "
            "length is not known; add it to a copy of the file"
        )
    longest = whole_number(config, "max_position_embeddings", 2)
    aliases = type(config).attribute_map
    names = {name for name, meant in aliases.items() if meant == "max_position_embeddings"}
    names |= {"max_position_embeddings", aliases.get("max_position_embeddings", "")}
    known = ROOM_FOR_ANSWERS.get((config.model_type, longest))
    written = raw is None or _ORIGINAL in raw or any(_ORIGINAL in b for b in blocks(raw).values())
    tokens = original = longest
    certain, how = False, "max_position_embeddings"
    if raw is not None and not any(name in raw for name in names):
        how = (
            f"the file does not state it; {longest:,} is transformers' default for "
            f"{config.model_type!r}"
        )
    elif known and not rope.scaled:
        tokens, original, certain = known, known, True
        how = (
            f"its makers' model card; {how} {longest:,} is that and {longest - known:,} of room "
            "for the answer"
        )
    elif not rope.scaled or rope.original_length is None:
        certain, how = True, f"{how}; the configuration scales nothing"
    elif rope.kind in ("linear", "dynamic", "ntk_alpha"):
        how += f"; the configuration scales with {rope.kind!r}, which states no original length"
    elif not written:
        original = rope.original_length
        how += (
            f", which transformers also takes for the original length of {rope.kind!r}, since none "
            "is stated"
        )
    else:
        original, certain, how = rope.original_length, True, f"{how} {longest:,}"
        if rope.kind == "yarn" and (covered := round(rope.factor * original)) > longest:
            tokens = covered
            stated = f"though max_position_embeddings is {longest:,}"
            how = f"factor {rope.factor:g} × {original:,}, {stated}"
        how += f"; scaled with {rope.kind!r} from {_ORIGINAL} {original:,}"
    return TrainingLength(tokens=tokens, original=original, certain=certain, how=how)
