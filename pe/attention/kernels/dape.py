"""DAPE's attention (`pe.encodings.dape`, arXiv:2405.14722), forward and backward.

    s = z + b + W2 leaky_relu(W1 [z, b] + c),    p = softmax(s),    o = p v

z and b hold the logits and biases of all H heads for one query and key, and b is a table by
distance. A number per head that would be added last has no effect on p, so it is left out.

A fused kernel would have to hold queries, keys and values of all heads at once. Here torch
multiplies q, k, v and the gradient of o as matrices, and one kernel per direction does all that
concerns a query and a key. It reads each logit once, and no hidden unit leaves the registers. The
backward pass computes the logits again. The matrices of logits exist for some sequences and queries
at a time (`blocks`), so that memory does not grow with the square of the length.

Each program writes its part of the gradients of W1, c, W2 and b, and torch adds the parts, so the
order of all sums is fixed. A program has one query and BN keys at a time, of all heads. H and W are
rounded up to the powers of two HB and WB. Names: ``p_`` pointer, ``b_`` block, ``o_`` offset,
``m_`` mask, ``i_`` program index; everything else is a value.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import leaky_relu, pad

from pe.attention.kernels import self_check as checks
from pe.attention.kernels.layout import tokens_first

HELD = 2**27
"""The most entries of a matrix of logits that exists at once, 4 bytes each."""
ALIGNED = 16
"""The logits of each query begin at a multiple of this number."""
PROGRAMS = 2048
"""How many programs are wanted for a gradient, about eight times as many as run at once. Each
writes a part of the gradients of W1, c and W2."""
LENGTH = 200
"""The number of tokens of the self-check."""
SLOPE: tl.constexpr = tl.constexpr(0.01)
"""The slope of leaky_relu below 0."""
FORWARD = {"BN": 64, "num_warps": 4, "num_stages": 1}
BACKWARD = {"BN": 64, "num_warps": 4, "num_stages": 1, "maxnreg": 168}
"""Keys per block, and options of the compiler."""
ENTRIES = 1024
"""The most logits of all heads in a block, whatever the number of keys, to spare registers."""


@triton.jit
def load_matrix(p, o_row, o_column, rows, columns, row_stride, column_stride):
    """Load a matrix, 0 beyond its ``rows`` and ``columns``."""
    m = (o_row < rows)[:, None] & (o_column < columns)[None, :]
    return tl.load(p + o_row[:, None] * row_stride + o_column[None, :] * column_stride, m, 0.0)


@triton.jit
def forward(
    p_z, p_table, p_w1, p_c, p_w2, p_p, p_lse, first, R, K, T, H, W, scale,
    HB: tl.constexpr, WB: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the weights p of one query and all keys, 0 for keys ahead of it.

    Args:
        p_z: (B, H, R, K) float32, q k^T of the queries first .. first + R - 1; s overwrites it.
        p_table: (H, T) float32, b by distance.
        p_w1: (W, 2H). p_c: (W,). p_w2: (H, W). All are float32.
        p_p: (B, H, R, K), written. p_lse: (B, H, R) float32, ln of the sum of e^s, written.
        scale: factor of q k^T.
        PRECISION: of the network's products.
    """
    i_r, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    m = first + i_r
    o_h, o_w, o_n = tl.arange(0, HB), tl.arange(0, WB), tl.arange(0, BN)
    w1z = load_matrix(p_w1, o_w, o_h, W, H, 2 * H, 1)
    w1b = load_matrix(p_w1 + H, o_w, o_h, W, H, 2 * H, 1)
    w2 = load_matrix(p_w2, o_h, o_w, H, W, W, 1)
    c = tl.load(p_c + o_w, o_w < W, 0.0)[:, None]
    m_h = (o_h < H)[:, None]
    o_row = (((i_b * H + o_h) * R + i_r) * K)[:, None]
    top = tl.full((HB,), float("-inf"), tl.float32)
    total = tl.zeros((HB,), tl.float32)
    for start in range(0, m + 1, BN):
        o_key = (start + o_n)[None, :]
        m_seen = m_h & (o_key <= m)
        b_z = tl.load(p_z + o_row + o_key, m_seen, 0.0) * scale
        b_b = tl.load(p_table + o_h[:, None] * T + m - o_key, m_seen, 0.0)
        b_in = tl.dot(w1b, b_b, tl.zeros((WB, BN), tl.float32) + c, input_precision=PRECISION)
        b_in = tl.dot(w1z, b_z, b_in, input_precision=PRECISION)
        b_s = tl.dot(w2, tl.maximum(b_in, b_in * SLOPE), b_z + b_b, input_precision=PRECISION)
        tl.store(p_z + o_row + o_key, b_s, m_seen)
        b_s = tl.where(o_key <= m, b_s, float("-inf"))
        higher = tl.maximum(top, tl.max(b_s, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(b_s - higher[:, None]), 1)
        top = higher
    lse = top + tl.log(total)
    tl.store(p_lse + (i_b * H + o_h) * R + i_r, lse, o_h < H)
    tl.debug_barrier()  # another thread may have written what is read now
    for start in range(0, K, BN):
        o_key = (start + o_n)[None, :]
        b_s = tl.load(p_z + o_row + o_key, m_h & (o_key <= m), float("-inf"))
        b_p = tl.exp(b_s - lse[:, None]).to(p_p.dtype.element_ty)
        tl.store(p_p + o_row + o_key, b_p, m_h & (o_key < K))


@triton.jit
def backward(
    p_z, p_dp, p_lse, p_delta, p_table, p_w1, p_c, p_w2, p_p, p_dz, p_db,
    p_dw1, p_dc, p_dw2, B, first, R, K, T, H, W, scale,
    HB: tl.constexpr, WB: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the weights p and the gradient of q k^T, of one query in all sequences.

    Program (., i) has the blocks of keys i, i + S, i + 2S ..., where S is the number of programs
    per query. The queries with the most keys come first.

    Args:
        p_dp: (B, H, R, K) float32, the gradient of p. p_delta: (B, H, R) float32, sums of p dp.
        p_p, p_dz: (B, H, R, K), written, 0 for keys ahead.
        p_db: (H, R, T) float32, the gradient of b for each query and distance, added up over B.
            It is not written where no key is at this distance.
        p_dw1, p_dc, p_dw2: (R, S, ...) float32, parts of the gradients of W1, c and W2, written.
        Other arguments are those of `forward`; p_z is only read.
    """
    # Products over keys and sequences are sums of so many that their rounding errors average out.
    SUM: tl.constexpr = tl.float32 if PRECISION == "ieee" else tl.bfloat16
    i_r, i_n, across = R - 1 - tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    m = first + i_r
    o_h, o_w, o_n = tl.arange(0, HB), tl.arange(0, WB), tl.arange(0, BN)
    w1z = load_matrix(p_w1, o_w, o_h, W, H, 2 * H, 1)
    w1z_t = load_matrix(p_w1, o_h, o_w, H, W, 1, 2 * H)
    w2 = load_matrix(p_w2, o_h, o_w, H, W, W, 1)
    w2_t = load_matrix(p_w2, o_w, o_h, W, H, 1, W)
    m_h = (o_h < H)[:, None]
    o_row = ((o_h.to(tl.int64) * R + i_r) * K)[:, None]
    step = tl.cast(R, tl.int64) * K * H
    dw1z_t, dw1b_t = tl.zeros((HB, WB), tl.float32), tl.zeros((HB, WB), tl.float32)
    dw2, dc = tl.zeros((HB, WB), tl.float32), tl.zeros((WB,), tl.float32)
    for start in range(i_n * BN, m + 1, across * BN):
        o_key = (start + o_n)[None, :]
        m_seen, m_written = m_h & (o_key <= m), m_h & (o_key < K)
        w1b = load_matrix(p_w1 + H, o_w, o_h, W, H, 2 * H, 1)
        c = tl.load(p_c + o_w, o_w < W, 0.0)[:, None]
        b_b = tl.load(p_table + o_h[:, None] * T + m - o_key, m_seen, 0.0)
        b_base = tl.dot(w1b, b_b, tl.zeros((WB, BN), tl.float32) + c, input_precision=PRECISION)
        b_ds_sum = tl.zeros((HB, BN), tl.float32)
        b_din_sum = tl.zeros((WB, BN), tl.float32)
        for i_b in range(0, B):
            o = i_b * step + o_row + o_key
            o_stat = (i_b * H + o_h) * R + i_r
            b_z = tl.load(p_z + o, m_seen, 0.0) * scale
            b_dp = tl.load(p_dp + o, m_seen, 0.0)
            lse = tl.load(p_lse + o_stat, o_h < H, 0.0)[:, None]
            delta = tl.load(p_delta + o_stat, o_h < H, 0.0)[:, None]
            b_in = tl.dot(w1z, b_z, b_base, input_precision=PRECISION)
            b_unit = tl.maximum(b_in, b_in * SLOPE)
            b_s = tl.dot(w2, b_unit, b_z + b_b, input_precision=PRECISION)
            b_p = tl.exp(tl.where(m_seen, b_s - lse, float("-inf")))
            b_ds = b_p * (b_dp - delta)
            tl.store(p_p + o, b_p.to(p_p.dtype.element_ty), m_written)
            b_din = tl.dot(w2_t, b_ds, input_precision=PRECISION)
            b_din = tl.where(b_in > 0.0, b_din, b_din * SLOPE)
            b_dz = tl.dot(w1z_t, b_din, b_ds, input_precision=PRECISION) * scale
            tl.store(p_dz + o, b_dz.to(p_dz.dtype.element_ty), m_written)
            b_ds_sum += b_ds
            b_din_sum += b_din
            b_z, b_unit, b_ds, b_din = b_z.to(SUM), b_unit.to(SUM), b_ds.to(SUM), b_din.to(SUM)
            dw1z_t = tl.dot(b_z, tl.trans(b_din), dw1z_t, input_precision=PRECISION)
            dw2 = tl.dot(b_ds, tl.trans(b_unit), dw2, input_precision=PRECISION)
        w1b_t = load_matrix(p_w1 + H, o_h, o_w, H, W, 1, 2 * H)
        b_db = tl.dot(w1b_t, b_din_sum, b_ds_sum, input_precision=PRECISION)
        tl.store(p_db + (o_h[:, None] * R + i_r) * T + m - o_key, b_db, m_seen)
        dw1b_t = tl.dot(b_b, tl.trans(b_din_sum), dw1b_t, input_precision=PRECISION)
        dc += tl.sum(b_din_sum, 1)
    i_part, m_both = i_r * across + i_n, m_h & (o_w < W)[None, :]
    o_w1 = i_part * W * 2 * H + o_w[None, :] * (2 * H) + o_h[:, None]
    tl.store(p_dw1 + o_w1, dw1z_t, m_both)
    tl.store(p_dw1 + H + o_w1, dw1b_t, m_both)
    tl.store(p_dw2 + i_part * W * H + o_h[:, None] * W + o_w[None, :], dw2, m_both)
    tl.store(p_dc + i_part * W + o_w, dc, o_w < W)
    ahead = m // BN + 1  # the first block whose keys all lie ahead
    ahead += (i_n + across - ahead % across) % across  # and the first of these of this program
    for start in range(ahead * BN, K, across * BN):
        o_key = (start + o_n)[None, :]
        b_none = tl.zeros((HB, BN), p_p.dtype.element_ty)
        for i_b in range(0, B):
            tl.store(p_p + i_b * step + o_row + o_key, b_none, m_h & (o_key < K))
            tl.store(p_dz + i_b * step + o_row + o_key, b_none, m_h & (o_key < K))


def blocks(batch: int, heads: int, length: int) -> Iterator[tuple[slice, slice]]:
    """Yield sequences and queries whose logits are held at once, later queries first."""
    rows = min(length, max(1, HELD // (heads * length)))
    some = max(1, HELD // (heads * rows * length))
    for b in range(0, batch, some):
        for start in reversed(range(0, length, rows)):
            yield slice(b, min(b + some, batch)), slice(start, min(start + rows, length))


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product of a (B, H, m, i) and b (B, H, i, n) in float32."""
    shape = *a.shape[:2], a.shape[2], b.shape[3]
    a, b = a.flatten(0, 1), b.flatten(0, 1)
    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, b, out_dtype=torch.float32).view(shape)
    return torch.bmm(a.float(), b.float()).view(shape)


def _options(q: Tensor, w1: Tensor, plan: dict[str, int]) -> dict[str, Any]:
    """Return the constants and options with which a kernel is compiled."""
    # Products on tensor cores sum over at least 16 numbers. With fewer units than 32, Triton 3.6
    # would let warps repeat each other's products.
    heads = max(16, triton.next_power_of_2(q.shape[1]))
    units = max(32, triton.next_power_of_2(w1.shape[0]))
    precision = "ieee" if q.dtype == torch.float32 else "tf32"
    own = {"HB": heads, "WB": units, "PRECISION": precision}
    return own | plan | {"BN": min(plan["BN"], ENTRIES // heads)}


def _prepared(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Return q, k and v with as many heads each; keys are padded to a multiple of `ALIGNED`."""
    groups, missing = q.shape[1] // k.shape[1], -k.shape[2] % ALIGNED
    return [q, *(pad(x.repeat_interleave(groups, 1), (0, 0, 0, missing)) for x in (k, v))]


@torch.library.custom_op("pe::dape", mutates_args=())
def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, table: Tensor, w1: Tensor, c: Tensor,
    w2: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute causal attention.

    Args:
        q: (B, H, T, E). k: (B, K, T, E). v: (B, K, T, D). They have 16 bits or are float32.
        scale: factor of q k^T.
        table: (H, T), the bias by distance. w1: (W, 2H). c: (W,). w2: (H, W). All are contiguous
            and float32.

    Returns:
        o (B, H, T, D), and lse (B, H, T), ln of the sum of e^s.

    Raises:
        RuntimeError: the self-check of the kernels fails on this machine.
    """
    if q.is_cuda:
        self_check(q.shape[1], w1.shape[0], q.dtype, q.device)
    return attend_by_kernel(q, k, v, scale, table, w1, c, w2)


def attend_by_kernel(
    q: Tensor, k: Tensor, v: Tensor, scale: float, table: Tensor, *network: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `attend` without the self-check."""
    out, lse = tokens_first(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)
    q, k, v = _prepared(q, k, v)
    heads, length = q.shape[1:3]
    options = _options(q, network[0], FORWARD)
    for some, rows in blocks(*q.shape[:3]):
        keys = triton.cdiv(rows.stop, ALIGNED) * ALIGNED
        z = product(q[some, :, rows], k[some, :, :keys].mT)
        p, log_sum = z.new_empty(z.shape, dtype=q.dtype), z.new_empty(z.shape[:3])
        forward[(z.shape[2], z.shape[0])](
            z, table, *network, p, log_sum, rows.start, z.shape[2], keys, length, heads,
            len(network[1]), scale, **options,
        )  # fmt: skip
        out[some, :, rows] = p @ v[some, :, :keys]
        lse[some, :, rows] = log_sum
    return out, lse


def gradients(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float,
    table: Tensor, w1: Tensor, c: Tensor, w2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k, v, table, w1, c and w2.

    Args:
        gradient: (B, H, T, D), of the output. out, lse: what `attend` returned.
    """
    delta = (gradient.float() * out).sum(-1)
    groups = k.shape[1]
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    network = w1, c, w2
    totals = [torch.zeros_like(x) for x in (table, *network)]
    q, k, v = _prepared(q, k, v)
    gradient = gradient.to(q.dtype)
    heads, length = q.shape[1:3]
    options = _options(q, w1, BACKWARD)
    for some, rows in blocks(*q.shape[:3]):
        keys, here = triton.cdiv(rows.stop, ALIGNED) * ALIGNED, (some, slice(None), rows)
        z = product(q[here], k[some, :, :keys].mT)
        dp = product(gradient[here], v[some, :, :keys].mT)
        p, dz = (torch.empty_like(z, dtype=q.dtype) for _ in range(2))
        most = max(1, PROGRAMS // z.shape[2])
        grid = z.shape[2], min(most, triton.cdiv(keys, options["BN"]))
        parts = [z.new_zeros(heads, z.shape[2], length)]
        parts += [z.new_empty(grid[0] * grid[1], *x.shape) for x in network]
        backward[grid](
            z, dp, lse[here].contiguous(), delta[here].contiguous(), table, *network, p, dz, *parts,
            z.shape[0], rows.start, z.shape[2], keys, length, heads, len(c), scale, **options,
        )  # fmt: skip
        for total, part, across in zip(totals, parts, (1, 0, 0, 0), strict=True):
            total += part.sum(across)
        dq[here] = dz @ k[some, :, :keys]
        of_keys, of_values = product(dz.mT, q[here]), product(p.mT, gradient[here])
        if rows.stop == length:
            dk_sum, dv_sum = of_keys, of_values
        else:
            dk_sum[:, :, :keys] += of_keys
            dv_sum[:, :, :keys] += of_values
        if rows.start == 0:
            dk[some] = dk_sum[:, :, :length].unflatten(1, (groups, -1)).sum(2)
            dv[some] = dv_sum[:, :, :length].unflatten(1, (groups, -1)).sum(2)
    return dq, dk, dv, totals[0], totals[1], totals[2], totals[3]


attend_backward = torch.library.custom_op("pe::dape_backward", gradients, mutates_args=())


@attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, scale: float, table: Tensor, w1: Tensor, c: Tensor,
    w2: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return tokens_first(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


@attend_backward.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float,
    table: Tensor, w1: Tensor, c: Tensor, w2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv, dtable, dw1, dc, dw2 = (torch.empty_like(x) for x in (q, k, v, table, w1, c, w2))
    return dq, dk, dv, dtable, dw1, dc, dw2


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.scale, *network = inputs
    ctx.save_for_backward(q, k, v, *output, *network)


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, *network = ctx.saved_tensors
    dq, dk, dv, *others = attend_backward(gradient, q, k, v, out, lse, ctx.scale, *network)
    return dq, dk, dv, None, *others


attend.register_autograd(_backward, setup_context=_save)


@functools.cache
def self_check(heads: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Compare the kernels with the definition, once for each combination of arguments.

    Raises:
        RuntimeError: the kernels fail or differ. The message says how, and what to use instead.
    """
    random, scale = checks.random_on(device), 0.25
    q, k, v, gradient = checks.inputs(random, 2, heads, LENGTH, 16, 32, dtype)
    w1, w2 = random(width, 2 * heads) / heads**0.5, random(heads, width) / width**0.5
    network = random(heads, LENGTH), w1, random(width), w2

    def compute() -> tuple[Tensor, ...]:
        out, lse = attend_by_kernel(q, k, v, scale, *network)
        return out, *gradients(gradient, q, k, v, out, lse, scale, *network)

    names = "b", "W1", "c", "W2"
    checks.agree(compute, expected(gradient, q, k, v, scale, *network), dtype, names)


def expected(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, table: Tensor, w1: Tensor,
    c: Tensor, w2: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the output of `attend` and the results of `gradients`, in float64, without autograd.

    Autograd is off inside of an operator, where the self-check runs.
    """
    gradient, q, k, v, table, w1, c, w2 = (
        x.double() for x in (gradient, q, k, v, table, w1, c, w2)
    )
    heads, groups = q.shape[1], q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(groups, 1) for x in (k, v))
    at = torch.arange(q.shape[2], device=q.device)
    distance = at[:, None] - at
    near = distance.clamp(min=0)
    z = scale * (q @ keys.mT)
    b = table[:, near].expand_as(z)
    both = torch.cat((z, b), 1)
    units = torch.einsum("wh,bhij->bwij", w1, both) + c[:, None, None]
    active = leaky_relu(units, SLOPE.value)
    s = z + b + torch.einsum("hw,bwij->bhij", w2, active)
    p = s.masked_fill(distance < 0, -torch.inf).softmax(-1)
    dp = gradient @ values.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    dunits = torch.einsum("hw,bhij->bwij", w2, ds) * torch.where(units > 0, 1.0, SLOPE.value)
    dz, db = torch.einsum("wh,bwij->bhij", w1, dunits).split(heads, 1)
    dz, db = scale * (ds + dz), (ds + db).sum(0)
    dk, dv = (x.unflatten(1, (-1, groups)).sum(2) for x in (dz.mT @ q, p.mT @ gradient))
    return (
        p @ values, dz @ keys, dk, dv,
        torch.zeros_like(table).index_add_(1, near.flatten(), db.flatten(1)),
        torch.einsum("bwij,bhij->wh", dunits, both), dunits.sum((0, 2, 3)),
        torch.einsum("bhij,bwij->hw", ds, active),
    )  # fmt: skip
