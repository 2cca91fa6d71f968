"""A small case for each kind of bias, and its results by the definition, without autograd.

P = softmax(scale q k^T + b)    o = P v    dv = P^T dO    dS = P (dP - rowsum(P dP)),  dP = dO v^T
dq = scale dS k    dk = scale dS^T q    and sums of dS for the gradient of the bias

With a sink, P has one more key, whose value is 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pe.attention.kernels.flash.horizon import FALLING
from pe.attention.kernels.flash.piecewise_linear import takes_lines
from pe.attention.kernels.self_check import Case, inputs, random_on
from pe.attention.spans import Spans, spans
from pe.encodings.core import forms
from pe.encodings.core.forms import Form
from pe.encodings.core.key_range import KeyRange

BATCH, HEADS, LENGTH = 2, 2, 256
LN2 = math.log(2.0)


def case(
    kind: int, reach: int, width: int, value_width: int, dtype: torch.dtype, device: torch.device
) -> Case:
    """Make the inputs of a self-check, which are always the same."""
    length = max(LENGTH, -(-reach // 128) * 128 + 128)  # long enough for a constant part
    if kind in FALLING:
        length = 3 * forms.CHUNK  # long enough to skip the first chunk where the bias is steep
    if takes_lines(kind, dtype, length, 0):
        length = 704  # long enough for blocks with lines
    random = random_on(device)
    q, k, v, gradient = inputs(random, BATCH, HEADS, length, width, value_width, dtype)
    form = Form()
    if kind == forms.KEYS:
        steps = 0.3 * random(BATCH, HEADS, length).double()
        steps[:, 1] += 2.0
        form = forms.by_key(steps.cumsum(-1))
    elif kind == forms.TABLE:
        table = random(HEADS, length)
        if reach:
            table[:, reach:] = table[:, reach : reach + 1]
        form = forms.by_distance(table, reach or None)
    elif kind == forms.ROWS:
        halved = dtype == torch.bfloat16  # as `pe.attention.choose.kernel_form` does
        rows = random(BATCH, HEADS, length, reach).to(dtype if halved else torch.float32)
        form = Form(forms.ROWS, rows, (), reach)
    elif kind in (forms.LOGARITHM, forms.POWER):
        numbers = random(2, HEADS).abs().clamp(0.1, 1.0)
        numbers[:, 1] = 1.0
        if kind == forms.LOGARITHM:
            numbers[0, 1] = 0.01  # so weak that far blocks have lines
        form = forms.by_logarithm(*numbers) if kind == forms.LOGARITHM else forms.by_power(*numbers)
    elif kind == forms.FIRE:
        weight, corners = random(8), torch.linspace(0.1, 0.9, 8, device=device)
        rises = random(HEADS, 8) * (0.1 if length > LENGTH else 1.0)  # so flat that there are lines
        weights = weight[:, None], -weight * corners, rises, random(HEADS)
        c, multiplier = torch.full((1,), 0.3, device=device), torch.ones(1, device=device)
        form = forms.fire(c, multiplier, *weights, 100.0, 1e-6, length)
    return Case(q, k, v, gradient, form)


def spans_of(q: Tensor, segmented: bool, kept: int = 3) -> Spans:
    """Return spans of a window and ``kept`` first keys, whose bounds lie inside of blocks.

    With ``segmented`` there are two documents, and padding before and inside them.
    """
    length = q.shape[2]
    padding = documents = None
    if segmented:
        index = torch.arange(length, device=q.device).expand(q.shape[0], -1)
        documents, padding = index // (length // 2 + 9), (index >= 5).int()
        padding[0, length // 3] = 0
    return spans(KeyRange(90, None, kept), length, q.device, padding, documents)


def expected(
    case: Case, scale: float, spans: Spans | None = None, sink: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return o, dq, dk, dv, and the gradients of the bias and the sink, all in float64."""
    q, k, v, gradient = (t.double() for t in case[:4])
    logits = scale * (q @ k.transpose(-1, -2))
    if case.form.kind != forms.NONE:
        logits = logits + forms.matrix(case.form, q.shape[-2])
    seen = torch.ones_like(logits[0, 0], dtype=torch.bool, device=q.device).tril()
    logits = logits.masked_fill(~(seen if spans is None else spans.mask()), -math.inf)
    by_weight = gradient @ v.transpose(-1, -2)
    if sink is None:
        weights = logits.softmax(-1)
    else:
        sinks = sink.double()[:, None, None].expand(*logits.shape[:-1], 1)
        weights = torch.cat((logits, sinks), -1).softmax(-1)[..., :-1]
    sums = (weights * by_weight).sum(-1, keepdim=True)
    by_logit = weights * (by_weight - sums)
    by_sink = weights.new_empty(0)
    if sink is not None:
        by_sink = ((weights.sum(-1, keepdim=True) - 1) * sums).sum((0, 2, 3))
    return (
        weights @ v,
        scale * (by_logit @ k),
        scale * (by_logit.transpose(-1, -2) @ q).sum(1, keepdim=True),
        (weights.transpose(-1, -2) @ gradient).sum(1, keepdim=True),
        _bias_gradient(case.form, by_logit),
        by_sink,
    )


