"""Rotations of queries and keys, as formulas and as operators that may have kernels.

    pe::rotate  (a, b) -> (a cos - b sin, b cos + a sin)                      RoPE, arXiv:2104.09864
    pe::polar   x -> softplus(x) (cos, sin)                                   PoPE, arXiv:2509.10534

(a, b) is a pair of channels, x one channel, and cos and sin are those of its phase. An operator is
one node to torch.compile and is differentiable in ``x`` (and ``shift``) only. It is defined here by
operations of torch, and `pe.attention.available` registers kernels for CUDA devices. Encodings call
it if `takes_operator` is true. Otherwise they call the formula, which torch.compile can fuse with
the operations around it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus


def takes_operator(x: Tensor, *tables: Tensor) -> bool:
    """Return whether x is on a GPU in 16 bits, and tables are fixed, with 2^n entries per token."""
    if not x.is_cuda or x.dtype not in (torch.bfloat16, torch.float16) or x.numel() == 0:
        return False
    width = tables[0].shape[-1]
    learned = any(t.requires_grad or t.dtype != torch.float32 for t in tables)
    return not learned and width & (width - 1) == 0


def tokens_first(like: Tensor, width: int) -> Tensor:
    """Return an empty (B, H, T, width) tensor in which the heads of a token are contiguous."""
    batch, heads, length, _ = like.shape
    return like.new_empty(batch, length, heads, width).transpose(1, 2)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, half: bool) -> Tensor:
    """Rotate the first 2F channels of x (B, H, T, D) by tables (1 or B, 1 or H, T, F).

    ``half`` pairs channel i with i + F; otherwise 2i is paired with 2i + 1. The dtype of the
    computation is that of the tables.
    """
    width = 2 * cos.shape[-1]
    rotated, rest = x[..., :width].to(cos.dtype), x[..., width:]
    if half:
        a, b = rotated.chunk(2, dim=-1)
    else:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
    first = torch.addcmul(a * cos, b, sin, value=-1)
    second = torch.addcmul(b * cos, a, sin)
    if half:
        rotated = torch.cat((first, second), dim=-1)
    else:
        rotated = torch.stack((first, second), dim=-1).flatten(-2)
    rotated = rotated.to(x.dtype)
    return rotated if rest.shape[-1] == 0 else torch.cat((rotated, rest), dim=-1)


def rotate_by_formula(x: Tensor, cos: Tensor, sin: Tensor, half: bool, backward: bool) -> Tensor:
    """Compute `rotate_pairs`; ``backward`` negates the angles, which gives the gradient."""
    out = tokens_first(x, x.shape[-1])
    return out.copy_(rotate_pairs(x, cos, -sin if backward else sin, half))


rotate = torch.library.custom_op("pe::rotate", rotate_by_formula, mutates_args=())


@rotate.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, half: bool, backward: bool) -> Tensor:
    return tokens_first(x, x.shape[-1])


def _save_rotation(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, ctx.half, ctx.backward = inputs
    ctx.save_for_backward(cos, sin)


def _rotate_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return rotate(gradient, *ctx.saved_tensors, ctx.half, not ctx.backward), None, None, None, None


rotate.register_autograd(_rotate_backward, setup_context=_save_rotation)


def polar_form(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return softplus(x) (cos, sin) of x (B, H, T, E), (B, H, T, 2E): all cos, then all sin."""
    magnitude = softplus(x.to(cos.dtype))
    return torch.cat((magnitude * cos, magnitude * sin), dim=-1).to(x.dtype)


def shifted(cos: Tensor, sin: Tensor, shift: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return cos and sin of phase + delta; ``shift`` holds those of delta, (H, E) each."""
    across, up = (t[:, None] for t in shift)
    return cos * across - sin * up, sin * across + cos * up


def polar_by_formula(x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]) -> Tensor:
    """Compute `polar_form`; ``shift`` is empty or holds cosine and sine of delta, (H, E) each."""
    tables = shifted(cos, sin, shift) if shift else (cos, sin)
    return tokens_first(x, 2 * x.shape[-1]).copy_(polar_form(x, *tables))


def polar_gradient_by_formula(
    gradient: Tensor, x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``x`` (B, H, T, E) and ``shift`` (2, H, E), which may be empty."""

    def form(x: Tensor, *shift: Tensor) -> Tensor:
        return polar_form(x, *(shifted(cos, sin, shift) if shift else (cos, sin)))

    dx, *dshift = torch.func.vjp(form, x, *shift)[1](gradient)
    dx = tokens_first(x, x.shape[-1]).copy_(dx)
    return dx, torch.stack(dshift) if shift else x.new_empty(0, dtype=torch.float32)


polar = torch.library.custom_op("pe::polar", polar_by_formula, mutates_args=())
polar_gradient = torch.library.custom_op(
    "pe::polar_gradient", polar_gradient_by_formula, mutates_args=()
)


@polar.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]) -> Tensor:
    return tokens_first(x, 2 * x.shape[-1])


@polar_gradient.register_fake
def _(
    gradient: Tensor, x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]
) -> tuple[Tensor, Tensor]:
    sizes = (2, x.shape[1], x.shape[-1]) if shift else (0,)
    return tokens_first(x, x.shape[-1]), x.new_empty(sizes, dtype=torch.float32)


def _save_polar(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, cos, sin, shift = inputs
    ctx.save_for_backward(x, cos, sin, *shift)


def _polar_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, cos, sin, *shift = ctx.saved_tensors
    dx, dshift = polar_gradient(gradient, x, cos, sin, shift)
    return dx, None, None, list(dshift.unbind(0)) if shift else []


polar.register_autograd(_polar_backward, setup_context=_save_polar)
