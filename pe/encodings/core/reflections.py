"""The logits of PaTH less those without positions, as a differentiable operator.

    bias(m, n) = q_m^T (H_m H_(m-1) ... H_(n+1) - I) k_n / sqrt(d),     H_s = I - beta_s w_s w_s^T

The algorithm is that of Yang et al. 2025 (arXiv:2505.16381). The tokens are cut into chunks of C.
Let W (C, D), K (C, D) and beta (C) belong to one chunk, and let P = Q W^T for queries Q, (Tq, D),
that come after it. A query passes the tokens of a chunk from the last to the first. The component a
along w that it has on arrival at each of them follows from a triangular system (C, C),

    a + a L = P,   L = diag(beta) strictly_lower(W W^T),   so that  a diag(beta) = P U,
    U = (I + L)^-1 diag(beta)

The products of reflections then are matrices that all these queries share:

    the logits with the keys of this chunk   Q K'^T,  K' = K - N^T W,  N = U strictly_lower(W K^T)
    the queries after it                     Q A,     A  = I - W^T U W

The queries of the chunk itself pass a part of it only, so the lower triangle takes the place of P:
their bias is -P N, and P U W is subtracted from them. The chunks are visited from the last to the
first. A logit thus costs 2 D + D^2 / C multiplications, and each chunk's system is solved once.

The operator is one node to torch.compile. For the gradient it keeps q, k, w and beta only and
computes the rest again.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64
"""C. Tokens before the first whole chunk are filled up with zeros, which reflect nothing."""
MASKED_CHUNK = 16
"""C under a mask with gaps, where each query has its own systems."""
SOLVED = 16
"""The largest triangular matrix that is inverted by substitution."""
NUMBERS = 2**26
"""How many intermediate numbers a block of queries may hold under a mask with gaps."""


class Chunked(NamedTuple):
    """Results of single chunks. N is batch times heads, and there are n chunks of keys, of which
    the last i have queries."""

    queries: Tensor
    """(N, i, C, D): the queries after the reflections in their own chunk."""
    own: Tensor
    """(N, i, C, C): the bias of the keys in the query's own chunk."""
    keys: Tensor
    """(N, n, C, D): K'."""
    ways: Tensor
    """(N, n, D, D): A."""
    inner: tuple[Tensor, ...]
    """(I + L)^-1, U, U W, N and the lower triangle of P."""


