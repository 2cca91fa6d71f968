"""Laws about shifted positions and about positions that must be refused."""

import itertools

import torch

from pe.conformance.law import Broken, Measure, NotApplicable, law
from pe.conformance.subject import Subject, inputs, same_draw, scores, tokens

POSITIONS = [0, 1, 2, 3, 17, 300]
SHIFTS = (1, 511, 90_001)
FARTHEST = 100_000


@law
@torch.no_grad()
def shift(subject: Subject, measure: Measure) -> None:
    """Shifting all positions by the same amount changes no logit."""
    if not subject.enc.relative:
        raise NotApplicable("absolute")
    enc, case = subject.build().double(), inputs(len(POSITIONS) + 1).to(torch.float64)
    reach = subject.reach(POSITIONS)
    # Length-dependent encodings read the largest position, so that one is not shifted.
    last = torch.tensor([FARTHEST]) if enc.length_dependent else torch.tensor([]).long()

    def at(positions: torch.Tensor) -> torch.Tensor:
        n, positions = len(positions), torch.cat((positions, last))
        return scores(enc, case.tokens(slice(len(positions))), positions)[:, :, :n, :n]

    here = at(reach)
    for amount in SHIFTS:
        if len(subject.reach((reach + amount).tolist())) == len(reach):
            measure.close(f"shifted by {amount}", at(reach + amount), here, 1e-7, 0.0)


@law
@torch.no_grad()
def change(subject: Subject, measure: Measure) -> None:
    """Shifting all positions changes a logit or an embedding."""
    if subject.enc.relative:
        raise NotApplicable("relative")
    if subject.enc.random:
        raise NotApplicable("positions are drawn, and only their order is kept")
    enc = subject.build().double()
    # The first positions are also tried alone: a sequence of 300 tokens exceeds L unshifted.
    for amount, count in itertools.product((1, 17, 511, 90_001), (len(POSITIONS), 3)):
        positions = subject.reach(POSITIONS[:count])
        positions = positions[: len(subject.reach((positions + amount).tolist()))]
        if not len(positions):
            continue
        case = inputs(len(positions)).to(torch.float64)
        moved = (scores(enc, case, positions + amount) - scores(enc, case, positions)).abs().max()
        with same_draw():
            embedded = enc.embed(case.x, positions + amount) - enc.embed(case.x, positions)
        if max(float(moved), float(embedded.abs().max())) > 1e-6:
            return
    raise Broken("nothing changes when all positions are shifted: the encoding is relative")


# huggingface/transformers#97: a device-side assert, far from its cause.
@law
def limit(subject: Subject, measure: Measure) -> None:
    """The last position works, and the first one too far raises ValueError."""
    end = subject.enc.max_positions
    if end is None:
        raise NotApplicable("any position")
    model = subject.deep_model
    with torch.no_grad():
        logits = model(tokens(1, 1), position_ids=torch.tensor([end - 1]), use_cache=False).logits
        if not logits.isfinite().all():
            raise Broken(f"position {end - 1} gives logits that are not finite")
        try:
            model(tokens(1, 1), position_ids=torch.tensor([end]), use_cache=False)
        except ValueError:
            return
    raise Broken(f"position {end} is accepted")
