"""Compare kernels with the definition before they are used.

Kernels are compiled on the user's machine by the Triton that came with torch. A mistake of the
compiler would look like a bad encoding. Each kernel has small cases and the results of the
definition for them: in `pe.attention.kernels.flash.self_check` and `.cope.self_check`, and for the
other kernels beside their operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pe.encodings.core.forms import Form

REMEDY = (
    "please report it with the versions of torch and triton, and use backend='sdpa' "
    "(attention_backend in the configuration) meanwhile"
)
Random = Callable[..., Tensor]


class Case(NamedTuple):
    """The inputs of a self-check: two sequences, and two heads that share their keys."""

    q: Tensor
    k: Tensor
    v: Tensor
    gradient: Tensor
    """The gradient of the output."""
    form: Form
    """The bias spec."""


def random_on(device: torch.device) -> Random:
    """Return a function that draws normal numbers of any shape, always the same ones.

    It has its own generator, so the caller's random state does not change.
    """
    generator = torch.Generator(device=device).manual_seed(7)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    return random


def inputs(
    random: Random, batch: int, heads: int, length: int, width: int, value_width: int,
    dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    """Return q, k, v and the gradient of the output, (B, H or 1, T, width)."""
    sizes = ((heads, width), (1, width), (1, value_width), (heads, value_width))
    return [random(batch, count, length, size).to(dtype) for count, size in sizes]


def agree(
    compute: Callable[[], Sequence[Tensor]],
    expected: Sequence[Tensor],
    dtype: torch.dtype,
    names: Sequence[str] = ("the bias", "the sink"),
) -> None:
    """Run kernels and compare their results with the expected ones.

    Args:
        compute: runs the kernels. It returns the output and the gradients of q, k, v and further
            inputs, in this order.
        expected: the same in float64.
        names: of the further inputs.

    Raises:
        RuntimeError: the kernels fail, or a result differs by more than the tolerance of ``dtype``.
            The message says by how much, and what to use instead.
    """
    try:
        computed = compute()
    except Exception as error:
        raise RuntimeError(
            f"the attention kernels do not run on this machine ({type(error).__name__}: {error}); "
            f"{REMEDY}"
        ) from error
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    names = ("the output", *(f"the gradient of {name}" for name in ("q", "k", "v", *names)))
    compared = names[: len(expected)]  # CoPE's kernels have no sink
    for name, got, want in zip(compared, computed, expected, strict=True):
        off = float((got.double() - want).norm() / want.norm().clamp(min=1e-12))
        if want.numel() and not off <= tolerance:
            raise RuntimeError(
                f"the attention kernels are wrong on this machine: {name} is off by {off:.1g} "
                f"where {tolerance:.0e} is allowed; {REMEDY}"
            )
