"""The differential equation of CLEX (arXiv:2310.16450) in one program, there and back.

`pe.encodings.core.clex_ode` has the equation, the Runge-Kutta step and its gradient, as torch does
them: some fifty small operations a step, thousands a text, each of which a GPU begins for a few
numbers. Here z, U and D stay in registers from the first step to the last, in float64.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 16_384
"""Numbers in U, with its sides rounded up to powers of two: of more, registers hold too few."""


@triton.jit
def act(x, TANH: tl.constexpr):
    """The activation and its derivative."""
    if TANH:
        value = 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
        return value, 1.0 - value * value
    gate = 1.0 / (1.0 + tl.exp(-x))
    return x * gate, gate * (1.0 + x * (1.0 - gate))


@triton.jit
def velocity(z, t, origin, a, up, down, TANH: tl.constexpr):
    """v(z, t)."""
    x = z + origin - a * (0.5 * tl.log(2.0 * t - 1.0))
    value, _ = act(tl.sum(x[:, None] * up, 0), TANH)
    return tl.sum(value[:, None] * down, 0) - a / (2.0 * t - 1.0)


@triton.jit
def places(z, t, origin, a, up, down, H: tl.constexpr, TANH: tl.constexpr):
    """Where the second, third and fourth slope of a step are taken, and z(t + H)."""
    k1 = velocity(z, t, origin, a, up, down, TANH)
    z2 = z + (H / 3) * k1
    k2 = velocity(z2, t + H / 3, origin, a, up, down, TANH)
    z3 = z + H * k2 - (H / 3) * k1
    k3 = velocity(z3, t + 2 * H / 3, origin, a, up, down, TANH)
    z4 = z + H * (k1 - k2 + k3)
    k4 = velocity(z4, t + H, origin, a, up, down, TANH)
    return z2, z3, z4, z + (H / 8) * (k1 + 3.0 * (k2 + k3) + k4)


@triton.jit
def pull(z, t, g, X, V, I, K, row, F, W, origin, a, up, down, TANH: tl.constexpr, BF: tl.constexpr,
         BW: tl.constexpr):  # fmt: skip
    """The gradient by z of v(z, t) g. Those by U and D are x inner^T and value g^T: into a row."""
    f, w = tl.arange(0, BF), tl.arange(0, BW)
    x = z + origin - a * (0.5 * tl.log(2.0 * t - 1.0))
    value, slope = act(tl.sum(x[:, None] * up, 0), TANH)
    inner = tl.sum(down * g[None, :], 1) * slope
    tl.store(X + row * F + f, x, mask=f < F)
    tl.store(I + row * W + w, inner, mask=w < W)
    tl.store(V + row * W + w, value, mask=w < W)
    tl.store(K + row * F + f, g, mask=f < F)
    return tl.sum(up * inner[None, :], 1)


@triton.jit
def read(START, ORIGIN, UP, DOWN, F, W, BF: tl.constexpr, BW: tl.constexpr):
    """Everything that the equation is made of; zeros beyond F and W change nothing."""
    f, w = tl.arange(0, BF), tl.arange(0, BW)
    start = tl.load(START + f, mask=f < F, other=0.0)
    origin = tl.load(ORIGIN + f, mask=f < F, other=0.0)
    a = tl.where(f < F, 2 * f, 0).to(tl.float64) / tl.cast(F - 1, tl.float64)
    up = tl.load(UP + f[:, None] * W + w[None, :], mask=(f < F)[:, None] & (w < W), other=0.0)
    down = tl.load(DOWN + w[:, None] * F + f[None, :], mask=(w < W)[:, None] & (f < F), other=0.0)
    return start, origin, a, up, down


@triton.jit
def there(
    START, ORIGIN, UP, DOWN, LAST, OUT, F, W,
    END: tl.constexpr, STEPS: tl.constexpr, TANH: tl.constexpr, BF: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """OUT (END, F): z at t = 1 .. END; beyond LAST it stays as it is."""
    z, origin, a, up, down = read(START, ORIGIN, UP, DOWN, F, W, BF, BW)
    f = tl.arange(0, BF)
    H: tl.constexpr = 1 / STEPS
    last = tl.minimum(tl.load(LAST).to(tl.int32), END)
    tl.store(OUT + f, z, mask=f < F)
    for unit in tl.range(1, END):
        if unit < last:
            for n in tl.range(0, STEPS):
                t = tl.cast(unit, tl.float64) + tl.cast(n, tl.float64) * H
                _, _, _, z = places(z, t, origin, a, up, down, H, TANH)
        tl.store(OUT + unit * F + f, z, mask=f < F)


@triton.jit
def back(
    G, START, ORIGIN, UP, DOWN, LAST, PATH, X, V, I, K, F, W,
    END: tl.constexpr, STEPS: tl.constexpr, TANH: tl.constexpr, BF: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """From G (END, F) the rows X, V, I and K (`pull`), four a step; PATH has room for each z."""
    z, origin, a, up, down = read(START, ORIGIN, UP, DOWN, F, W, BF, BW)
    f = tl.arange(0, BF)
    H: tl.constexpr = 1 / STEPS
    last = tl.maximum(tl.minimum(tl.load(LAST).to(tl.int32), END), 1)
    steps = (last - 1) * STEPS
    for n in tl.range(0, steps):
        tl.store(PATH + n * F + f, z, mask=f < F)
        t = 1.0 + tl.cast(n, tl.float64) * H
        _, _, _, z = places(z, t, origin, a, up, down, H, TANH)
    tl.debug_barrier()
    g = z * 0.0
    for row in tl.range(last - 1, END):  # all rows that hold the last z
        g += tl.load(G + row * F + f, mask=f < F, other=0.0)
    for before in tl.range(0, steps):
        n = steps - 1 - before
        t = 1.0 + tl.cast(n, tl.float64) * H
        z = tl.load(PATH + n * F + f, mask=f < F, other=0.0)
        z2, z3, z4, _ = places(z, t, origin, a, up, down, H, TANH)
        g4 = (H / 8) * g
        g4 = pull(z4, t + H, g4, X, V, I, K, 4 * n + 3, F, W, origin, a, up, down, TANH, BF, BW)
        g3, t3 = (3 * H / 8) * g + H * g4, t + 2 * H / 3
        g3 = pull(z3, t3, g3, X, V, I, K, 4 * n + 2, F, W, origin, a, up, down, TANH, BF, BW)
        g2, t2 = (3 * H / 8) * g - H * g4 + H * g3, t + H / 3
        g2 = pull(z2, t2, g2, X, V, I, K, 4 * n + 1, F, W, origin, a, up, down, TANH, BF, BW)
        g1 = (H / 8) * g + H * g4 - (H / 3) * g3 + (H / 3) * g2
        g1 = pull(z, t, g1, X, V, I, K, 4 * n, F, W, origin, a, up, down, TANH, BF, BW)
        g += g1 + g2 + g3 + g4
        if n % STEPS == 0:
            g += tl.load(G + n // STEPS * F + f, mask=f < F, other=0.0)


def fits(up: Tensor) -> bool:
    """Whether U and what goes with it fit in the registers of one program."""
    blocks = [triton.next_power_of_2(size) for size in up.shape]
    return bool(blocks[0] * blocks[1] <= LARGEST)


def solve(
    start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor, end: int, steps: int,
    activation: str,
) -> Tensor:  # fmt: skip
    """As `pe.encodings.core.clex_ode.solve`."""
    out = start.new_empty(end, len(start))
    tensors = [x.contiguous() for x in (start, origin, up, down)]
    there[(1,)](*tensors, last, out, *up.shape, **_options(up, end, steps, activation))
    return out


def gradient(
    upstream: Tensor, start: Tensor, origin: Tensor, up: Tensor, down: Tensor, last: Tensor,
    end: int, steps: int, activation: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `pe.encodings.core.clex_ode.gradient`."""
    rows, (pairs, width) = (end - 1) * steps, up.shape
    path = start.new_empty(rows, pairs)
    found = [up.new_zeros(4 * rows, size) for size in (pairs, width, width, pairs)]
    tensors = [x.contiguous() for x in (upstream, start, origin, up, down)]
    options = _options(up, end, steps, activation)
    back[(1,)](*tensors, last, path, *found, pairs, width, **options)
    x, value, inner, g = found
    return x.mT @ inner, value.mT @ g


