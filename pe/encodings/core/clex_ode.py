"""The differential equation of CLEX, solved by hand, with the gradient of the solution.

    dz/dt = act((z + e(t)) U) D - a / (2t - 1),    e(t) = o - a/2 ln(2t - 1),    a_i = 4i / (d-2)

z, e, o: (F,), F = d/2 pairs; U: (F, W); D: (W, F). One Runge-Kutta step by the 3/8 rule:

    k1 = v(z)                k2 = v(z + h k1 / 3)       at t, t + h/3,
    k3 = v(z + h (k2 - k1/3))     k4 = v(z + h (k1 - k2 + k3))     t + 2h/3, t + h
    z(t + h) = z + h (k1 + 3 k2 + 3 k3 + k4) / 8

All in float64: a float32 solution loses a turn at far positions. Both directions are opaque
operators, so that torch.compile sees one node instead of thousands; on a GPU each is one kernel
(`pe.attention.kernels.clex`).
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
    """a."""
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
    """Where the four slopes of one step are taken, and z(t + h)."""
    k1 = v(z, t)
    at2 = z + h / 3 * k1
    k2 = v(at2, t + h / 3)
    at3 = z + h * (k2 - k1 / 3)
    k3 = v(at3, t + 2 * h / 3)
    at4 = z + h * (k1 - k2 + k3)
    k4 = v(at4, t + h)
    places = [(z, t), (at2, t + h / 3), (at3, t + 2 * h / 3), (at4, t + h)]
    return places, z + h / 8 * (k1 + 3 * (k2 + k3) + k4)


@torch.library.custom_op("pe::clex_solve", mutates_args=())
def solve(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """z at t = 1, 2 .. ``end``, (end, F), from z(1) = ``start``; beyond ``last`` it stays as it is.

    ``last``, () integer, is the largest t that anybody will look at; ``steps`` are those of a unit
    of t.
    """
    given = (start, origin, up, down, last, end, steps, activation)
    if _by_kernel(up, activation):
        from pe.attention.kernels import clex  # needs triton

        return clex.solve(*given)
    return solve_by_hand(*given)


def solve_by_hand(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """`solve`, as a loop over steps."""
    v, z, found = field(origin, up, down, activation), start.clone(), [start]
    for unit in range(1, min(int(last), end)):
        for n in range(steps):
            z = stages(v, z, unit + n / steps, 1 / steps)[1]
        found.append(z)
    return torch.stack(found + [z] * (end - len(found)))


@torch.library.custom_op("pe::clex_gradient", mutates_args=())
def gradient(
    upstream: Tensor, start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor,
    end: int, steps: int, activation: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of a loss by U and D, from that by `solve`'s result: the same steps, backwards."""
    given = (upstream, start, origin, up, down, last, end, steps, activation)
    if _by_kernel(up, activation):
        from pe.attention.kernels import clex  # needs triton

        return clex.gradient(*given)
    return gradient_by_hand(*given)


def gradient_by_hand(
    upstream: Tensor, start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor,
    end: int, steps: int, activation: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`gradient`, as a loop over steps."""
    v, z, a = field(origin, up, down, activation), start, drift(len(origin), origin)
    d_up, d_down = torch.zeros_like(up), torch.zeros_like(down)

    def pull(place: Tensor, t: float, g: Tensor) -> Tensor:
        """The gradient by z of v(z, t) g; those by U and D are added up."""
        x = place + origin - a * (0.5 * math.log(2 * t - 1))
        value, slope = act(x @ up, activation)
        inner = (down @ g) * slope
        d_down.addr_(value, g)
        d_up.addr_(x, inner)
        return up @ inner

    h, path = 1 / steps, []
    for number in range((min(int(last), end) - 1) * steps):
        places, z = stages(v, z, 1 + number / steps, h)
        path.append(places)
    g = upstream[len(path) // steps :].sum(0)  # all rows that hold the last z
    for number in reversed(range(len(path))):
        g = _back(pull, path[number], g, h)
        if number % steps == 0:
            g = g + upstream[number // steps]
    return d_up, d_down


def _by_kernel(up: Tensor, activation: str) -> bool:
    """On a GPU that has kernels, where U fits in one program; raises if they are wrong there."""
    if not up.is_cuda:
        return False
    from pe.attention.choose import missing  # brings the encodings, which bring this file

    if missing(up.device) is not None:
        return False
    from pe.attention.kernels import clex  # needs triton

    if not clex.fits(up):
        return False
    clex.prove(*up.shape, activation, up.device)
    return True


def _back(pull: Pull, places: list[tuple[Tensor, float]], g: Tensor, h: float) -> Tensor:
    """Gradient by z(t) from that by z(t + h)."""
    g4 = pull(*places[3], h / 8 * g)
    g3 = pull(*places[2], 3 * h / 8 * g + h * g4)
    g2 = pull(*places[1], 3 * h / 8 * g - h * g4 + h * g3)
    g1 = pull(*places[0], h / 8 * g + h * g4 - h / 3 * g3 + h / 3 * g2)
    return g + g1 + g2 + g3 + g4


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


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.end, ctx.steps, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def _pull_through(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    found = gradient(upstream.contiguous(), *ctx.saved_tensors, ctx.end, ctx.steps, ctx.activation)
    return None, None, *found, None, None, None, None


solve.register_autograd(_pull_through, setup_context=_keep)
