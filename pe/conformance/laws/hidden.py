"""Laws about hidden tokens, which must not count, neither as distance nor as part of a document.

The attention mask or document ids hide tokens in a model, and a mask hides them in `pe.attend`.
"""

import torch

from pe.attention import BACKENDS
from pe.conformance.law import Broken, Measure, NotApplicable, law
from pe.conformance.laws.decoding import compare_with_alone
from pe.conformance.subject import Inputs, Subject, attended, inputs, tokens


@law
def holes(subject: Subject, measure: Measure) -> None:
    """Masked tokens at the ends or between change no visible one, also in decoding."""
    if subject.enc.random:
        raise NotApplicable("positions are drawn again in each call")
    count = subject.lengths(3, 2 * subject.length)[-1]
    length = count + 9
    visible = torch.ones(2, length, dtype=torch.bool)
    for row, hidden in enumerate(([0, 1, 2, 5, 6, 7], [1, 2, 3, 9, 10, 11])):
        visible[row, [i for i in hidden if i < length]] = False
        visible[row, -3:] = False
    visible = visible & (visible.cumsum(1) <= count)
    more = min(2, subject.lengths(count, count + 1, count + 2)[-1] - count)
    mask = torch.cat((visible, torch.ones(2, more, dtype=torch.bool)), 1)
    compare_with_alone(subject, measure, mask, prompt=length)
    _hidden_in_attend(subject, measure, count)


def _hidden_in_attend(subject: Subject, measure: Measure, count: int) -> None:
    """Check the same in `pe.attend` with a mask. The positions of hidden keys must not matter."""
    length = count + 5
    shown = torch.tensor([i for i in range(length) if i not in (0, 2, 3, 5, length - 1)])
    case, positions = inputs(length), torch.zeros(length, dtype=torch.long)
    positions[shown] = torch.arange(count)
    if subject.enc.max_positions is None:
        positions[[2, -1]] = 7 * length
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mask[:, [i for i in range(length) if i not in shown.tolist()]] = False
    for backend in BACKENDS:
        whole = attended(subject.enc, case, positions, None, backend, mask)[:, :, shown]
        alone = attended(subject.enc, case.tokens(shown), torch.arange(count), None, backend)
        measure.close(f"attend, {backend}", whole, alone, 2e-5, 1e-4)


@law
def documents(subject: Subject, measure: Measure) -> None:
    """Each document of a sequence gives what it gives alone, long ones too."""
    if subject.enc.random:
        raise NotApplicable("positions are drawn again in each call")
    sizes = [size for size in (9, 2 * subject.length + 3, 5) if subject.lengths(size)]
    sizes = sizes if len(sizes) > 1 else [3, subject.lengths(1, 2)[-1]]
    names = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    positions = torch.cat([torch.arange(size) for size in sizes])
    model, ids = subject.deep_model, tokens(2, len(names))
    case, mask = inputs(len(names)), (names[:, None] == names).tril()
    with torch.no_grad():
        whole = model(ids, document_ids=names.expand(2, -1), position_ids=positions).logits
    shared = attended(subject.enc, case, positions, None, "sdpa", mask)
    for name, size in enumerate(sizes):
        mine = names == name
        with torch.no_grad():
            alone = model(ids[:, mine], use_cache=False).logits
        measure.close(f"document of {size} tokens", whole[:, mine], alone, 2e-4, 1e-4)
        want = attended(subject.enc, case.tokens(mine), torch.arange(size), None, "sdpa")
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
        case = Inputs(*(x.requires_grad_() for x in inputs(length)))
        out = attended(subject.enc, case, positions, None, backend, mask)
        if not out.isfinite().all() or out[unseen].any():
            raise Broken(f"{backend}: a query that sees nothing gets {out[unseen].flatten()[:3]}")
        slopes = torch.autograd.grad(out.sum(), [*case], allow_unused=True)
        if not all(slope.isfinite().all() for slope in slopes if slope is not None):
            raise Broken(f"{backend}: a gradient is not finite")


@law
def unseen(subject: Subject, measure: Measure) -> None:
    """A key that a window or a chunk hides changes nothing, and gets no gradient."""
    if not subject.enc.hides:
        raise NotApplicable("hides no keys")
    length = subject.lengths(2 * subject.length)[-1]
    positions = torch.arange(length)
    shown = subject.enc.narrow(None, 1, length, positions.device).flatten()
    if shown.all():
        raise NotApplicable(f"hides nothing of {length} tokens")
    for backend in BACKENDS:
        case, other = inputs(length), inputs(length, seed=40)
        case = Inputs(*(x.requires_grad_() for x in case))
        # The shown tokens stay, and all others are replaced.
        pairs = zip(case, other, strict=True)
        mixed = Inputs(*(torch.where(shown[:, None], one, two) for one, two in pairs))
        out = attended(subject.enc, case, positions, None, backend)[:, :, -1]
        measure.close(f"keys changed, {backend}",
                      attended(subject.enc, mixed, positions, None, backend)[:, :, -1], out,
                      1e-6, 1e-6)  # fmt: skip
        slopes = torch.autograd.grad(out.sum(), [case.k, case.v])
        for slope in slopes:
            measure.equal(f"gradient, {backend}", slope[:, :, ~shown],
                          torch.zeros_like(slope[:, :, ~shown]))  # fmt: skip
