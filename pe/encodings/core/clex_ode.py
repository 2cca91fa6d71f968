"""Solves the differential equation of CLEX by Runge-Kutta steps, and computes its gradient.

    dz/dt = act((z + e(t)) U) D - a / (2t - 1),    e(t) = o - a/2 ln(2t - 1),    a_i = 4i / (d-2)

z, e and o are (F,) with F = d/2 pairs, U is (F, W) and D is (W, F). One Runge-Kutta step of the
3/8 rule, of size h, is:

    k1 = v(z)                k2 = v(z + h k1 / 3)       at t, t + h/3,
    k3 = v(z + h (k2 - k1/3))     k4 = v(z + h (k1 - k2 + k3))     t + 2h/3, t + h
    z(t + h) = z + h (k1 + 3 k2 + 3 k3 + k4) / 8

Everything is float64, because in float32 the phase at far positions is wrong by a whole rotation.
Forward and backward are the operators `solve` and `gradient`, so that torch.compile sees one node
instead of thousands. They are defined here as loops over steps. `pe.attention.available` registers
a kernel for each on CUDA devices.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "silu": silu}
Field = Callable[[Tensor, float], Tensor]


def field(origin: Tensor, up: Tensor, down: Tensor, name: str) -> Field:
    """Return the function v(z, t) = dz/dt."""
    pairs = len(origin)
    a = 2 * torch.arange(pairs, dtype=origin.dtype, device=origin.device) / (pairs - 1)

    def velocity(z: Tensor, t: float) -> Tensor:
        x = z + origin - a * (0.5 * math.log(2 * t - 1))
        return ACTIVATIONS[name](x @ up) @ down - a / (2 * t - 1)

    return velocity


def step(v: Field, z: Tensor, t: float, h: float) -> Tensor:
    """Return z(t + h), given z = z(t), by the 3/8 rule."""
    k1 = v(z, t)
    k2 = v(z + h / 3 * k1, t + h / 3)
    k3 = v(z + h * (k2 - k1 / 3), t + 2 * h / 3)
    k4 = v(z + h * (k1 - k2 + k3), t + h)
    return z + h / 8 * (k1 + 3 * (k2 + k3) + k4)


def solve_by_steps(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """Return z at t = 1, 2 .. ``end``, (end, F), given z(1) = ``start``.

    ``last``, an integer of shape (), is the largest t that is used; later rows repeat its row.
    ``steps`` is the number of steps per unit of t.
    """
    v, z, rows = field(origin, up, down, activation), start.clone(), [start]
    for unit in range(1, min(int(last), end)):
        for n in range(steps):
            z = step(v, z, unit + n / steps, 1 / steps)
        rows.append(z)
    return torch.stack(rows + [z] * (end - len(rows)))


def gradient_by_steps(
    upstream: Tensor, start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor,
    end: int, steps: int, activation: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of U and D from ``upstream``, the gradient of the solution (end, F)."""

    def solution(up: Tensor, down: Tensor) -> Tensor:
        return solve_by_steps(start, origin, up, down, last, end, steps, activation)

    d_up, d_down = torch.func.vjp(solution, up, down)[1](upstream)
    return d_up, d_down


solve = torch.library.custom_op("pe::clex_solve", solve_by_steps, mutates_args=())
gradient = torch.library.custom_op("pe::clex_gradient", gradient_by_steps, mutates_args=())


@solve.register_fake
def _(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    return start.new_empty((end, start.shape[0]))


@gradient.register_fake
def _(
    upstream: Tensor, start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor,
    end: int, steps: int, activation: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(up), torch.empty_like(down)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.end, ctx.steps, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    options = ctx.end, ctx.steps, ctx.activation
    return None, None, *gradient(upstream.contiguous(), *ctx.saved_tensors, *options), *[None] * 4


solve.register_autograd(_backward, setup_context=_save)