def _options(up: Tensor, end: int, steps: int, activation: str) -> dict[str, int | bool]:
    blocks = [triton.next_power_of_2(size) for size in up.shape]
    warps = min(max(blocks[0] * blocks[1] // 512, 1), 32)
    return {
        "END": end, "STEPS": steps, "TANH": activation == "tanh", "BF": blocks[0], "BW": blocks[1],
        "num_warps": warps,
    }  # fmt: skip


@functools.lru_cache(maxsize=64)
def prove(pairs: int, width: int, activation: str, device: torch.device) -> None:
    """Before first use: the same, from t = 1 to 2, as torch finds.

    Raises:
        RuntimeError: on this device the kernels compute something else.
    """
    from pe.encodings.core import clex_ode

    generator = torch.Generator(device=device).manual_seed(7)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float64)

    start, origin = drawn(pairs) - 3, drawn(pairs) - 3
    up, down = drawn(pairs, width) / pairs**0.5, drawn(width, pairs) / width**0.5
    last = torch.tensor(2, device=device)
    given = (start, origin, up, down, last, 3, 4, activation)
    upstream = drawn(3, pairs)
    mine = solve(*given), *gradient(upstream, *given)
    wanted = clex_ode.solve_by_hand(*given), *clex_ode.gradient_by_hand(upstream, *given)
    for name, found, right in zip(("z", "dU", "dD"), mine, wanted, strict=True):
        error = float((found - right).norm() / right.norm())
        if not error < 1e-10:
            raise RuntimeError(
                f"on {device} the kernel of CLEX's differential equation finds a {name} that is "
                f"{error:.1e} off; please report it with the versions of torch and triton"
            )
