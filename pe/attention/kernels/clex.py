"""The differential equation of CLEX (arXiv:2310.16450) in one program.

`pe.encodings.core.clex_ode` has the equation and the Runge-Kutta step in operations of torch: some
fifty small ones per step, thousands per sequence, each of which a GPU starts for a few numbers.
Here z, U and D stay in registers from the first step to the last, in float64.

z, origin: (F,); U (F, W); D (W, F), with F and W rounded up to the powers of two BF and BW. H is
the length of a step. Names: ``p_`` pointer, ``o_`` offset, ``m_`` mask; everything else is a value.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from pe.encodings.core import clex_ode

LARGEST = 16_384
"""Numbers in U, with its sides rounded up to powers of two: of more, registers hold too few."""


@triton.jit
def velocity(z, t, origin, a, up, down, TANH: tl.constexpr):
    """v(z, t) = dz/dt, (BF,)."""
    x = z + origin - a * (0.5 * tl.log(2.0 * t - 1.0))
    h = tl.sum(x[:, None] * up, 0)
    value = 1.0 - 2.0 / (tl.exp(2.0 * h) + 1.0) if TANH else h * (1.0 / (1.0 + tl.exp(-h)))
    return tl.sum(value[:, None] * down, 0) - a / (2.0 * t - 1.0)


@triton.jit
def step(z, t, origin, a, up, down, H: tl.constexpr, TANH: tl.constexpr):
    """z(t + H)."""
    k1 = velocity(z, t, origin, a, up, down, TANH)
    k2 = velocity(z + (H / 3) * k1, t + H / 3, origin, a, up, down, TANH)
    k3 = velocity(z + H * k2 - (H / 3) * k1, t + 2 * H / 3, origin, a, up, down, TANH)
    k4 = velocity(z + H * (k1 - k2 + k3), t + H, origin, a, up, down, TANH)
    return z + (H / 8) * (k1 + 3.0 * (k2 + k3) + k4)


@triton.jit
def forward(
    p_start, p_origin, p_up, p_down, p_last, p_out, F, W,
    END: tl.constexpr, STEPS: tl.constexpr, TANH: tl.constexpr, BF: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """z after each step from t = 1 to END; beyond ``last`` it stays as it is.

    Args:
        p_start, p_origin: (F,); p_up: (F, W); p_down: (W, F), all float64. p_last: () integer.
        p_out: ((END - 1) STEPS + 1, F) float64, the solution.
        STEPS: per unit of t. TANH: the activation, else SiLU.
    """
    o_f, o_w = tl.arange(0, BF), tl.arange(0, BW)
    m_f = o_f < F  # zeros beyond F and W change nothing
    z = tl.load(p_start + o_f, mask=m_f, other=0.0)
    origin = tl.load(p_origin + o_f, mask=m_f, other=0.0)
    a = tl.where(m_f, 2 * o_f, 0).to(tl.float64) / tl.cast(F - 1, tl.float64)
    m_up, m_down = m_f[:, None] & (o_w < W), (o_w < W)[:, None] & m_f
    up = tl.load(p_up + o_f[:, None] * W + o_w[None, :], mask=m_up, other=0.0)
    down = tl.load(p_down + o_w[:, None] * F + o_f[None, :], mask=m_down, other=0.0)
    H: tl.constexpr = 1 / STEPS
    steps = (tl.load(p_last).to(tl.int32) - 1) * STEPS
    tl.store(p_out + o_f, z, mask=m_f)
    for n in tl.range(0, (END - 1) * STEPS):
        if n < steps:
            z = step(z, 1.0 + tl.cast(n, tl.float64) * H, origin, a, up, down, H, TANH)
        tl.store(p_out + (n + 1) * F + o_f, z, mask=m_f)


def fits(up: Tensor) -> bool:
    """Whether U and what goes with it fit in the registers of one program."""
    blocks = [triton.next_power_of_2(size) for size in up.shape]
    return bool(blocks[0] * blocks[1] <= LARGEST)


def path(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """`pe.encodings.core.clex_ode.path`, by one program if U fits in it.

    Raises:
        RuntimeError: on this device the kernel computes something else.
    """
    arguments = start, origin, up, down, last, end, steps, activation
    if not fits(up):
        return clex_ode.path_by_steps(*arguments)
    self_check(*up.shape, activation, up.device)
    return path_by_kernel(*arguments)


def path_by_kernel(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """`clex_ode.path_by_steps` in one program."""
    out = start.new_empty((end - 1) * steps + 1, len(start))
    rows, columns = (triton.next_power_of_2(size) for size in up.shape)
    forward[(1,)](
        *(x.contiguous() for x in (start, origin, up, down)), last, out, *up.shape,
        END=end, STEPS=steps, TANH=activation == "tanh", BF=rows, BW=columns,
        num_warps=min(max(rows * columns // 512, 1), 32),
    )  # fmt: skip
    return out


@functools.lru_cache(maxsize=64)
def self_check(pairs: int, width: int, activation: str, device: torch.device) -> None:
    """Before first use: the same as by steps of torch, from t = 1 to 2.

    Raises:
        RuntimeError: on this device the kernel computes something else.
    """
    generator = torch.Generator(device=device).manual_seed(7)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float64)

    start, origin = random(pairs) - 3, random(pairs) - 3
    up, down = random(pairs, width) / pairs**0.5, random(width, pairs) / width**0.5
    arguments = (start, origin, up, down, torch.tensor(2, device=device), 3, 4, activation)
    expected = clex_ode.path_by_steps(*arguments)
    error = float((path_by_kernel(*arguments) - expected).norm() / expected.norm())
    if not error < 1e-10:
        raise RuntimeError(
            f"on {device} the kernel of CLEX's differential equation computes a z that is "
            f"{error:.1e} off; please report it with the versions of torch and triton"
        )