def _bias_gradient(form: Form, by_logit: Tensor) -> Tensor:
    """Return the gradient of ``form.own`` from that of the logits, (B, H, T, T)."""
    length = by_logit.shape[-1]
    position = torch.arange(length, device=by_logit.device)
    # The gradient of keys ahead of a query is 0, so their distance does not matter.
    distance = (position[:, None] - position).clamp(min=0)
    if form.kind == forms.NONE or form.own is None:
        return by_logit.new_empty(0)
    own = torch.zeros_like(form.own, dtype=torch.float64)
    if form.kind == forms.KEYS:
        own[..., :length] = (by_logit.sum(-2) - by_logit.sum(-1)) * LN2
    elif form.kind == forms.TABLE:
        reached = distance.clamp(max=form.reach) if form.reach else distance
        sums = by_logit.sum(0).flatten(1) * LN2
        own[:, forms.PADDING :].index_add_(1, reached.flatten(), sums)
    elif form.kind == forms.ROWS:
        near = distance.clamp(max=form.reach - 1).expand_as(by_logit)
        sums = (by_logit * LN2).masked_fill(distance >= form.reach, 0.0)
        own.scatter_add_(-1, near, sums)
    elif form.kind in (forms.LOGARITHM, forms.POWER):
        first, second = form.own.double()[..., None, None].unbind(1)
        if form.kind == forms.LOGARITHM:
            inner = 1 + second * distance
            by_number = -inner.log2() * LN2, -first * distance / inner
        else:
            power = distance**second
            by_number = -power * LN2, -first * LN2 * power * distance.clamp(min=1).log()
        own = torch.stack([(by_logit.sum(0) * slope).sum((1, 2)) for slope in by_number], -1)
    else:
        _, steep, rows, breaks, by_c, rows_c, rows_m, rising, slopes = (
            p.double() for p in form.parts
        )
        knots = form.parts[0].shape[1] - 2
        inverse = rows[:length, None] / knots / LN2  # 1 / N_i
        u = (steep * distance).log1p() * inverse
        of_c = (by_c[forms.PADDING :][distance] - u * rows_c[:length, None]) * inverse
        of_m = -u * rows_m[:length, None] * inverse
        above = u > breaks[:-1, None, None]
        active = torch.where(rising[:, None, None].bool(), above, ~above).double()
        total = by_logit.sum(0)
        parts = [torch.einsum("hij,uij->hu", total, active * w) for w in (1, u, of_c, of_m)]
        numbers = [(part * slopes).sum(-1, keepdim=True) for part in parts[2:]]
        own = torch.cat((parts[0], parts[1], *numbers), -1)
    return own
