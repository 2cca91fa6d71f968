"""Estimate the GPU memory of a training step before anything is trained.

A step needs the most memory at one of three points in time. The estimate is the largest of these:

    loss         weights, AdamW's two moments, what all layers keep for the backward pass, logits
    first block  of the backward pass; with activation_checkpointing the block is computed a second
                 time, so it is held in full, besides the inputs of the others
    last block   all gradients, and no other block

    weights, gradients, moments  16 bytes per parameter. 4 of these are for gradients, which exist
                                 at the first two points only if they are summed over passes or
                                 processes. With fsdp all are divided among the processes, and the
                                 weights that are gathered come on top
    casts of weights             2 bytes per parameter, which autocast keeps for the backward pass;
                                 with fsdp every process keeps all of them
    activations                  per token, see `_kept`; and matrices of logits, if the encoding
                                 needs them (`pe.training.attention.matrix_bytes`)
    logits                       per token and entry of the vocabulary, see `_logit_bytes`

Each number follows from what a step keeps. Tests compare an eager step with a count on fake
tensors, and a compiled one with peaks of recorded runs. The estimate is for an encoding that
rotates queries and keys. One that does not rotate needs up to a seventh less, and one that makes
them wider (PoPE) up to a fifth more. Dropout, norms of queries and keys, the work space of kernels,
the CUDA context and fragmentation are not included. Torch is imported for an estimate only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from pe.recipes.recipe import Recipe

GIB = 2**30
WEIGHT_BYTES, GRADIENT_BYTES, MOMENTS_BYTES, CAST_BYTES = 4, 4, 8, 2
"""Bytes per parameter."""
CHUNK_LOGITS = 2**30
"""The number beyond which logits are computed in chunks, as in `pe.model.loss`."""
USABLE = 0.94
"""The share of a GPU's memory that tensors can use."""
HOPELESS = 2.0
"""A recipe is refused if its estimate is more than this many times the memory."""


class Estimate(NamedTuple):
    """The memory in GiB on each GPU, at the point at which a step needs the most."""

    state: float
    """Weights, their casts, gradients and optimizer."""
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
    return max(_points(recipe, processes), key=lambda point: point.total)


