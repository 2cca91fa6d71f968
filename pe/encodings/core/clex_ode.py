"""The differential equation of CLEX: its solution by Runge-Kutta steps, and its gradient.

    dz/dt = act((z + e(t)) U) D - a / (2t - 1),    e(t) = o - a/2 ln(2t - 1),    a_i = 4i / (d-2)

z, e, o: (F,), F = d/2 pairs; U: (F, W); D: (W, F). One Runge-Kutta step by the 3/8 rule:

    k1 = v(z)                k2 = v(z + h k1 / 3)       at t, t + h/3,
    k3 = v(z + h (k2 - k1/3))     k4 = v(z + h (k1 - k2 + k3))     t + 2h/3, t + h
    z(t + h) = z + h (k1 + 3 k2 + 3 k3 + k4) / 8

All in float64: in float32 the phase at far positions is off by a whole rotation. The solution is an
operator, one node to torch.compile instead of thousands. It is defined here, as a loop over steps;
`pe.attention.available` registers a kernel for CUDA devices. The gradient needs no loop: that of
one step is linear, so those of all are computed at once, as matrices, and a scan multiplies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ACTIVATIONS = ("tanh", "silu")
Time = float | Tensor
Field = Callable[[Tensor, Time], Tensor]
Pull = Callable[[Tensor, Time, Tensor], Tensor]


def drift(pairs: int, like: Tensor) -> Tensor:
    """a, (F,)."""
    return 2 * torch.arange(pairs, dtype=like.dtype, device=like.device) / (pairs - 1)


def log_of(x: Time) -> Time:
    """ln x of a number or of each entry."""
    return x.log() if isinstance(x, Tensor) else math.log(x)


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

    def velocity(z: Tensor, t: Time) -> Tensor:
        x = z + origin - a * (0.5 * log_of(2 * t - 1))
        return act(x @ up, name)[0] @ down - a / (2 * t - 1)

    return velocity


def stages(v: Field, z: Tensor, t: Time, h: float) -> tuple[list[tuple[Tensor, Time]], Tensor]:
    """The (z, t) at which the four slopes of one step are taken, and z(t + h)."""
    k1 = v(z, t)
    at2 = z + h / 3 * k1
    k2 = v(at2, t + h / 3)
    at3 = z + h * (k2 - k1 / 3)
    k3 = v(at3, t + 2 * h / 3)
    at4 = z + h * (k1 - k2 + k3)
    k4 = v(at4, t + h)
    arguments: list[tuple[Tensor, Time]] = [
        (z, t), (at2, t + h / 3), (at3, t + 2 * h / 3), (at4, t + h),
    ]  # fmt: skip
    return arguments, z + h / 8 * (k1 + 3 * (k2 + k3) + k4)


def path_by_steps(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """z after 0, 1 .. (end - 1) steps steps from z(1) = ``start``, one per row.

    ``last``, () integer, is the largest t used: beyond it z stays as it is. ``steps`` is the number
    of steps per unit of t.
    """
    v, z, rows, count = field(origin, up, down, activation), start, [start], (end - 1) * steps
    for n in range(min((int(last) - 1) * steps, count)):
        z = stages(v, z, 1 + n / steps, 1 / steps)[1]
        rows.append(z)
    return torch.stack(rows + [z] * (count + 1 - len(rows)))


path = torch.library.custom_op("pe::clex_path", path_by_steps, mutates_args=())


@path.register_fake
def _(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    return start.new_empty(((end - 1) * steps + 1, start.shape[0]))


def solve(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """z at t = 1, 2 .. ``end``, (end, F); the arguments are those of `path_by_steps`."""
    rows: Tensor = path(start, origin, up, down, last, end, steps, activation)
    return rows[::steps]


def step_backward(pull: Pull, arguments: list[tuple[Tensor, Time]], g: Tensor, h: float) -> Tensor:
    """The gradient of z(t) from that of z(t + h)."""
    g4 = pull(*arguments[3], h / 8 * g)
    g3 = pull(*arguments[2], 3 * h / 8 * g + h * g4)
    g2 = pull(*arguments[1], 3 * h / 8 * g - h * g4 + h * g3)
    g1 = pull(*arguments[0], h / 8 * g + h * g4 - h / 3 * g3 + h / 3 * g2)
    return g + g1 + g2 + g3 + g4


def gradient(
    upstream: Tensor, points: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor,
    steps: int, activation: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of U and D from that of ``points``, (N + 1, F) for N steps, as ``upstream``."""
    count, a, h = len(points) - 1, drift(len(origin), origin), 1 / steps
    number = torch.arange(count, device=points.device)[:, None, None]
    taken, t = number < (last - 1) * steps, 1 + number.to(points.dtype) / steps
    arguments, _ = stages(field(origin, up, down, activation), points[:-1, None], t, h)
    terms: list[tuple[Tensor, ...]] = []

    def pull(z: Tensor, t: Time, g: Tensor) -> Tensor:
        """The gradient of z from g, that of v(z, t); what those of U and D need is kept."""
        x = z + origin - a * (0.5 * log_of(2 * t - 1))
        value, slope = act(x @ up, activation)
        inner = (g @ down.mT) * slope
        terms.append((x, inner, value, g))
        return inner @ up.mT

    # g_n = upstream_n + g_(n+1) M_n: sums over 1, 2, 4 .. steps, from those over half as many
    unit = torch.eye(len(origin), dtype=points.dtype, device=points.device)
    moves = torch.where(taken, step_backward(pull, arguments, unit, h), unit)
    g, span = upstream[:, None], 1
    while span <= count:
        g = torch.cat((g[:-span] + g[span:] @ moves, g[-span:]))
        moves = moves[span:] @ moves[:-span]
        span *= 2
    terms.clear()
    step_backward(pull, arguments, g[1:] * taken, h)
    x, inner, value, g = (torch.cat(parts)[:, 0] for parts in zip(*terms, strict=True))
    return x.mT @ inner, value.mT @ g


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *tensors, _, ctx.steps, ctx.activation = inputs
    ctx.save_for_backward(output, *tensors)


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    points, origin, up, down, last = ctx.saved_tensors
    of_up, of_down = gradient(upstream, points, origin, up, down, last, ctx.steps, ctx.activation)
    return None, None, of_up, of_down, None, None, None, None


path.register_autograd(_backward, setup_context=_save)
