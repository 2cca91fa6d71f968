"""Attention under any encoding, by any backend.

``dense`` is the definition in float32; all others must agree with it. `pe.attention.choose` says
which there are and which is taken.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pe.attention.choose import BACKENDS, bias_of, checked, compute, path_for
from pe.encodings.core.base import Encoding

__all__ = ["BACKENDS", "attend", "path_for", "scaled"]


def scaled(q: Tensor, factor: Tensor | None) -> Tensor:
    """Multiply each query row by its logit scale, broadcastable to (B, H, T)."""
    return q if factor is None else (q * factor[..., None]).to(q.dtype)


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
        q: (B, H, Tq, D). k, v: (B, K, Tk, D), K dividing H. positions: integers (T,) or (B, T);
            None: counted from the first key, which is what the fast kernels need.
        mask: True where a query may attend, broadcastable to (B, H, Tq, Tk); None: causal, the
            queries being the last Tq of the keys.
        backend: ``"dense"`` (the definition, float32), ``"sdpa"`` (torch's, a bias being a
            matrix), ``"kernel"`` (ours, never a matrix); None chooses.
        layer_input: (B, Tk, hidden), what queries and keys were projected from; only encodings
            that look at it (FoX) need it.

    Returns:
        (B, H, Tq, D) in v's dtype.

    Raises:
        ValueError: an unknown backend, or one that cannot serve this case.
    """
    backend = checked(backend)
    scale = 1.0 / math.sqrt(q.shape[-1])
    state = None if layer_input is None else enc.key_state(layer_input)
    counted = q_positions is None and k_positions is None
    if k_positions is None:
        k_positions = torch.arange(k.shape[-2], device=k.device)
    if q_positions is None:
        same = q.shape[-2] == k.shape[-2]
        q_positions = k_positions if same else k_positions[..., -q.shape[-2] :]
    where = enc.prepare(q_positions, k_positions, q.dtype)
    counted = counted and where.q_positions is q_positions
    q_positions, k_positions, tables = where.q_positions, where.k_positions, where.tables
    bias = bias_of(enc, q, k, q_positions, k_positions, state, mask, counted, backend)
    factor = enc.logit_scale(q_positions)
    q, k = enc.rotate(q, k, q_positions, k_positions, tables)
    return compute(scaled(q, factor), k, v, scale, bias, mask, backend)
