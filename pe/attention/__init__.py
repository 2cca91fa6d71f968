"""Attention under any encoding, by any backend.

``dense`` is the definition in float32; all others must agree with it. `pe.attention.choose` says
which there are and which is taken.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pe.attention.choose import (
    BACKENDS,
    bias_of,
    checked,
    compute,
    path_for,
    refuse_broadcast,
    spans_for,
)
from pe.attention.spans import Spans
from pe.encodings.core.base import Encoding, refuse_positions

__all__ = ["BACKENDS", "attend", "path_for", "scaled"]


def scaled(q: Tensor, factor: Tensor | None) -> Tensor:
    """Multiply each query, (B, H, T, D), by its logit scale, broadcastable to (B, H, T).

    In float64 where the queries are, otherwise in float32.
    """
    if factor is None:
        return q
    wide = torch.promote_types(q.dtype, torch.float32)
    return (q * factor.to(wide)[..., None]).to(q.dtype)


def attend(
    enc: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str | None = None,
    layer_input: Tensor | None = None,
) -> Tensor:
    """Attention with a positional encoding, for use in any model.

    Args:
        q: (B, H, Tq, D). k, v: (B, K, Tk, D), K dividing H. q_positions, k_positions: integers (T,)
            or (B, T); None: counted from the first key, which is what the fast kernels need.
        mask: boolean, True where a query may attend, broadcastable to (B, H, Tq, Tk); None: causal,
            the queries being the last Tq of the keys. What is hidden counts nowhere: not in a bias
            that depends on the keys in between, nor in a window, nor in the length of a document. A
            query that sees nothing gets 0.
        backend: ``"dense"`` (the definition, float32), ``"sdpa"`` (torch's, a bias being a
            matrix), ``"kernel"`` (ours, never a matrix); None chooses.
        layer_input: (B, Tk, hidden), what queries and keys were projected from; only encodings
            that look at it (FoX) need it.

    Returns:
        (B, H, Tq, D) in v's dtype.

    Raises:
        ValueError: an unknown backend, or one that cannot serve this case; shapes that do not fit
            each other or the encoding, of which none is broadcast.
    """
    if not isinstance(enc, Encoding):
        raise TypeError(
            f"attend(encoding, q, k, v): expected an encoding first, as pe.encoding makes one, got "
            f"a {type(enc).__name__}"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(f"{name}: expected a tensor of floating-point numbers, got {_kind(x)}")
    for name, at in (("q_positions", q_positions), ("k_positions", k_positions)):
        if at is not None and (not isinstance(at, Tensor) or at.is_floating_point()):
            raise ValueError(f"{name}: expected a tensor of whole numbers, got {_kind(at)}")
    backend = checked(backend)
    scale = 1.0 / math.sqrt(q.shape[-1])
    enc.refuse_misfit(q, k)
    if v.dim() != 4 or v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v: expected {(*k.shape[:3], 'width')} as k, got {tuple(v.shape)}")
    mask = _whole(mask, q, k)
    if layer_input is not None and layer_input.shape[:2] != (k.shape[0], k.shape[2]):
        raise ValueError(
            f"layer_input: expected {(k.shape[0], k.shape[2], 'hidden')}, one vector per key, got "
            f"{tuple(layer_input.shape)}"
        )
    state = None if layer_input is None else enc.key_state(layer_input)
    counted = q_positions is None and k_positions is None
    if k_positions is None:
        k_positions = torch.arange(k.shape[-2], device=k.device)
    if q_positions is None:
        same = q.shape[-2] == k.shape[-2]
        q_positions = k_positions if same else k_positions[..., -q.shape[-2] :]
    refuse_positions("q_positions", q_positions, q.shape[0], q.shape[2])
    refuse_positions("k_positions", k_positions, k.shape[0], k.shape[2])
    more = {}
    if mask is not None and enc.length_dependent:
        from pe.attention.documents import document_lengths  # brings the compiler

        more["lengths"] = document_lengths(mask, q_positions, k_positions)
    where = enc.prepare(q_positions, k_positions, q.dtype, **more)
    shown: Tensor | Spans | None = mask
    if enc.hides:
        length, known = q.shape[2], k.shape[2]
        if mask is None and length == known:
            shown = spans_for(enc, q.device, q.dtype, q.shape[-1], length, backend)
        if not isinstance(shown, Spans):
            shown = enc.narrow(mask, length, known, q.device)
    counted = counted and where.q_positions is q_positions
    q_positions, k_positions, tables, _ = where
    bias = bias_of(enc, q, k, q_positions, k_positions, state, shown, counted, backend)
    factor = enc.logit_scale(q_positions)
    if factor is not None:
        refuse_broadcast("logit_scale", factor, tuple(q.shape[:3]))
    q, k = enc.rotate(q, k, q_positions, k_positions, tables)
    return compute(scaled(q, factor), k, v, scale, bias, shown, backend, enc.sink_logit())


def _kind(x: object) -> str:
    """What a message calls it: a tensor by its type of numbers."""
    return str(x.dtype) if isinstance(x, Tensor) else f"a {type(x).__name__}"


def _whole(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask as (1 or B, 1 or H, Tq, Tk); ValueError if it is none of these queries and keys."""
    length, known = q.shape[2], k.shape[2]
    if mask is None:
        if length > known:
            raise ValueError(
                f"{length} queries of {known} keys: queries without a mask are the last keys"
            )
        return None
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask: expected booleans, True where a query may attend, got {mask.dtype}"
        )
    refuse_broadcast("mask", mask, (*q.shape[:3], known))
    mask = mask[(None,) * (4 - mask.dim())]
    return mask.expand(-1, -1, length, known)
