"""A small case of CoPE, and its results by the definition, without autograd.

    dS = P (dP - rowsum(P dP))    dc = dS z'(c)    dg_t = sum of dc_j, j <= t
    dq = scale dL k + dz t    dk = scale dL^T q    dt = dz^T q    with dL = dS + dg g (1 - g)

z = q t^T, and dz is dS, divided between the two rows of the table between which a count lies.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pe.attention.kernels.self_check import Case, inputs, random_on
from pe.attention.spans import Spans
from pe.encodings.core.forms import by_count

BATCH, HEADS, LENGTH, ROWS = 2, 2, 250, 24
"""Long enough for counts to reach the end of the table, at different blocks of queries."""


def case(width: int, value_width: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Make the inputs of the self-check, which are always the same."""
    random = random_on(device)
    q, k, v, gradient = inputs(random, BATCH, HEADS, LENGTH, width, value_width, dtype)
    return Case(q, k, v, gradient, by_count(random(ROWS, width) * width**-0.5))


def expected(case: Case, scale: float, spans: Spans | None = None) -> tuple[Tensor, ...]:
    """Return o, dq, dk, dv and the gradient of the table, in float64."""
    assert case.form.own is not None
    q, k, v, gradient, table = (t.double() for t in (*case[:4], case.form.own))
    length, last = q.shape[-2], len(table) - 1
    causal = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    seen = causal if spans is None else spans.mask()
    logits = scale * (q @ k.transpose(-1, -2))
    gates = logits.sigmoid() * seen
    counts = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
    products = q @ table.t()
    below = counts.long()
    above, part = (below + 1).clamp(max=last), counts - below
    low, high = products.gather(-1, below), products.gather(-1, above)
    weights = (logits + low.lerp(high, part)).masked_fill(~seen, -math.inf).softmax(-1)
    by_weight = gradient @ v.transpose(-1, -2)
    by_logit = weights * (by_weight - (weights * by_weight).sum(-1, keepdim=True))
    by_product = torch.zeros_like(products)
    by_product.scatter_add_(-1, below, by_logit * (1 - part))
    by_product.scatter_add_(-1, above, by_logit * part)
    by_gate = (by_logit * (high - low)).cumsum(-1)
    by_logit = by_logit + by_gate * gates * (1 - gates)
    return (
        weights @ v,
        scale * (by_logit @ k) + by_product @ table,
        scale * (by_logit.transpose(-1, -2) @ q).sum(1, keepdim=True),
        (weights.transpose(-1, -2) @ gradient).sum(1, keepdim=True),
        (by_product.transpose(-1, -2) @ q).sum((0, 1)),
    )