def chunked(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Chunked:
    """Compute what concerns one chunk alone.

    q is (N, i, C, D), k and w are (N, n, C, D), and beta is (N, n, C).
    """
    last = slice(k.shape[1] - q.shape[1], None)
    inverted = inverse((w @ w.mT).tril(-1) * beta[..., None])
    u = inverted * beta[..., None, :]
    passed = u @ w
    reflected = u @ (w @ k.mT).tril(-1)
    ways = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - w.mT @ passed
    met = (q @ w[:, last].mT).tril()
    queries, own = q - met @ passed[:, last], -(met @ reflected[:, last])
    inner = inverted, u, passed, reflected, met
    return Chunked(queries, own, k - reflected.mT @ w, ways, inner)


def chunked_gradient(
    slopes: tuple[Tensor, ...], of: Chunked, q: Tensor, k: Tensor, w: Tensor, beta: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of the arguments of `chunked`.

    ``slopes`` are those of the first four results, and ``of`` are all of them.
    """
    last = slice(k.shape[1] - q.shape[1], None)
    inverted, u, passed, reflected, met = of.inner
    d_queries, d_own, d_keys, d_ways = slopes
    d_met = -(d_queries @ passed[:, last].mT + d_own @ reflected[:, last].mT).tril()
    d_passed, d_reflected = -(w @ d_ways), -(w @ d_keys.mT)
    d_passed[:, last] -= met.mT @ d_queries
    d_reflected[:, last] -= met.mT @ d_own
    d_below_k = (u.mT @ d_reflected).tril(-1)  # the gradient of the triangle of W K^T
    d_u = d_reflected @ (w @ k.mT).tril(-1).mT + d_passed @ w.mT
    d_l = -(inverted.mT @ (d_u * beta[..., None, :]) @ inverted.mT).tril(-1)
    d_beta = (d_u * inverted).sum(-2) + (d_l * (w @ w.mT)).sum(-1)
    d_below_w = d_l * beta[..., None]
    dw = u.mT @ d_passed + d_below_k @ k + (d_below_w + d_below_w.mT) @ w
    dw -= passed @ d_ways.mT + reflected @ d_keys
    dw[:, last] += d_met.mT @ q
    return d_queries + d_met @ w[:, last], d_keys + d_below_k.mT @ w, dw, d_beta


def inverse(below: Tensor) -> Tensor:
    """Return (I + ``below``)^-1 of strictly lower triangular matrices (..., C, C)."""
    size = below.shape[-1]
    if size <= SOLVED or size % 2:
        eye = torch.eye(size, dtype=below.dtype, device=below.device).expand_as(below)
        return solve(below, eye)
    half = size // 2
    both = torch.stack((below[..., :half, :half], below[..., half:, half:]))
    first, second = inverse(both).unbind()
    corner = -(second @ below[..., half:, :half] @ first)
    upper = torch.cat((first, torch.zeros_like(first)), -1)
    return torch.cat((upper, torch.cat((corner, second), -1)), -2)


def solve(below: Tensor, right: Tensor) -> Tensor:
    """Solve x (I + ``below``) = ``right`` for x, (..., rows, C)."""
    x: Tensor = torch.linalg.solve_triangular(
        below, right, upper=False, left=False, unitriangular=True
    )
    return x


def wide(x: Tensor) -> torch.dtype:
    """Return float64 if x is float64, otherwise float32."""
    return torch.promote_types(x.dtype, torch.float32)


def in_chunks(q: Tensor, k: Tensor, state: Tensor) -> tuple[Tensor, ...]:
    """Return q, k, w (N, chunks, C, D) and beta (N, chunks, C) in float32 or float64.

    Queries are scaled. The last chunk ends with the last token, and the first begins with zeros.
    """
    size, dtype = min(CHUNK, k.shape[2]), wide(q)

    def cut(x: Tensor) -> Tensor:
        x, ahead = x.to(dtype).flatten(0, 1).contiguous(), -x.shape[2] % size
        chunks: Tensor = (pad(x, (0, 0, ahead, 0)) if ahead else x).unflatten(1, (-1, size))
        return chunks

    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    w, beta = state.split((q.shape[-1], 1), -1)
    return cut(q) / math.sqrt(q.shape[-1]), cut(k), cut(w), cut(beta).squeeze(-1)


class Step(NamedTuple):
    """One chunk of keys, and the queries that come after it."""

    j: int
    """The number of the chunk of keys."""
    i: int
    """The number of the chunk of queries at the same tokens; negative if there is none."""
    keys: slice
    after: slice
    """The queries of later chunks."""
    arrived: Tensor
    """(N, queries, D): these queries after all reflections between the chunk and them."""


def steps(rest: Tensor, ways: Tensor, size: int) -> Iterator[Step]:
    """Yield the chunks of keys from the last to the first; arguments as in `Chunked`."""
    length, chunks = rest.shape[1], ways.shape[1]
    arrived, start = rest[:, length:], length
    for j in reversed(range(chunks)):
        i = j - (chunks - length // size)
        after = slice(max(0, i + 1) * size, length)
        if after.start < length:
            new, old = start - after.start, arrived
            arrived = torch.empty_like(rest[:, after])
            arrived[:, :new] = rest[:, after.start : start]
            torch.bmm(old, ways[:, j + 1], out=arrived[:, new:])
            start = after.start
        yield Step(j, i, slice(j * size, (j + 1) * size), after, arrived)


def unmasked(q: Tensor, k: Tensor, state: Tensor) -> Tensor:
    """Return the bias (B, H, Tq, Tk) if each query sees all tokens up to its own."""
    cut = in_chunks(q, k, state)
    queries, own, keys, ways, _ = chunked(*cut)
    rest, plain, size = queries.flatten(1, 2), cut[0].flatten(1, 2), keys.shape[2]
    out = rest.new_empty(*plain.shape[:2], keys.shape[1] * size)
    for j, i, columns, after, arrived in steps(rest, ways, size):
        if i >= 0:
            out[:, : i * size, columns] = 0
            out[:, i * size : after.start, columns] = own[:, i]
        if after.start < after.stop:
            logits = out[:, after, columns]
            torch.bmm(plain[:, after], cut[1][:, j].mT, out=logits)
            logits.baddbmm_(arrived, keys[:, j].mT, beta=-1)
    out = out[:, out.shape[1] - q.shape[2] :, out.shape[2] - k.shape[2] :]  # without the zeros
    bias: Tensor = out.unflatten(0, q.shape[:2]).contiguous()
    return bias


def unmasked_gradient(gradient: Tensor, q: Tensor, k: Tensor, state: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and state, given that of `unmasked`."""
    cut = in_chunks(q, k, state)
    of = chunked(*cut)
    rest, plain, size = of.queries.flatten(1, 2), cut[0].flatten(1, 2), of.keys.shape[2]
    ahead = cut[1].shape[1] * size - k.shape[2], plain.shape[1] - q.shape[2]
    gradient = gradient.to(rest.dtype).flatten(0, 1)
    if any(ahead):
        gradient = pad(gradient, (ahead[0], 0, ahead[1], 0))
    slopes = d_queries, d_own, d_keys, d_ways = tuple(map(torch.zeros_like, of[:4]))
    d_rest, d_plain, d_k = (
        d_queries.flatten(1, 2),
        torch.zeros_like(plain),
        torch.zeros_like(d_keys),
    )
    arriving, start = d_rest[:, :0], 0  # the gradient of what arrived at the chunk before
    for j, i, columns, after, arrived in reversed(list(steps(rest, of.ways, size))):
        new = after.start - start
        if j > 0:
            d_rest[:, start : after.start] = arriving[:, :new]
        start = after.start
        if i >= 0:
            d_own[:, i] = gradient[:, i * size : start, columns]
        if start == after.stop:
            break
        above = gradient[:, after, columns]
        onward, arriving = arriving[:, new:], above @ of.keys[:, j]
        if j > 0:
            arriving.baddbmm_(onward, of.ways[:, j].mT)
            torch.bmm(arrived.mT, onward, out=d_ways[:, j])
        torch.bmm(above.mT, arrived, out=d_keys[:, j])
        torch.bmm(above.mT, plain[:, after], out=d_k[:, j])
        d_plain[:, after].baddbmm_(above, cut[1][:, j])
    dq, dk, dw, d_beta = chunked_gradient(slopes, of, *cut)
    dq = (dq.flatten(1, 2) - d_plain)[:, ahead[1] :] / math.sqrt(q.shape[-1])
    dk, d_state = dk - d_k, torch.cat((dw, d_beta[..., None]), -1)
    dk, d_state = (x.flatten(1, 2)[:, ahead[0] :].unflatten(0, q.shape[:2]) for x in (dk, d_state))
    dk = dk.unflatten(1, (k.shape[1], -1)).sum(2)
    return dq.view(q.shape).to(q.dtype), dk.to(k.dtype), d_state.to(state.dtype)


def with_gaps(mask: Tensor | None) -> Tensor | None:
    """Return the mask without the keys ahead of each query if it has gaps, otherwise None.

    In a gap are tokens that a query does not see, between itself and one that it sees. Documents,
    windows and padding leave none. Then all that a query sees is as without a mask.
    """
    if mask is None:
        return None
    length, known = mask.shape[-2:]
    behind = mask.new_ones(length, known).tril(known - length)
    seen = mask & behind
    gaps = seen[..., :-1] & ~seen[..., 1:] & behind[..., 1:]
    return seen if gaps.any() else None


def masked(q: Tensor, k: Tensor, state: Tensor, seen: Tensor) -> Tensor:
    """Return the bias (B, H, Tq, Tk) if tokens that a query does not see do not reflect.

    ``seen``, (1 or B, 1 or H, Tq, Tk), is False also at the keys ahead of a query. Each query has
    its own triangular systems.
    """
    dtype = wide(q)
    plain = q.to(dtype) / math.sqrt(q.shape[-1])
    k = k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    w, beta = state.to(dtype).split((q.shape[-1], 1), -1)
    rest, pieces = plain, []
    for start in reversed(range(0, k.shape[2], MASKED_CHUNK)):
        chunk = slice(start, start + MASKED_CHUNK)
        w_j, k_j = w[:, :, chunk], k[:, :, chunk]
        gates = beta.mT[..., chunk] * seen[..., chunk]
        below = gates[..., None] * (w_j @ w_j.mT).tril(-1)[:, :, None]
        a = solve(below, (rest @ w_j.mT)[..., None, :]).squeeze(-2) * gates
        pieces.append((rest - plain) @ k_j.mT - a @ (w_j @ k_j.mT).tril(-1))
        rest = rest - a @ w_j
    return torch.cat(pieces[::-1], -1)


def blocks(q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield the queries of a block for `masked`, and the keys up to the last of them."""
    (batch, heads, length, _), known = q.shape, k.shape[2]
    rows = max(1, NUMBERS // (batch * heads * known * (3 * MASKED_CHUNK + 8)))
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        yield slice(start, stop), slice(0, known - length + stop)


def masked_gradient(
    gradient: Tensor, q: Tensor, k: Tensor, state: Tensor, seen: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and state, given that of `masked`."""
    sums = [torch.zeros_like(x, dtype=wide(x)) for x in (q, k, state)]
    for rows, keys in blocks(q, k):
        shown = seen[..., rows, keys]

        def bias(q: Tensor, k: Tensor, state: Tensor, shown: Tensor = shown) -> Tensor:
            return masked(q, k, state, shown)

        parts = q[:, :, rows], k[:, :, keys], state[:, :, keys]
        slopes = torch.func.vjp(bias, *parts)[1](gradient[:, :, rows, keys].to(wide(q)))
        for total, of_block, slope in zip(sums, (rows, keys, keys), slopes, strict=True):
            total[:, :, of_block] += slope
    return tuple(total.to(x.dtype) for total, x in zip(sums, (q, k, state), strict=True))


@torch.library.custom_op("pe::reflect", mutates_args=())
def reflect(q: Tensor, k: Tensor, state: Tensor, mask: Tensor | None) -> Tensor:
    """Return the bias (B, H, Tq, Tk), in float64 if the queries are, otherwise in float32.

    Args:
        q: (B, H, Tq, D), not scaled; the queries are the last of the keys. k: (B, K, Tk, D).
        state: (B, H, Tk, D + 1), which is w and beta.
        mask: (1 or B, 1 or H, Tq, Tk). A token that a query does not see does not reflect. None:
            causal.
    """
    with torch.autocast(q.device.type, enabled=False):
        seen = with_gaps(mask)
        if seen is None:
            return unmasked(q, k, state)
        out = q.new_zeros(*q.shape[:3], k.shape[2], dtype=wide(q))
        for rows, keys in blocks(q, k):
            parts = q[:, :, rows], k[:, :, keys], state[:, :, keys]
            out[:, :, rows, keys] = masked(*parts, seen[..., rows, keys])
        return out


@reflect.register_fake
def _(q: Tensor, k: Tensor, state: Tensor, mask: Tensor | None) -> Tensor:
    return q.new_empty(*q.shape[:3], k.shape[2], dtype=wide(q))


@torch.library.custom_op("pe::reflect_gradient", mutates_args=())
def reflect_gradient(
    gradient: Tensor, q: Tensor, k: Tensor, state: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and state, given that of `reflect`."""
    with torch.autocast(q.device.type, enabled=False):
        seen = with_gaps(mask)
        if seen is None:
            slopes = unmasked_gradient(gradient, q, k, state)
        else:
            slopes = masked_gradient(gradient, q, k, state, seen)
        dq, dk, dstate = (slope.contiguous() for slope in slopes)
        return dq, dk, dstate


@reflect_gradient.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, state: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dstate = (x.new_empty(x.shape) for x in (q, k, state))
    return dq, dk, dstate


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *reflect_gradient(gradient, *ctx.saved_tensors), None


reflect.register_autograd(_backward, setup_context=_save)


@reflect.register_vmap
def _(
    info: Any, places: tuple[int | None, ...], q: Tensor, k: Tensor, state: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, int]:  # fmt: skip
    """Compute the biases of several models, whose sequences are one batch."""

    def models_first(x: Tensor, place: int | None) -> Tensor:
        if place is None:
            return x.expand(info.batch_size, *x.shape)
        return x.movedim(place, 0)

    q, k, state = (models_first(*x) for x in zip((q, k, state), places, strict=False))
    if mask is not None:
        mask = models_first(mask, places[3])
        mask = mask.expand(-1, q.shape[1], *mask.shape[2:]).flatten(0, 1)
    out = reflect(q.flatten(0, 1), k.flatten(0, 1), state.flatten(0, 1), mask)
    return out.unflatten(0, (info.batch_size, -1)), 0
