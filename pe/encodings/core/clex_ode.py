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
from typing import Any, NamedTuple

import torch
from torch import Tensor


def tanh_and_slope(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh and its derivative."""
    value = u.tanh()
    return value, 1 - value**2


def silu_and_slope(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return u sigmoid(u) and its derivative."""
    share = u.sigmoid()
    return u * share, share * (1 + u * (1 - share))


ACTIVATIONS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "tanh": tanh_and_slope,
    "silu": silu_and_slope,
}


class Field(NamedTuple):
    """The function v(z, t) = dz/dt."""

    origin: Tensor
    """o, (F,)."""
    up: Tensor
    """U, (F, W)."""
    down: Tensor
    """D, (W, F)."""
    activation: str
    """A key of `ACTIVATIONS`."""

    def inside(self, z: Tensor, t: float) -> tuple[Tensor, Tensor]:
        """Return z + e(t), and a."""
        pairs = len(self.origin)
        a = 2 * torch.arange(pairs, dtype=z.dtype, device=z.device) / (pairs - 1)
        return z + self.origin - a * (0.5 * math.log(2 * t - 1)), a

    def at(self, z: Tensor, t: float) -> Tensor:
        """Return v(z, t)."""
        x, a = self.inside(z, t)
        return ACTIVATIONS[self.activation](x @ self.up)[0] @ self.down - a / (2 * t - 1)

    def pull(self, z: Tensor, t: float, g: Tensor, d_up: Tensor, d_down: Tensor) -> Tensor:
        """Return the gradient of z from ``g``, that of v; add those of U and D to their sums."""
        x, _ = self.inside(z, t)
        value, slope = ACTIVATIONS[self.activation](x @ self.up)
        inner = (self.down @ g) * slope
        d_up += x[:, None] * inner
        d_down += value[:, None] * g
        return self.up @ inner


def stages(v: Field, z: Tensor, t: float, h: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the z at which k2, k3 and k4 are taken, and z(t + h), given z = z(t)."""
    k1 = v.at(z, t)
    z2 = z + h / 3 * k1
    k2 = v.at(z2, t + h / 3)
    z3 = z + h * (k2 - k1 / 3)
    k3 = v.at(z3, t + 2 * h / 3)
    z4 = z + h * (k1 - k2 + k3)
    return z2, z3, z4, z + h / 8 * (k1 + 3 * (k2 + k3) + v.at(z4, t + h))


def solve_by_steps(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """Return z at t = 1, 2 .. ``end``, (end, F), given z(1) = ``start``.

    ``last``, an integer of shape (), is the largest t that is used; later rows repeat its row.
    ``steps`` is the number of steps per unit of t.
    """
    v, z, rows = Field(origin, up, down, activation), start.clone(), [start]
    for unit in range(1, min(int(last), end)):
        for n in range(steps):
            z = stages(v, z, unit + n / steps, 1 / steps)[-1]
        rows.append(z)
    return torch.stack(rows + [z] * (end - len(rows)))


def gradient_by_steps(
    upstream: Tensor, start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor,
    end: int, steps: int, activation: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of U and D from ``upstream``, the gradient of the solution (end, F).

    It is written out because autograd is off inside of an operator.
    """
    v, h, z = Field(origin, up, down, activation), 1 / steps, start
    times = [unit + n * h for unit in range(1, min(int(last), end)) for n in range(steps)]
    path = []
    for t in times:
        path.append(z)
        z = stages(v, z, t, h)[-1]
    d_up, d_down = torch.zeros_like(up), torch.zeros_like(down)
    units = len(times) // steps
    g = upstream[units:].sum(0)  # all these rows hold the last z
    for n in reversed(range(len(times))):
        t, z = times[n], path[n]
        z2, z3, z4, _ = stages(v, z, t, h)
        g4 = v.pull(z4, t + h, h / 8 * g, d_up, d_down)
        g3 = v.pull(z3, t + 2 * h / 3, h * (3 / 8 * g + g4), d_up, d_down)
        g2 = v.pull(z2, t + h / 3, h * (3 / 8 * g - g4 + g3), d_up, d_down)
        g1 = v.pull(z, t, h * (g / 8 + g4 - g3 / 3 + g2 / 3), d_up, d_down)
        g = g + g1 + g2 + g3 + g4
        if n % steps == 0:
            g = g + upstream[n // steps]
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
