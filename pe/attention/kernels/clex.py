"""Solve the differential equation of CLEX (arXiv:2310.16450) in one program, forward and backward.

`pe.encodings.core.clex_ode` has the equation, the Runge-Kutta step and its gradient, written with
operations of torch. These are some fifty small operations per step and thousands per sequence, and
a GPU has to launch each of them for a few numbers. Here z, U and D stay in registers from the first
step to the last, in float64.

z and origin are (F,), U is (F, W) and D is (W, F). F and W are rounded up to the powers of two BF
and BW. H is the length of a step. Names: ``p_`` pointer, ``o_`` offset, ``m_`` mask; everything
else is a value.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pe.encodings.core import clex_ode

LARGEST = 16_384
"""The most entries of U, its sides rounded up to powers of two, for which registers suffice."""


@triton.jit
def act(x, TANH: tl.constexpr):
    """Return the activation (tanh, or SiLU without TANH) and its derivative."""
    if TANH:
        value = 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
        return value, 1.0 - value * value
    gate = 1.0 / (1.0 + tl.exp(-x))
    return x * gate, gate * (1.0 + x * (1.0 - gate))


@triton.jit
def velocity(z, t, origin, a, up, down, TANH: tl.constexpr):
    """Return v(z, t) = dz/dt, (BF,)."""
    x = z + origin - a * (0.5 * tl.log(2.0 * t - 1.0))
    value, _ = act(tl.sum(x[:, None] * up, 0), TANH)
    return tl.sum(value[:, None] * down, 0) - a / (2.0 * t - 1.0)


@triton.jit
def stages(z, t, origin, a, up, down, H: tl.constexpr, TANH: tl.constexpr):
    """Return the z of the second, third and fourth slope of a Runge-Kutta step, and z(t + H)."""
    k1 = velocity(z, t, origin, a, up, down, TANH)
    z2 = z + (H / 3) * k1
    k2 = velocity(z2, t + H / 3, origin, a, up, down, TANH)
    z3 = z + H * k2 - (H / 3) * k1
    k3 = velocity(z3, t + 2 * H / 3, origin, a, up, down, TANH)
    z4 = z + H * (k1 - k2 + k3)
    k4 = velocity(z4, t + H, origin, a, up, down, TANH)
    return z2, z3, z4, z + (H / 8) * (k1 + 3.0 * (k2 + k3) + k4)


@triton.jit
def pull(
    z, t, g, p_x, p_value, p_inner, p_g, row, F, W, origin, a, up, down,
    TANH: tl.constexpr, BF: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Return the gradient of z, given g, the gradient of v(z, t).

    It also writes what the gradients of U and D need: dU = x^T inner and dD = value^T g, summed
    over rows.

    Args:
        p_x, p_g: (rows, F) float64. p_inner, p_value: (rows, W) float64. Row ``row`` is written.
    """
    o_f, o_w = tl.arange(0, BF), tl.arange(0, BW)
    x = z + origin - a * (0.5 * tl.log(2.0 * t - 1.0))
    value, slope = act(tl.sum(x[:, None] * up, 0), TANH)
    inner = tl.sum(down * g[None, :], 1) * slope
    tl.store(p_x + row * F + o_f, x, mask=o_f < F)
    tl.store(p_inner + row * W + o_w, inner, mask=o_w < W)
    tl.store(p_value + row * W + o_w, value, mask=o_w < W)
    tl.store(p_g + row * F + o_f, g, mask=o_f < F)
    return tl.sum(up * inner[None, :], 1)


@triton.jit
def load_equation(p_start, p_origin, p_up, p_down, F, W, BF: tl.constexpr, BW: tl.constexpr):
    """Load z(1), origin, U and D, and compute a; entries beyond F and W are 0.

    Args:
        p_start, p_origin: (F,). p_up: (F, W). p_down: (W, F). All are float64.
    """
    o_f, o_w = tl.arange(0, BF), tl.arange(0, BW)
    start = tl.load(p_start + o_f, mask=o_f < F, other=0.0)
    origin = tl.load(p_origin + o_f, mask=o_f < F, other=0.0)
    a = tl.where(o_f < F, 2 * o_f, 0).to(tl.float64) / tl.cast(F - 1, tl.float64)
    m_up = (o_f < F)[:, None] & (o_w < W)
    up = tl.load(p_up + o_f[:, None] * W + o_w[None, :], mask=m_up, other=0.0)
    m_down = (o_w < W)[:, None] & (o_f < F)
    down = tl.load(p_down + o_w[:, None] * F + o_f[None, :], mask=m_down, other=0.0)
    return start, origin, a, up, down


