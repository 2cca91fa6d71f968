"""Attention with any positional encoding, by any backend.

The backend ``dense`` is the definition in float32, and all others must agree with it.
`pe.attention.choose` lists the ways to compute attention and chooses among them.
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
    shown_keys,
)
from pe.attention.masks import kind_of, refuse_negative, whole_numbers
from pe.encodings.core.base import Encoding, refuse_positions

__all__ = ["BACKENDS", "attend", "path_for", "scaled"]


def scaled(q: Tensor, factor: Tensor | None) -> Tensor:
    """Multiply each query, (B, H, T, D), by its logit scale, broadcastable to (B, H, T).

    The product is computed in float64 if the queries are, and otherwise in float32. The result has
    the type of ``q``.
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
    """Compute attention with a positional encoding, for use in any model.

    Args:
        enc: the encoding, as `pe.encoding` makes one.
        q: (B, H, Tq, D) queries.
        k, v: (B, K, Tk, D) keys and values; K divides H.
        q_positions, k_positions: integers (T,) or (B, T), 0 or more. None: counted from the first
            key, which the fast kernels need.
        mask: boolean, True where a query may attend, broadcastable to (B, H, Tq, Tk). None: causal,
            and the queries are the last Tq of the keys. A hidden token has no effect at all: a bias
            that depends on the keys in between does not count it, nor does a window, nor the length
            of a document. A query that sees no key gets 0.
        backend: ``"dense"`` (the definition, float32), ``"sdpa"`` (torch's attention, where a bias
            is a matrix) or ``"kernel"`` (our Triton kernels, which never build that matrix). None
            chooses the fastest exact one.
        layer_input: (B, Tk, hidden), from which queries and keys were projected. Only some
            encodings, such as FoX, need it.

    Returns:
        (B, H, Tq, D) in the type of ``v``.

    Raises:
        TypeError: ``enc`` is not an encoding.
        ValueError: the backend is unknown or cannot serve this case, or shapes or types do not fit
            each other or the encoding. Nothing is broadcast or converted to make them fit. Or
            positions are below 0, which is checked on the CPU only.
    """
    if not isinstance(enc, Encoding):
        raise TypeError(
            f"attend(encoding, q, k, v): expected an encoding first, as pe.encoding makes one, got "
            f"a {type(enc).__name__}"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(
                f"{name}: expected a tensor of floating-point numbers, got {kind_of(x)}"
            )
    backend = checked(backend)
    converted = q.is_cuda and torch.is_autocast_enabled("cuda")  # by torch's attention
    if len({x.dtype for x in (q, k, v)}) > 1 and not converted:
        raise ValueError(
            f"q, k and v: expected one dtype, got {q.dtype}, {k.dtype} and {v.dtype}; convert them "
            "with .to()"
        )
    enc.refuse_misfit(q, k)
    if v.dim() != 4 or v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v: expected {(*k.shape[:3], 'width')} as k, got {tuple(v.shape)}")
    mask = _whole(mask, q, k)
    if not q.numel() or not k.numel():
        return v.new_zeros(*q.shape[:3], v.shape[-1])
    if layer_input is not None:
        tensor = isinstance(layer_input, Tensor)
        if not tensor or layer_input.shape[:-1] != (k.shape[0], k.shape[2]):
            raise ValueError(
                f"layer_input: expected {(k.shape[0], k.shape[2], 'hidden')}, one vector per key, "
                f"got {tuple(layer_input.shape) if tensor else kind_of(layer_input)}"
            )
    state = None if layer_input is None else enc.key_state(layer_input)
    counted = q_positions is None and k_positions is None
    if k_positions is None:
        k_positions = torch.arange(k.shape[-2], device=k.device)
    k_positions = _checked_positions("k_positions", k_positions, k)
    if q_positions is None:
        same = q.shape[-2] == k.shape[-2]
        q_positions = k_positions if same else k_positions[..., -q.shape[-2] :]
    q_positions = _checked_positions("q_positions", q_positions, q)
    lengths = {}
    if mask is not None and enc.length_dependent:
        from pe.attention.documents import document_lengths  # imports torch's compiler, slowly

        lengths["lengths"] = document_lengths(mask, q_positions, k_positions)
    prepared = enc.prepare(q_positions, k_positions, q.dtype, **lengths)
    shown = shown_keys(enc, q, k, mask, backend)
    # An encoding may replace positions; those are not 0, 1, 2 ... any more.
    counted = counted and prepared.q_positions is q_positions
    q_positions, k_positions, tables, _ = prepared
    bias = bias_of(enc, q, k, q_positions, k_positions, state, shown, counted, backend)
    factor = enc.logit_scale(q_positions)
    if factor is not None:
        refuse_broadcast("logit_scale", factor, tuple(q.shape[:3]))
    scale = 1.0 / math.sqrt(q.shape[-1])
    q, k = enc.rotate(q, k, q_positions, k_positions, tables)
    return compute(scaled(q, factor), k, v, scale, bias, shown, backend, enc.sink_logit())


def _checked_positions(name: str, positions: Tensor, x: Tensor) -> Tensor:
    """Return the positions of queries or keys ``x`` in int64; raise ValueError if they misfit."""
    positions = whole_numbers(name, positions)
    refuse_positions(name, positions, x.shape[0], x.shape[2])
    refuse_negative(name, positions)
    return positions


def _whole(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Return the mask as (1 or B, 1 or H, Tq, Tk), or None.

    Raises:
        ValueError: it does not fit these queries and keys.
    """
    length, known = q.shape[2], k.shape[2]
    if mask is None:
        if length > known:
            raise ValueError(
                f"{length} queries and {known} keys: without a mask, the queries are the last of "
                "the keys, so there must be at least as many keys; give a mask"
            )
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise ValueError(
            f"mask: expected booleans, True where a query may attend, got {kind_of(mask)}"
        )
    refuse_broadcast("mask", mask, (*q.shape[:3], known))
    mask = mask[(None,) * (4 - mask.dim())]
    return mask.expand(-1, -1, length, known)
