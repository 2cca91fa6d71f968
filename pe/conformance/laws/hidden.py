"""Tokens that are hidden count nowhere: not between others, not in how long a document is.

In the model by its attention mask and its document ids, and in `pe.attend` by a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pe.attention import BACKENDS, attend
from pe.conformance.law import Broken, Measure, NotApplicable, law
from pe.conformance.subject import Inputs, Subject, inputs, same_draw, tokens


@law
def holes(subject: Subject, measure: Measure) -> None:
    """Masked tokens at the ends or between change no visible one, also in decoding."""
    from transformers import DynamicCache

    if subject.enc.random:
        raise NotApplicable("positions are drawn again in each call")
    count = subject.lengths(3, 2 * subject.length)[-1]
    length = count + 9
    visible = torch.ones(2, length, dtype=torch.bool)
    for row, hidden in enumerate(([0, 1, 2, 5, 6, 7], [1, 2, 3, 9, 10, 11])):
        visible[row, [i for i in hidden if i < length]] = False
        visible[row, -3:] = False
    visible = visible & (visible.cumsum(1) <= count)
    ids, end = tokens(2, length), tokens(2, 2, seed=5)
    depth = 1 if subject.enc.length_dependent else subject.depth  # as in the law of caches
    model = subject.model(num_hidden_layers=depth)
    more = min(2, subject.lengths(count, count + 1, count + 2)[-1] - count)
    mask = torch.cat((visible, torch.ones(2, more, dtype=torch.bool)), 1).long()
    with torch.no_grad():
        whole = model(ids, attention_mask=visible.long(), use_cache=False).logits
        held = DynamicCache()
        model(ids, attention_mask=visible.long(), past_key_values=held)
        steps = [
            model(end[:, n : n + 1], attention_mask=mask[:, : length + n + 1],
                  past_key_values=held).logits
            for n in range(more)
        ]  # fmt: skip
        for row in range(2):
            shown = ids[row, visible[row]]
            alone = model(shown[None], use_cache=False).logits[0]
            measure.close(f"row {row}", whole[row, visible[row]], alone, 2e-4, 1e-4)
            for n, step in enumerate(steps):
                grown = torch.cat((shown, end[row, : n + 1]))[None]
                want = model(grown, use_cache=False).logits[0, -1]
                measure.close(f"row {row}, {n + 1} decoded", step[row, -1], want, 2e-4, 1e-4)
    _hidden_in_attend(subject, measure, count)


def _hidden_in_attend(subject: Subject, measure: Measure, count: int) -> None:
    """The same by a mask of keys, the positions of hidden ones being anything."""
    length = count + 5
    shown = torch.tensor([i for i in range(length) if i not in (0, 2, 3, 5, length - 1)])
    given, positions = inputs(length), torch.zeros(length, dtype=torch.long)
    positions[shown] = torch.arange(count)
    if subject.enc.max_positions is None:
        positions[[2, -1]] = 7 * length
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mask[:, [i for i in range(length) if i not in shown.tolist()]] = False
    visible = Inputs(given.q[:, :, shown], given.k[:, :, shown], given.v[:, :, shown],
                     given.x[:, shown])  # fmt: skip
    for backend in BACKENDS:
        whole = _attended(subject, given, positions, mask, backend)[:, :, shown]
        alone = _attended(subject, visible, torch.arange(count), None, backend)
        measure.close(f"attend, {backend}", whole, alone, 2e-5, 1e-4)


def _attended(
    subject: Subject, given: Inputs, positions: Tensor, mask: Tensor | None, backend: str
) -> Tensor:
    return attend(
        subject.enc, given.q, given.k, given.v, positions, positions, mask, backend, given.x
    )


@law
def documents(subject: Subject, measure: Measure) -> None:
    """Documents in one sequence, long ones among them, are each what they are alone."""
    if subject.enc.random:
        raise NotApplicable("positions are drawn again in each call")
    sizes = [size for size in (9, 2 * subject.length + 3, 5) if subject.lengths(size)]
    sizes = sizes if len(sizes) > 1 else [3, subject.lengths(1, 2)[-1]]
    names = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    positions = torch.cat([torch.arange(size) for size in sizes])
    model, ids = subject.model(), tokens(2, len(names))
    given, mask = inputs(len(names)), (names[:, None] == names).tril()
    with torch.no_grad():
        whole = model(ids, document_ids=names.expand(2, -1), position_ids=positions).logits
    shared = _attended(subject, given, positions, mask, "sdpa")
    for name, size in enumerate(sizes):
        mine = names == name
        with torch.no_grad():
            alone = model(ids[:, mine], use_cache=False).logits
        measure.close(f"document of {size} tokens", whole[:, mine], alone, 2e-4, 1e-4)
        part = Inputs(given.q[:, :, mine], given.k[:, :, mine], given.v[:, :, mine],
                      given.x[:, mine])  # fmt: skip
        want = _attended(subject, part, torch.arange(size), None, "sdpa")
        measure.close(f"attend, document of {size}", shared[:, :, mine], want, 2e-5, 1e-4)


@law
def blind(subject: Subject, measure: Measure) -> None:
    """A query that sees nothing gets zeros and finite gradients from each backend."""
    length = subject.lengths(1, 8)[-1]
    mask = torch.ones(2, 1, length, length, dtype=torch.bool).tril()
    mask[0, :, 0], mask[1, :, length // 2 :] = False, False
    unseen = ~mask.any(-1).expand(2, 4, length)
    positions = torch.arange(length)
    for backend in BACKENDS:
        given = Inputs(*(x.requires_grad_() for x in inputs(length)))
        with same_draw():
            out = _attended(subject, given, positions, mask, backend)
        if not out.isfinite().all() or out[unseen].any():
            raise Broken(f"{backend}: a query that sees nothing gets {out[unseen].flatten()[:3]}")
        slopes = torch.autograd.grad(out.sum(), [*given], allow_unused=True)
        if not all(slope.isfinite().all() for slope in slopes if slope is not None):
            raise Broken(f"{backend}: a gradient is not finite")
