"""How long a model's texts were in training, and how that is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pe.pretrained.layers import whole_number
from pe.pretrained.read import blocks
from pe.pretrained.rope import Frozen, Rope

ROOM_FOR_ANSWERS = {("qwen3", 40960): 32768, ("qwen3_moe", 40960): 32768}
"""Released models that state more than the texts of training, by type and stated length."""


class TrainingLength(Frozen):
    """Tokens of the longest texts that the model, as configured, is meant for."""

    tokens: int
    original: int
    """Before any scaling in the configuration: what scalings count from."""
    how: str
    """Where the numbers come from, in words."""
    certain: bool
    """False where a number is a default of transformers or a guess."""


def training_length(
    config: Any, raw: Mapping[str, Any] | None, rope: Rope | None
) -> TrainingLength:
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
    stated = raw is None or any(name in raw for name in names)
    if not stated:
        return TrainingLength(
            tokens=longest, original=longest, certain=False,
            how=f"the file does not state it; {longest:,} is transformers' default for "
            f"{config.model_type!r}",
        )  # fmt: skip
    known = ROOM_FOR_ANSWERS.get((config.model_type, longest))
    if known and (rope is None or not rope.scaled):
        return TrainingLength(
            tokens=known, original=known, certain=True,
            how=f"its makers' model card; max_position_embeddings {longest:,} is that and "
            f"{longest - known:,} of room for the answer",
        )  # fmt: skip
    if rope is None or not rope.scaled or rope.original_length is None:
        return TrainingLength(
            tokens=longest, original=longest, certain=True,
            how="max_position_embeddings; the configuration scales nothing",
        )  # fmt: skip
    original = rope.original_length
    written = raw is None or "original_max_position_embeddings" in raw or any(
        "original_max_position_embeddings" in block for block in blocks(raw).values()
    )  # fmt: skip
    if rope.kind in ("linear", "dynamic", "ntk_alpha"):
        return TrainingLength(
            tokens=longest, original=longest, certain=False,
            how=f"max_position_embeddings; the configuration scales with {rope.kind!r}, which "
            "states no original length",
        )  # fmt: skip
    if not written:
        return TrainingLength(
            tokens=longest, original=original, certain=False,
            how=f"max_position_embeddings, which transformers also takes for the original length "
            f"of {rope.kind!r}, since none is stated",
        )  # fmt: skip
    covered = round(rope.factor * original) if rope.kind == "yarn" else longest
    tokens = max(longest, covered)
    how = f"max_position_embeddings {longest:,}"
    if covered > longest:
        how = (
            f"factor {rope.factor:g} × {original:,}, though max_position_embeddings is {longest:,}"
        )
    return TrainingLength(
        tokens=tokens, original=original, certain=True,
        how=f"{how}; scaled with {rope.kind!r} from original_max_position_embeddings {original:,}",
    )  # fmt: skip
