"""How much memory a training step takes on a GPU, before anything is trained.

    weights, gradients, AdamW's two moments    16 bytes per parameter; with fsdp divided among the
                                               processes, beside the weights that are gathered
    activations                                per token of a forward pass, layer and number of the
                                               hidden size; with activation_checkpointing 2 bytes,
                                               and those of one layer in full
    logits                                     per token and entry of the vocabulary

An estimate for bfloat16, torch.compile and an encoding that rotates queries and keys. The bytes per
activation and per logit were fitted to recorded peaks (runs/speed), which a test compares. An
encoding that keeps more than rotated queries and keys takes more; kernels' work space, the CUDA
context and fragmentation come on top. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from pe.recipes.recipe import Recipe

GIB = 2**30
STATE_BYTES = 16
ATTENTION_BYTES, ROTATED_BYTES, INNER_BYTES = 14, 4, 4
"""Kept for the backward pass, per token and layer: so many bytes per number of the hidden size for
the block, for rotated queries and keys, and per number of the feed-forward width."""
LOGIT_BYTES, CHUNKED_LOGIT_BYTES = 4, 14
CHUNK_LOGITS = 2**30
"""As in `pe.model.loss`, where more logits than these are computed twice, in chunks."""
USABLE = 0.94
"""Share of a GPU's memory that tensors can have."""


class Estimate(NamedTuple):
    """GiB on each GPU."""

    state: float
    """Weights, gradients, optimizer."""
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def parameters(recipe: Recipe) -> int:
    """Parameters of the recipe's model, those of the encoding left out."""
    r = recipe
    width, keys = r.hidden_size, r.num_key_value_heads * r.head_dim
    return r.vocab_size * width + r.num_hidden_layers * _block(r, keys) + width


def _block(r: Recipe, keys: int) -> int:
    width = r.hidden_size
    return 2 * width * (width + keys) + 3 * width * r.intermediate_size + 2 * width


def estimate(recipe: Recipe, processes: int = 1) -> Estimate:
    """What a step of ``recipe`` takes on each of so many GPUs."""
    r = recipe
    windows = max(1, r.batch_size // processes)
    tokens = min(r.micro_batch_size or windows, windows) * r.context_length
    count = parameters(r)
    state = STATE_BYTES * count
    if r.fsdp:
        block = _block(r, r.num_key_value_heads * r.head_dim)
        gathered = 2 * r.vocab_size * r.hidden_size + 3 * block  # float32, and their gradients
        state = state // processes + 4 * gathered
    layer = tokens * (
        (ATTENTION_BYTES + ROTATED_BYTES) * r.hidden_size + INNER_BYTES * r.intermediate_size
    )
    if r.activation_checkpointing:
        activations = 2 * tokens * r.num_hidden_layers * r.hidden_size + layer
    else:
        activations = r.num_hidden_layers * layer
    logits = tokens * r.vocab_size
    chunked = logits > CHUNK_LOGITS
    each = CHUNKED_LOGIT_BYTES if chunked else LOGIT_BYTES
    return Estimate(state / GIB, activations / GIB, each * min(logits, CHUNK_LOGITS) / GIB)


def options(recipe: Recipe, processes: int = 1) -> Iterator[dict[str, Any]]:
    """Changes of ``recipe`` that take less memory and give the same result, the cheapest first."""
    windows = max(1, recipe.batch_size // processes)
    micro = min(recipe.micro_batch_size or windows, windows)
    smaller = [size for size in _divisors(windows) if size < micro]
    yield from ({"micro_batch_size": size} for size in smaller)
    switches: list[dict[str, Any]] = []
    if processes > 1 and not recipe.fsdp:
        switches.append({"fsdp": True})
    if not recipe.activation_checkpointing:
        switches.append({"activation_checkpointing": True})
    if len(switches) > 1:
        switches.append(switches[0] | switches[1])
    for switch in switches:
        yield switch
        if smaller:
            yield {"micro_batch_size": smaller[-1]} | switch


def _divisors(number: int) -> list[int]:
    return [size for size in range(number, 0, -1) if number % size == 0]


def fitting(recipe: Recipe, processes: int, gib: float) -> dict[str, Any] | None:
    """The cheapest of `options` that fits into GPUs of ``gib``; None if none does."""
    for changes in options(recipe, processes):
        if fits(dataclasses.replace(recipe, **changes), processes, gib):
            return changes
    return None


def fits(recipe: Recipe, processes: int, gib: float) -> bool:
    """Whether a step of ``recipe`` is expected to fit into GPUs of ``gib``."""
    return estimate(recipe, processes).total <= USABLE * gib


def sentence(recipe: Recipe, processes: int, gib: float) -> str:
    """What ``recipe`` will take on GPUs of ``gib``, and what to set if that is too much."""
    needed = estimate(recipe, processes)
    each = " on each GPU" if processes > 1 else ""
    text = f"about {needed.total:.1f} GiB of {gib:.0f}{each}"
    if fits(recipe, processes, gib):
        return text
    changes = fitting(recipe, processes, gib)
    if changes is None:
        return f"{text}: too much, with every option too; use more GPUs, or a smaller recipe"
    total = estimate(dataclasses.replace(recipe, **changes), processes).total
    return f"{text}: too much; with {spelled(changes)} in overrides about {total:.1f} GiB"


def spelled(changes: dict[str, Any]) -> str:
    """``micro_batch_size: 8, fsdp: true``."""
    return ", ".join(f"{name}: {str(value).lower()}" for name, value in changes.items())
