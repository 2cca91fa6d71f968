"""Estimate the GPU memory of a training step before anything is trained.

    weights, gradients, AdamW's two moments    16 bytes per parameter. With fsdp they are divided
                                               among the processes; the weights that are gathered
                                               come on top
    activations                                so many bytes per token, per layer and per channel;
                                               with activation_checkpointing 2 bytes, and those of
                                               one layer in full
    logits                                     so many bytes per token and entry of the vocabulary

The estimate is for bfloat16, torch.compile and an encoding that rotates queries and keys. The bytes
per activation and per logit were fitted to recorded peaks (runs/speed), and a test compares them.
An encoding that keeps more than rotated queries and keys needs more. The work space of kernels, the
CUDA context and fragmentation are not included. This module imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from pe.recipes.recipe import Recipe

GIB = 2**30
STATE_BYTES = 16
"""Bytes per parameter: weight, gradient and two moments in float32."""
ATTENTION_BYTES, ROTATED_BYTES, INNER_BYTES = 14, 4, 4
"""Bytes kept for the backward pass per token and layer: per channel of the hidden size for the
block itself and for rotated queries and keys, and per channel of the feed-forward width."""
LOGIT_BYTES, CHUNKED_LOGIT_BYTES = 4, 14
"""Bytes per logit: of all logits at once, and of those in one chunk."""
CHUNK_LOGITS = 2**30
"""The number beyond which logits are computed in chunks, as in `pe.model.loss`."""
USABLE = 0.94
"""The share of a GPU's memory that tensors can use."""


class Estimate(NamedTuple):
    """The memory of a training step in GiB per GPU."""

    state: float
    """Weights, gradients and optimizer."""
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """The sum of all three."""
        return sum(self)


def parameters(recipe: Recipe) -> int:
    """Return the number of parameters of the recipe's model, without those of the encoding."""
    r = recipe
    return (r.vocab_size + 1) * r.hidden_size + r.num_hidden_layers * _block_parameters(r)


def _block_parameters(r: Recipe) -> int:
    width, kv_width = r.hidden_size, r.num_key_value_heads * r.head_dim
    return 2 * width * (width + kv_width) + 3 * width * r.intermediate_size + 2 * width


def estimate(recipe: Recipe, processes: int = 1) -> Estimate:
    """Estimate a training step of ``recipe`` in ``processes`` processes, one per GPU."""
    r = recipe
    windows = max(1, r.batch_size // processes)
    tokens = min(r.micro_batch_size or windows, windows) * r.context_length
    count = parameters(r)
    state = STATE_BYTES * count
    if r.fsdp:
        # Gathered in float32: embeddings and their gradient, and about three blocks.
        gathered = 2 * r.vocab_size * r.hidden_size + 3 * _block_parameters(r)
        state = state // processes + 4 * gathered
    layer = tokens * (
        (ATTENTION_BYTES + ROTATED_BYTES) * r.hidden_size + INNER_BYTES * r.intermediate_size
    )
    if r.activation_checkpointing:
        activations = 2 * tokens * r.num_hidden_layers * r.hidden_size + layer
    else:
        activations = r.num_hidden_layers * layer
    logits = tokens * r.vocab_size
    bytes_per_logit = CHUNKED_LOGIT_BYTES if logits > CHUNK_LOGITS else LOGIT_BYTES
    logit_bytes = bytes_per_logit * min(logits, CHUNK_LOGITS)
    return Estimate(state / GIB, activations / GIB, logit_bytes / GIB)


def options(recipe: Recipe, processes: int = 1) -> Iterator[dict[str, Any]]:
    """Yield changes of ``recipe`` that need less memory and give the same result.

    The changes that cost the least time come first.
    """
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
    """Return the first of `options` that fits into GPUs of ``gib`` GiB; None if none does."""
    for changes in options(recipe, processes):
        if fits(dataclasses.replace(recipe, **changes), processes, gib):
            return changes
    return None


def fits(recipe: Recipe, processes: int, gib: float) -> bool:
    """Return whether a step of ``recipe`` is expected to fit into GPUs of ``gib`` GiB."""
    return estimate(recipe, processes).total <= USABLE * gib


def sentence(recipe: Recipe, processes: int, gib: float) -> str:
    """Say how much ``recipe`` needs on GPUs of ``gib`` GiB, and what to set if it is too much."""
    needed = estimate(recipe, processes)
    each = " on each GPU" if processes > 1 else ""
    text = f"about {needed.total:.1f} GiB of {gib:.0f}{each}"
    if fits(recipe, processes, gib):
        return text
    changes = fitting(recipe, processes, gib)
    if changes is None:
        return f"{text}: too much, also with every option; use more GPUs or a smaller recipe"
    total = estimate(dataclasses.replace(recipe, **changes), processes).total
    return f"{text}: too much; with {spelled(changes)} in overrides about {total:.1f} GiB"


def spelled(changes: dict[str, Any]) -> str:
    """Write changes as a recipe file has them, such as ``micro_batch_size: 8, fsdp: true``."""
    return ", ".join(f"{name}: {str(value).lower()}" for name, value in changes.items())