@triton.jit
def forward(
    p_start, p_origin, p_up, p_down, p_last, p_out, F, W,
    END: tl.constexpr, STEPS: tl.constexpr, TANH: tl.constexpr, BF: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Write z at t = 1 .. END; beyond ``last`` it no longer changes.

    Args:
        p_start, p_origin: (F,). p_up: (F, W). p_down: (W, F). All are float64.
        p_last: () integer, the last t that is needed.
        p_out: (END, F) float64, the solution, written.
        STEPS: number of steps per unit of t. TANH: the activation is tanh, otherwise SiLU.
    """
    z, origin, a, up, down = load_equation(p_start, p_origin, p_up, p_down, F, W, BF, BW)
    o_f = tl.arange(0, BF)
    H: tl.constexpr = 1 / STEPS
    last = tl.minimum(tl.load(p_last).to(tl.int32), END)
    tl.store(p_out + o_f, z, mask=o_f < F)
    for unit in tl.range(1, END):
        if unit < last:
            for n in tl.range(0, STEPS):
                t = tl.cast(unit, tl.float64) + tl.cast(n, tl.float64) * H
                _, _, _, z = stages(z, t, origin, a, up, down, H, TANH)
        tl.store(p_out + unit * F + o_f, z, mask=o_f < F)


@triton.jit
def backward(
    p_dout, p_start, p_origin, p_up, p_down, p_last, p_path, p_x, p_value, p_inner, p_g, F, W,
    END: tl.constexpr, STEPS: tl.constexpr, TANH: tl.constexpr, BF: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Write what the gradients of U and D need, as `pull` does, four rows per step.

    Args:
        p_dout: (END, F) float64, the gradient of the solution.
        p_path: ((END - 1) STEPS, F) float64, work space for the z of each step.
        p_x, p_g: (4 (END - 1) STEPS, F) float64, written.
        p_value, p_inner: (4 (END - 1) STEPS, W) float64, written.
        Other arguments are those of `forward`.
    """
    z, origin, a, up, down = load_equation(p_start, p_origin, p_up, p_down, F, W, BF, BW)
    o_f = tl.arange(0, BF)
    H: tl.constexpr = 1 / STEPS
    last = tl.maximum(tl.minimum(tl.load(p_last).to(tl.int32), END), 1)
    steps = (last - 1) * STEPS
    for n in tl.range(0, steps):
        tl.store(p_path + n * F + o_f, z, mask=o_f < F)
        t = 1.0 + tl.cast(n, tl.float64) * H
        _, _, _, z = stages(z, t, origin, a, up, down, H, TANH)
    tl.debug_barrier()
    g = z * 0.0
    for row in tl.range(last - 1, END):  # all these rows of the solution hold the last z
        g += tl.load(p_dout + row * F + o_f, mask=o_f < F, other=0.0)
    for before in tl.range(0, steps):
        n = steps - 1 - before
        t = 1.0 + tl.cast(n, tl.float64) * H
        z = tl.load(p_path + n * F + o_f, mask=o_f < F, other=0.0)
        z2, z3, z4, _ = stages(z, t, origin, a, up, down, H, TANH)
        t2, t3, t4 = t + H / 3, t + 2 * H / 3, t + H
        g4 = (H / 8) * g
        g4 = pull(
            z4, t4, g4, p_x, p_value, p_inner, p_g, 4 * n + 3, F, W, origin, a, up, down,
            TANH, BF, BW,
        )  # fmt: skip
        g3 = (3 * H / 8) * g + H * g4
        g3 = pull(
            z3, t3, g3, p_x, p_value, p_inner, p_g, 4 * n + 2, F, W, origin, a, up, down,
            TANH, BF, BW,
        )  # fmt: skip
        g2 = (3 * H / 8) * g - H * g4 + H * g3
        g2 = pull(
            z2, t2, g2, p_x, p_value, p_inner, p_g, 4 * n + 1, F, W, origin, a, up, down,
            TANH, BF, BW,
        )  # fmt: skip
        g1 = (H / 8) * g + H * g4 - (H / 3) * g3 + (H / 3) * g2
        g1 = pull(
            z, t, g1, p_x, p_value, p_inner, p_g, 4 * n, F, W, origin, a, up, down, TANH, BF, BW
        )
        g += g1 + g2 + g3 + g4
        if n % STEPS == 0:
            g += tl.load(p_dout + n // STEPS * F + o_f, mask=o_f < F, other=0.0)


def fits(up: Tensor) -> bool:
    """Return whether U, (F, W), and D fit into the registers of a program."""
    blocks = [triton.next_power_of_2(size) for size in up.shape]
    return bool(blocks[0] * blocks[1] <= LARGEST)


def solve(*arguments: Any) -> Tensor:
    """Compute `pe.encodings.core.clex_ode.solve`, by the kernel if U fits into its registers.

    Raises:
        RuntimeError: the self-check of the kernels fails on this device.
    """
    _, _, up, *_, activation = arguments
    if not fits(up):
        return clex_ode.solve_by_steps(*arguments)
    self_check(*up.shape, activation, up.device)
    return solve_by_kernel(*arguments)


def gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute `pe.encodings.core.clex_ode.gradient`, by the kernel if U fits into its registers.

    Raises:
        RuntimeError: the self-check of the kernels fails on this device.
    """
    _, _, _, up, *_, activation = arguments
    if not fits(up):
        return clex_ode.gradient_by_steps(*arguments)
    self_check(*up.shape, activation, up.device)
    return gradient_by_kernel(*arguments)


def solve_by_kernel(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """Compute `clex_ode.solve_by_steps` in one program."""
    out = start.new_empty(end, len(start))
    tensors = [x.contiguous() for x in (start, origin, up, down)]
    forward[(1,)](*tensors, last, out, *up.shape, **_options(up, end, steps, activation))
    return out


def gradient_by_kernel(
    upstream: Tensor, start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor,
    end: int, steps: int, activation: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute `clex_ode.gradient_by_steps` in one program and two matrix products."""
    rows, (pairs, width) = 4 * (end - 1) * steps, up.shape
    path = start.new_empty((end - 1) * steps, pairs)
    x, value, inner, g = (up.new_zeros(rows, size) for size in (pairs, width, width, pairs))
    tensors = [x.contiguous() for x in (upstream, start, origin, up, down)]
    backward[(1,)](
        *tensors, last, path, x, value, inner, g, pairs, width,
        **_options(up, end, steps, activation),
    )  # fmt: skip
    return x.mT @ inner, value.mT @ g


def _options(up: Tensor, end: int, steps: int, activation: str) -> dict[str, int | bool]:
    """Return the constants for which a kernel is compiled, and its number of warps."""
    blocks = [triton.next_power_of_2(size) for size in up.shape]
    warps = min(max(blocks[0] * blocks[1] // 512, 1), 32)
    return {
        "END": end, "STEPS": steps, "TANH": activation == "tanh", "BF": blocks[0], "BW": blocks[1],
        "num_warps": warps,
    }  # fmt: skip


@functools.lru_cache(maxsize=64)
def self_check(pairs: int, width: int, activation: str, device: torch.device) -> None:
    """Compare the kernels with operations of torch from t = 1 to 2, once per shape and device.

    Raises:
        RuntimeError: they differ. The message says by how much.
    """
    generator = torch.Generator(device=device).manual_seed(7)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float64)

    start, origin = random(pairs) - 3, random(pairs) - 3
    up, down = random(pairs, width) / pairs**0.5, random(width, pairs) / width**0.5
    arguments = (start, origin, up, down, torch.tensor(2, device=device), 3, 4, activation)
    upstream = random(3, pairs)
    computed = solve_by_kernel(*arguments), *gradient_by_kernel(upstream, *arguments)
    expected = (
        clex_ode.solve_by_steps(*arguments),
        *clex_ode.gradient_by_steps(upstream, *arguments),
    )
    for name, got, want in zip(("z", "dU", "dD"), computed, expected, strict=True):
        error = float((got - want).norm() / want.norm())
        if not error < 1e-10:
            raise RuntimeError(
                f"on {device} the kernel of CLEX's differential equation computes a {name} with a "
                f"relative error of {error:.1e}, and less than 1e-10 was expected; please report "
                "it with the versions of torch and triton"
            )