def _points(r: Recipe, processes: int) -> Iterator[Estimate]:
    """Yield the memory at the three points in time that the top of this file lists."""
    from pe.training.attention import matrix_bytes  # brings torch

    windows = max(1, r.batch_size // processes)
    micro = min(r.micro_batch_size or windows, windows)
    tokens = micro * r.context_length
    matrices = matrix_bytes(r, micro)
    most = max(needed for _, needed in matrices)
    kept: float
    block, inputs = tokens * _kept(r), tokens * _number_bytes(r) * r.hidden_size
    rest = tokens * _norm(r) + inputs  # the last norm, and a gradient
    if r.activation_checkpointing:
        kept = r.num_hidden_layers * inputs
        first_block = kept + block + most
    else:
        kept = r.num_hidden_layers * block + sum(whole for whole, _ in matrices)
        first_block = kept + max(needed - whole for whole, needed in matrices)
    state, last_state = _state(r, processes, accumulated=windows > micro)
    for parts in (
        (state, kept + rest, tokens * r.vocab_size * _logit_bytes(r, tokens)),
        (state, first_block + rest, 0),
        (last_state, block + most + rest, 0),
    ):
        yield Estimate(*(part / GIB for part in parts))


def _state(r: Recipe, processes: int, accumulated: bool) -> tuple[float, float]:
    """Return the bytes of weights, gradients and optimizer at the loss, and at the last block.

    Args:
        accumulated: whether a step has several passes, whose gradients are summed.
    """
    count, block, ends = parameters(r), _block_parameters(r), r.vocab_size * r.hidden_size
    share = processes if r.fsdp else 1
    # DistributedDataParallel keeps the buckets in which it sums gradients from step to step.
    held = GRADIENT_BYTES if accumulated or (processes > 1 and not r.fsdp) else 0
    # A compiled backward pass returns all gradients at once, and they are added to those held.
    added = held if _compiled(r) and not r.fsdp else 0
    permanent = WEIGHT_BYTES + MOMENTS_BYTES
    # Embeddings and their gradient; a block, the next block, and a gradient.
    gathered = 4 * (2 * ends + 3 * block) if r.fsdp else 0
    cast = CAST_BYTES if _narrow(r) else 0
    # A block that is computed a second time casts its weights a second time.
    casts = cast * (ends + block if r.activation_checkpointing else count)
    state = count * (permanent + held) / share + gathered + casts
    last_state = count * (permanent + GRADIENT_BYTES + added) / share + gathered + cast * block
    return state, last_state


def _kept(r: Recipe) -> int:
    """Return the bytes per token that a block keeps for its backward pass.

    These are both norms; the product of which queries, keys and values are parts, because values
    are a view of it; rotated queries and keys; the output of attention; and in the feed-forward
    block the outputs of two products, their product, and in eager execution the activation.
    """
    kv_width = r.num_key_value_heads * r.head_dim
    attention = (r.hidden_size + 2 * kv_width) + (r.hidden_size + kv_width) + r.hidden_size
    inner = (3 if _compiled(r) else 4) * r.intermediate_size
    return 2 * _norm(r) + _number_bytes(r) * (attention + inner)


def _norm(r: Recipe) -> int:
    """Return the bytes per token that a norm keeps: its input and its output.

    In eager bfloat16 a norm is computed in float32 and also keeps the normalised input.
    """
    per_channel = 2 * _number_bytes(r) if _compiled(r) or not _narrow(r) else 4 + 4 + 2
    return per_channel * r.hidden_size


def _logit_bytes(r: Recipe, tokens: int) -> float:
    """Return the bytes per logit of a pass.

    In a compiled step the gradient overwrites the logits, unless they are computed in chunks. In
    eager execution the logarithm of the softmax and two gradients exist at once, all in float32.
    With fsdp the loss is eager, since only the blocks are compiled (`pe.training.sharding`).
    """
    logits = tokens * r.vocab_size
    chunked = logits > CHUNK_LOGITS
    compiled = _compiled(r) and not r.fsdp
    per_logit = (2 if chunked else 1) * _number_bytes(r) if compiled else 12
    return per_logit * min(logits, CHUNK_LOGITS) / logits


def _narrow(r: Recipe) -> bool:
    return r.precision != "float32"


def _compiled(r: Recipe) -> bool:
    return r.compile != "off"


def _number_bytes(r: Recipe) -> int:
    """Return the bytes of a number in the type in which blocks compute."""
    return 2 if _narrow(r) else 4


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
    """Return all divisors, from the largest on."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)}, reverse=True)


def fitting(recipe: Recipe, processes: int, gib: float) -> dict[str, Any] | None:
    """Return the first of `options` that fits into GPUs of ``gib`` GiB; None if none does."""
    for changes in options(recipe, processes):
        if fits(dataclasses.replace(recipe, **changes), processes, gib):
            return changes
    return None


def fits(recipe: Recipe, processes: int, gib: float) -> bool:
    """Return whether a step of ``recipe`` is expected to fit into GPUs of ``gib`` GiB."""
    return estimate(recipe, processes).total <= USABLE * gib


def refuse_hopeless(recipe: Recipe, processes: int, gib: float) -> None:
    """Raise ValueError if ``recipe`` needs far more memory than there is.

    The machine would end the process without a message. The estimate is not exact, so a recipe that
    needs up to `HOPELESS` times the memory is tried.
    """
    if recipe.steps and estimate(recipe, processes).total > HOPELESS * gib:
        raise ValueError(f"training needs {sentence(recipe, processes, gib, 'the recipe')}")


def sentence(recipe: Recipe, processes: int, gib: float, where: str = "overrides") -> str:
    """Say how much ``recipe`` needs on GPUs of ``gib`` GiB, and what to set if it is too much.

    Args:
        where: the name of the parameter in which the reader sets it.
    """
    needed = estimate(recipe, processes)
    each = " on each GPU" if processes > 1 else ""
    text = f"about {needed.total:.1f} GiB of {gib:.0f}{each}"
    if fits(recipe, processes, gib):
        return text
    changes = fitting(recipe, processes, gib)
    if changes is None:
        return f"{text}: too much, also with every option; use more GPUs or a smaller recipe"
    total = estimate(dataclasses.replace(recipe, **changes), processes).total
    return f"{text}: too much; with {spelled(changes)} in {where} about {total:.1f} GiB"


def spelled(changes: dict[str, Any]) -> str:
    """Write changes as a recipe file has them, such as ``micro_batch_size: 8, fsdp: true``."""
    return ", ".join(f"{name}: {str(value).lower()}" for name, value in changes.items())
