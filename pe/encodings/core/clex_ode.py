"""The differential equation of CLEX: its solution by Runge-Kutta steps, and their gradient.

    dz/dt = act((z + e(t)) U) D - a / (2t - 1),    e(t) = o - a/2 ln(2t - 1),    a_i = 4i / (d-2)

z, e, o: (F,), F = d/2 pairs; U: (F, W); D: (W, F). One Runge-Kutta step by the 3/8 rule:

    k1 = v(z)                k2 = v(z + h k1 / 3)       at t, t + h/3,
    k3 = v(z + h (k2 - k1/3))     k4 = v(z + h (k1 - k2 + k3))     t + 2h/3, t + h
    z(t + h) = z + h (k1 + 3 k2 + 3 k3 + k4) / 8

All in float64: in float32 the phase at far positions is off by a whole rotation. Forward and
backward are operators, `solve` and `gradient`, each one node to torch.compile instead of thousands.
They are defined here, as loops over steps; `pe.attention.available` registers one kernel for each
on CUDA devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ACTIVATIONS = ("tanh", "silu")
Field = Callable[[Tensor, float], Tensor]
Pull = Callable[[Tensor, float, Tensor], Tensor]


def drift(pairs: int, like: Tensor) -> Tensor:
    """a, (F,)."""
    return 2 * torch.arange(pairs, dtype=like.dtype, device=like.device) / (pairs - 1)


def act(h: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The activation and its derivative."""
    if name == "tanh":
        value = h.tanh()
        return value, 1 - value * value
    gate = h.sigmoid()
    return h * gate, gate * (1 + h * (1 - gate))


def field(origin: Tensor, up: Tensor, down: Tensor, name: str) -> Field:
    """v(z, t) = dz/dt."""
    a = drift(len(origin), origin)

    def velocity(z: Tensor, t: float) -> Tensor:
        x = z + origin - a * (0.5 * math.log(2 * t - 1))
        return act(x @ up, name)[0] @ down - a / (2 * t - 1)

    return velocity


def stages(v: Field, z: Tensor, t: float, h: float) -> tuple[list[tuple[Tensor, float]], Tensor]:
    """The (z, t) at which the four slopes of one step are taken, and z(t + h)."""
    k1 = v(z, t)
    at2 = z + h / 3 * k1
    k2 = v(at2, t + h / 3)
    at3 = z + h * (k2 - k1 / 3)
    k3 = v(at3, t + 2 * h / 3)
    at4 = z + h * (k1 - k2 + k3)
    k4 = v(at4, t + h)
    arguments = [(z, t), (at2, t + h / 3), (at3, t + 2 * h / 3), (at4, t + h)]
    return arguments, z + h / 8 * (k1 + 3 * (k2 + k3) + k4)


def solve_by_steps(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """z at t = 1, 2 .. ``end``, (end, F), from z(1) = ``start``; beyond ``last`` it stays as it is.

    ``last``, () integer, is the largest t used; ``steps`` is the number of steps per unit of t.
    """
    v, z, found = field(origin, up, down, activation), start.clone(), [start]
    for unit in range(1, min(int(last), end)):
        for n in range(steps):
            z = stages(v, z, unit + n / steps, 1 / steps)[1]
        found.append(z)
    return torch.stack(found + [z] * (end - len(found)))


def gradient_by_steps(
    upstream: Tensor, start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor,
    end: int, steps: int, activation: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of U and D from that of the solution: the same steps, backward."""
    v, z, a = field(origin, up, down, activation), start, drift(len(origin), origin)
    d_up, d_down = torch.zeros_like(up), torch.zeros_like(down)

    def pull(z: Tensor, t: float, g: Tensor) -> Tensor:
        """The gradient of z from g, that of v(z, t); those of U and D are accumulated."""
        x = z + origin - a * (0.5 * math.log(2 * t - 1))
        value, slope = act(x @ up, activation)
        inner = (down @ g) * slope
        d_down.addr_(value, g)
        d_up.addr_(x, inner)
        return up @ inner

    h, path = 1 / steps, []
    for number in range((min(int(last), end) - 1) * steps):
        arguments, z = stages(v, z, 1 + number / steps, h)
        path.append(arguments)
    g = upstream[len(path) // steps :].sum(0)  # all rows that hold the last z
    for number in reversed(range(len(path))):
        g = step_backward(pull, path[number], g, h)
        if number % steps == 0:
            g = g + upstream[number // steps]
    return d_up, d_down


def step_backward(pull: Pull, arguments: list[tuple[Tensor, float]], g: Tensor, h: float) -> Tensor:
    """The gradient of z(t) from that of z(t + h)."""
    g4 = pull(*arguments[3], h / 8 * g)
    g3 = pull(*arguments[2], 3 * h / 8 * g + h * g4)
    g2 = pull(*arguments[1], 3 * h / 8 * g - h * g4 + h * g3)
    g1 = pull(*arguments[0], h / 8 * g + h * g4 - h / 3 * g3 + h / 3 * g2)
    return g + g1 + g2 + g3 + g4


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
    found = gradient(upstream.contiguous(), *ctx.saved_tensors, ctx.end, ctx.steps, ctx.activation)
    return None, None, *found, None, None, None, None


solve.register_autograd(_backward, setup_context=_save)
