"""Decoding through a model's cache gives the logits of the whole, past any length (B1, B11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pe.conformance.law import Measure, NotPromised, law
from pe.conformance.subject import Subject, tokens

if TYPE_CHECKING:
    from pe.model import PEForCausalLM


@law
def cache(subject: Subject, measure: Measure) -> None:
    """Step by step through a cache equals all at once, at L-1, L, L+1, 2L."""
    if subject.enc.random:
        raise NotPromised("positions are drawn anew in each call")
    n = subject.length
    lengths = subject.lengths(1, n - 1, n, n + 1, 2 * n)
    longest = lengths[-1]
    # Rows that deeper layers computed at earlier lengths stay what they were, so with several
    # layers a length-dependent encoding is not promised to agree.
    model = subject.model(num_hidden_layers=1 if subject.enc.length_dependent else subject.depth)
    ids = tokens(2, longest)
    plans = [[1] * longest, [min(7, longest), *[1] * 3, longest], [longest - 1, 1]]
    with torch.no_grad():
        whole = {m: model(ids[:, :m], use_cache=False).logits for m in lengths}
        for plan in plans:
            steps = stepwise(model, ids, plan)
            for m in lengths:
                if not subject.enc.length_dependent:
                    measure.close(f"{m} tokens", steps[:, :m], whole[m], 2e-4, 1e-4)
                elif m in _ends(plan, longest):
                    measure.close(f"{m} tokens", steps[:, m - 1], whole[m][:, -1], 2e-4, 1e-4)


def stepwise(
    model: PEForCausalLM, ids: Tensor, plan: list[int], mask: Tensor | None = None
) -> Tensor:
    """Logits of all tokens, fed in chunks of these sizes through one cache."""
    from transformers import DynamicCache

    held, logits, start = DynamicCache(), [], 0
    for end in _ends(plan, ids.shape[1]):
        seen = None if mask is None else mask[:, :end]
        out = model(ids[:, start:end], past_key_values=held, attention_mask=seen)
        logits.append(out.logits)
        start = end
    return torch.cat(logits, 1)


def _ends(plan: list[int], longest: int) -> list[int]:
    """Where the chunks end; what goes beyond the longest is cut."""
    ends: list[int] = []
    for size in plan:
        end = min((ends[-1] if ends else 0) + size, longest)
        if size and (not ends or end > ends[-1]):
            ends.append(end)
    return ends
