"""Attention under any encoding, by any backend.

Backends share one signature, ``(q, k, v, scale, bias, mask) -> output``; ``dense`` is the
definition in float32, the others must agree with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from pe._errors import unknown
from pe.attention.dense import dense_attention
from pe.attention.sdpa import sdpa_attention
from pe.encodings.base import Encoding

BACKENDS: dict[str, Callable[..., Tensor]] = {"dense": dense_attention, "sdpa": sdpa_attention}


def backend_named(name: str | None) -> Callable[..., Tensor]:
    """The backend called ``name``; None is ``sdpa``. Unknown names raise ValueError."""
    if name is None:
        return sdpa_attention
    if name not in BACKENDS:
        raise unknown("attention backend", name, BACKENDS)
    return BACKENDS[name]


def scaled(q: Tensor, factor: Tensor | None) -> Tensor:
    """Multiply each query row by its logit scale, broadcastable to (B, H, T)."""
    return q if factor is None else (q * factor[..., None]).to(q.dtype)


def attend(
    enc: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    mask: Tensor | None = None,
    backend: str | None = None,
    layer_input: Tensor | None = None,
) -> Tensor:
    """Attention with a positional encoding, for use in any model.

    Args:
        q: (B, H, Tq, D). k, v: (B, K, Tk, D), K dividing H. positions: integers (T,) or (B, T).
        mask: True where a query may attend, broadcastable to (B, H, Tq, Tk); None: causal, the
            queries being the last Tq of the keys.
        backend: ``"dense"`` (the definition, float32), ``"sdpa"``; None chooses.
        layer_input: (B, Tk, hidden), what queries and keys were projected from; only encodings
            that look at it (FoX) need it.

    Returns:
        (B, H, Tq, D) in v's dtype.
    """
    run = backend_named(backend)
    scale = 1.0 / math.sqrt(q.shape[-1])
    state = None if layer_input is None else enc.key_state(layer_input)
    q_positions, k_positions, tables = enc.prepare(q_positions, k_positions, q.dtype)
    bias = enc.bias(q, k, q_positions, k_positions, state)
    factor = enc.logit_scale(q_positions)
    q, k = enc.rotate(q, k, q_positions, k_positions, tables)
    return run(scaled(q, factor), k, v, scale=scale, bias=bias, mask=mask)
