"""How much memory a training step takes on a GPU, before anything is trained.

A step is fullest at one of three moments, and the estimate is the largest of them:

    loss         weights, AdamW's two moments, what all layers keep for the backward pass, logits
    first block  of the backward pass; with activation_checkpointing it is computed again, so it is
                 there in full beside the inputs of the others
    last block   all gradients are there, and no other block

    weights, gradients, moments  16 bytes per parameter, 4 of them for gradients, which are there at
                                 the first two moments only where they are added up over passes or
                                 processes. With fsdp divided among the processes, beside the
                                 weights that are gathered
    casts of weights             2 bytes per parameter: autocast keeps them for the backward pass,
                                 with fsdp all of them on each process
    activations                  per token: `_kept`
    logits                       per token and entry of the vocabulary: `_logit_bytes`

Each number follows from what a step keeps. Tests compare an eager step with a count on fake
tensors, a compiled one with peaks of recorded runs. The estimate holds for an encoding that rotates
queries and keys: one that rotates nothing takes up to a seventh less, one that makes them wider
(PoPE) up to a fifth more. Dropout, norms of queries and keys, kernels' work space, the CUDA context
and fragmentation come on top. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from pe.recipes.recipe import Recipe

GIB = 2**30
WEIGHT_BYTES, GRADIENT_BYTES, MOMENTS_BYTES, CAST_BYTES = 4, 4, 8, 2
"""Per parameter."""
CHUNK_LOGITS = 2**30
"""As in `pe.model.loss`, where more logits than these are computed twice, in chunks."""
USABLE = 0.94
"""Share of a GPU's memory that tensors can have."""


class Estimate(NamedTuple):
    """GiB on each GPU at the moment when a step takes most."""

    state: float
    """Weights, their casts, gradients, optimizer."""
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def parameters(recipe: Recipe) -> int:
    """Parameters of the recipe's model, those of the encoding left out."""
    r = recipe
    return r.vocab_size * r.hidden_size + r.num_hidden_layers * _block(r) + r.hidden_size


def _block(r: Recipe) -> int:
    width, keys = r.hidden_size, r.num_key_value_heads * r.head_dim
    return 2 * width * (width + keys) + 3 * width * r.intermediate_size + 2 * width


def estimate(recipe: Recipe, processes: int = 1) -> Estimate:
    """What a step of ``recipe`` takes on each of so many GPUs, in GiB."""
    return max(_moments(recipe, processes), key=lambda moment: moment.total)


def _moments(r: Recipe, processes: int) -> Iterator[Estimate]:
    """The three moments of the module's text."""
    windows = max(1, r.batch_size // processes)
    micro = min(r.micro_batch_size or windows, windows)
    tokens = micro * r.context_length
    block = tokens * _kept(r)
    rest = tokens * (_norm(r) + _number(r) * r.hidden_size)  # before the head, and its gradient
    if r.activation_checkpointing:
        kept = tokens * r.num_hidden_layers * _number(r) * r.hidden_size
        computed = kept + block
    else:
        kept = computed = r.num_hidden_layers * block
    state, last = _state(r, processes, accumulated=windows > micro)
    for parts in (
        (state, kept + rest, tokens * r.vocab_size * _logit_bytes(r, tokens)),
        (state, computed + rest, 0),
        (last, block + rest, 0),
    ):
        yield Estimate(*(part / GIB for part in parts))


def _state(r: Recipe, processes: int, accumulated: bool) -> tuple[float, float]:
    """Bytes of weights, gradients and optimizer when the loss is computed, and at the end.

    Args:
        accumulated: a step has several passes, whose gradients are added up.
    """
    count, block, ends = parameters(r), _block(r), r.vocab_size * r.hidden_size
    share = processes if r.fsdp else 1
    # The buckets in which DistributedDataParallel adds gradients up stay from step to step.
    held = GRADIENT_BYTES if accumulated or (processes > 1 and not r.fsdp) else 0
    # A compiled backward pass returns all gradients at once, beside those they are added to.
    beside = held if _compiled(r) and not r.fsdp else 0
    lasting = WEIGHT_BYTES + MOMENTS_BYTES
    # Embeddings and their gradient; a block, the next one, and a gradient.
    gathered = 4 * (2 * ends + 3 * block) if r.fsdp else 0
    cast = CAST_BYTES if _narrow(r) else 0
    # A block that is computed again makes its casts again.
    casts = cast * (ends + block if r.activation_checkpointing else count)
    state = count * (lasting + held) / share + gathered + casts
    last = count * (lasting + GRADIENT_BYTES + beside) / share + gathered + cast * block
    return state, last


def _kept(r: Recipe) -> int:
    """Bytes per token that a block keeps for its backward pass.

    Both norms; the product of queries, keys and values, whole, as values are a view of it; rotated
    queries and keys; what attention gives; and of the feed-forward block the outputs of both
    products, their product, and in eager execution the activation.
    """
    keys = r.num_key_value_heads * r.head_dim
    attention = (r.hidden_size + 2 * keys) + (r.hidden_size + keys) + r.hidden_size
    inner = (3 if _compiled(r) else 4) * r.intermediate_size
    return 2 * _norm(r) + _number(r) * (attention + inner)


def _norm(r: Recipe) -> int:
    """Bytes per token that a norm keeps: its input, and its output, which a product reads.

    In eager bfloat16 it computes in float32, and keeps the normalised input, too.
    """
    each = 2 * _number(r) if _compiled(r) or not _narrow(r) else 4 + 4 + 2
    return each * r.hidden_size


def _logit_bytes(r: Recipe, tokens: int) -> float:
    """Bytes per logit of a pass.

    Compiled, their gradient overwrites them; chunks are computed twice, and it does not. In eager
    execution the logarithm of the softmax and two gradients, all in float32, are there at once.
    """
    logits = tokens * r.vocab_size
    chunked = logits > CHUNK_LOGITS
    each = (2 if chunked else 1) * _number(r) if _compiled(r) else 12
    return each * min(logits, CHUNK_LOGITS) / logits


def _narrow(r: Recipe) -> bool:
    return r.precision != "float32"


def _compiled(r: Recipe) -> bool:
    return r.compile != "off"


def _number(r: Recipe) -> int:
    """Bytes of a number that a block computes with."""
    return 2 if _narrow(r) else 4


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
