"""Left padding changes no real token, in the whole and in each decoding step (C5, C6)."""

from __future__ import annotations

import torch

from pe.conformance.law import Measure, NotPromised, law
from pe.conformance.laws.cache import stepwise
from pe.conformance.subject import Subject, tokens


@law
def padding(subject: Subject, measure: Measure) -> None:
    """A left-padded row equals the row alone, also while decoding."""
    if subject.enc.random:
        raise NotPromised("positions are drawn anew in each call")
    longest = subject.lengths(2, 2 * subject.length)[-1]
    short = min(9, longest - 1)
    pad = longest - short
    ids = tokens(2, longest)
    mask = torch.ones_like(ids)
    mask[0, :pad] = 0
    depth = 1 if subject.enc.length_dependent else subject.depth  # as in `cache`
    model = subject.model(num_hidden_layers=depth)
    with torch.no_grad():
        alone = [model(ids[:1, pad:], use_cache=False).logits[0], model(ids[1:]).logits[0]]
        whole = model(ids, attention_mask=mask, use_cache=False).logits
        plan = [longest - short // 2] + [1] * (short // 2)
        steps = stepwise(model, ids, plan, mask)
    measure.close("the padded row", whole[0, pad:], alone[0], 2e-4, 1e-4)
    measure.close("the long row", whole[1], alone[1], 2e-4, 1e-4)
    measure.close("the padded row, decoded", steps[0, -1], alone[0][-1], 2e-4, 1e-4)
    measure.close("the long row, decoded", steps[1, -1], alone[1][-1], 2e-4, 1e-4)
