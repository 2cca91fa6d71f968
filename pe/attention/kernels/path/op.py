"""PaTH's attention (`pe.encodings.path`, arXiv:2505.16381), forward and backward.

`pe.encodings.core.reflections` says how chunks of C tokens turn PaTH into products of matrices. For
a query q = Q~ after the reflections in its own chunk, and the chunks j before it, last one first,

    logits = q K'_j^T,    q <- q + q X_j,    X_j = A_j - I

In `pe.attention.kernels.path.chunk` are `prepare` and `finish`, and in
`pe.attention.kernels.path.attention` are `forward`, `by_queries` and `by_keys`.
`prepare` computes Q~, K', X and the bias in the own chunk, one program per chunk. `forward` is
flash attention with the second product. In the backward pass `prepare` runs again. `by_queries`
computes the queries q_ij that arrive at chunk j, and from the first chunk on their gradients

    g_ij = dS_ij K'_j + h_ij (I + X_j)^T,    h_ij = g_i(j-1)

It writes q and h in 16 bits for some heads at a time, D T^2 / 2C numbers per head each. `by_keys`
reads them and adds up dV, dK' = sum_i dS_ij^T q_ij and dX_j = sum_i q_ij^T h_ij. `finish` leads
these gradients back through `prepare` to q, k, w and beta. There are no atomic operations, so the
results are the same in each run.

If queries have 16 bits, q K'^T and the products with P, V and their gradients take factors of 16
bits. q and g are carried on in float32, and their products with X take TF32. Products of a single
chunk take three products of bfloat16 (`product`).

The first chunk begins with zeros if C does not divide T. Tensors that only kernels read count these
tokens as well. They are (N, n, C or D, ...), N heads of all sequences and n chunks. Names: ``p_``
pointer, ``b_`` block, ``o_`` offset, ``m_`` mask, ``i_`` program index; everything else is a value.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from triton import cdiv

from pe.attention.kernels import self_check as checks
from pe.attention.kernels.layout import contiguous_last_dim, strides_of, tokens_first
from pe.attention.kernels.path.attention import by_keys, by_queries, forward
from pe.attention.kernels.path.chunk import finish, prepare
from pe.encodings.core.reflections import CHUNK, unmasked, unmasked_gradient

HELD = 2**29
"""The most numbers of 16 bits for `by_keys` that are held at once, unless one head has more."""
LENGTH = 300
"""The number of tokens of the self-check."""
NARROW: dict[str, dict[str, int]] = {
    "prepare": {"num_warps": 4, "num_stages": 1},
    "forward": {"num_warps": 4, "num_stages": 2},
    "by_queries": {"num_warps": 4, "num_stages": 2},
    "by_keys": {"num_warps": 4, "num_stages": 3},
    "finish": {"num_warps": 4, "num_stages": 1},
}
"""Options of the compiler for heads of at most 64 channels. Those of `forward`, `by_queries` and
`by_keys` were the fastest of a few on an H200."""
WIDE = NARROW | {name: {"num_warps": 8, "num_stages": 1} for name in NARROW}


def _options(q: Tensor, v: Tensor) -> dict[str, dict[str, int]]:
    """Return the options of the compiler for heads as wide as these."""
    return NARROW if max(q.shape[-1], v.shape[-1]) <= 64 else WIDE


def _precision(q: Tensor) -> str:
    return "ieee" if q.dtype == torch.float32 else "tf32"


def prepared(
    q: Tensor, k: Tensor, state: Tensor, options: dict[str, int], for_gradient: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return p_rest to p_xt of `prepare`, and p_x to p_copy, which only gradients need."""
    batch, heads, length, width = q.shape
    n, every = cdiv(length, CHUNK), batch * heads

    def new(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return q.new_empty((every, n, *sizes), dtype=dtype)

    made = [new(CHUNK, width), new(CHUNK, CHUNK), new(CHUNK, width, dtype=q.dtype)]
    made.append(new(width, width))
    sizes = (width, width), (CHUNK, CHUNK), (CHUNK, width)
    more = [new(*size) for size in sizes] if for_gradient else []
    places = (*made, *more, *[None] * (len(sizes) - len(more)))
    prepare[(n, every)](
        q, k, state, *places, length, heads, heads // k.shape[1], width**-0.5,
        *map(strides_of, (q, k, state)), E=width, PRECISION=_precision(q), **options,
    )  # fmt: skip
    return made, more


def attend_by_kernel(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `attend` without the self-check."""
    q, k, v, state = (contiguous_last_dim(x) for x in (q, k, v, state))
    batch, heads, length, width = q.shape
    n = cdiv(length, CHUNK)
    out = tokens_first(q, v.shape[-1])
    lse = q.new_empty((batch * heads, n, CHUNK), dtype=torch.float32)
    options = _options(q, v)
    made, _ = prepared(q, k, state, options["prepare"], for_gradient=False)
    forward[(n, batch * heads)](
        q, k, v, out, lse, *made, length, heads, heads // k.shape[1], width**-0.5,
        *map(strides_of, (q, k, v, out)), E=width, D=v.shape[-1], PRECISION=_precision(q),
        **options["forward"],
    )  # fmt: skip
    return out, lse


def gradients(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and state.

    Args:
        gradient: (B, H, T, D), of the output. out, lse: what `attend` returned.
    """
    q, k, v, state, gradient = (contiguous_last_dim(x) for x in (q, k, v, state, gradient))
    gradient = gradient.to(q.dtype)
    batch, heads, length, width = q.shape
    every, n, groups = batch * heads, lse.shape[1], heads // k.shape[1]
    delta = pad((gradient.float() * out).sum(-1), (n * CHUNK - length, 0)).contiguous()
    options = _options(q, v)
    made, more = prepared(q, k, state, options["prepare"], for_gradient=True)
    (rest, own, keys, xt), (x, solved, copy) = made, more
    written = rest, own, keys, x
    drest, down, dkeys, dx = (torch.empty_like(t, dtype=torch.float32) for t in written)
    dq, dk, dv = (tokens_first(q, size) for size in (width, width, v.shape[-1]))
    if groups > 1:
        dk, dv = (torch.empty_like(t, dtype=torch.float32) for t in (dk, dv))
    dstate = state.new_empty(state.shape)
    pairs = n * (n - 1) // 2
    step = min(every, max(1, HELD // max(1, 2 * pairs * CHUNK * width)))
    arrived, onward = (q.new_empty((step, pairs, CHUNK, width)) for _ in range(2))
    sizes = {"E": width, "D": v.shape[-1]}
    for first in range(0, every, step):
        grid = n, min(step, every - first)
        by_queries[grid](
            v, gradient, lse, delta, rest, keys, x, xt, arrived, onward, drest, first, length,
            heads, groups, strides_of(v), strides_of(gradient), **sizes, PRECISION=_precision(q),
            **options["by_queries"],
        )  # fmt: skip
        by_keys[grid](
            q, k, v, gradient, dv, lse, delta, own, keys, arrived, onward, down, dkeys, dx, first,
            length, heads, groups, width**-0.5, *map(strides_of, (q, k, v, gradient, dv)), **sizes,
            **options["by_keys"],
        )  # fmt: skip
    finish[(n, every)](
        q, k, state, solved, copy, drest, down, dkeys, dx, dq, dk, dstate, length, heads, groups,
        width**-0.5, *map(strides_of, (q, k, state, dq, dk)), E=width, PRECISION=_precision(q),
        **options["finish"],
    )  # fmt: skip
    if groups > 1:
        sums = (x.unflatten(1, (-1, groups)).sum(2) for x in (dk, dv))
        dk, dv = (tokens_first(k, x.shape[-1]).copy_(x) for x in sums)
    return dq, dk, dv, dstate


@torch.library.custom_op("pe::path", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute causal attention.

    Args:
        q: (B, H, T, E). k: (B, K, T, E). v: (B, K, T, D). They have 16 bits or are float32.
        state: (B, H, T, E + 1) float32, which is w and beta.

    Returns:
        o (B, H, T, D), and ``lse`` of the kernel `forward`.

    Raises:
        RuntimeError: the self-check of the kernels fails on this machine.
    """
    if q.is_cuda:
        self_check(q.shape[-1], v.shape[-1], q.dtype, q.device)
    return attend_by_kernel(q, k, v, state)


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    shape = q.shape[0] * q.shape[1], (q.shape[2] + CHUNK - 1) // CHUNK, CHUNK
    return tokens_first(q, v.shape[-1]), q.new_empty(shape, dtype=torch.float32)


attend_backward = torch.library.custom_op("pe::path_backward", gradients, mutates_args=())


@attend_backward.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (tokens_first(x, x.shape[-1]) for x in (q, k, v))
    return dq, dk, dv, state.new_empty(state.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:
    slopes: tuple[Tensor, ...] = attend_backward(gradient, *ctx.saved_tensors)
    return slopes


attend.register_autograd(_backward, setup_context=_save)


@functools.cache
def self_check(width: int, value_width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Compare the kernels with the definition, once for each combination of arguments.

    Raises:
        RuntimeError: the kernels fail or differ. The message says how, and what to use instead.
    """
    random = checks.random_on(device)
    q, k, v, gradient = checks.inputs(random, 2, 2, LENGTH, width, value_width, dtype)
    w, beta = random(2, 2, LENGTH, width), 2 * random(2, 2, LENGTH, 1).sigmoid()
    state = torch.cat((w / w.norm(dim=-1, keepdim=True), beta), -1)

    def compute() -> tuple[Tensor, ...]:
        out, lse = attend_by_kernel(q, k, v, state)
        return out, *gradients(gradient, q, k, v, state, out, lse)

    checks.agree(compute, expected(q, k, v, state, gradient), dtype, ("w and beta",))


def expected(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, gradient: Tensor
) -> tuple[Tensor, ...]:
    """Return o, dq, dk, dv and the gradient of state in float64, without autograd."""
    q, k, v, state, gradient = (x.double() for x in (q, k, v, state, gradient))
    scale, groups = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]

    keys, values = (x.repeat_interleave(groups, 1) for x in (k, v))
    ahead = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    logits = scale * q @ keys.mT + unmasked(q, k, state)
    p = logits.masked_fill(ahead, -torch.inf).softmax(-1)
    out = p @ values
    ds = p * (gradient @ values.mT - (gradient * out).sum(-1, keepdim=True))
    dq, dk, dstate = unmasked_gradient(ds, q, k, state)
    more, dv = (x.unflatten(1, (-1, groups)).sum(2) for x in (scale * ds.mT @ q, p.mT @ gradient))
    return out, dq + scale * ds @ keys, dk + more, dv, dstate
