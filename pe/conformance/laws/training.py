"""Gradients are finite at any size of queries and keys, and those of the formula."""

from typing import NamedTuple

import torch
from torch import Tensor

from pe.conformance.law import Broken, Measure, law
from pe.conformance.subject import (
    Inputs,
    Subject,
    attended,
    drawn,
    inputs,
    learned,
    nudged,
    same_draw,
    scores,
)
from pe.encodings import Encoding


class Step(NamedTuple):
    """The width of a finite difference, and the error that it may have."""

    width: float
    error: float
    rounding: float


STEPS = Step(1e-6, 1e-5, 1e-15), Step(1e-2, 1e-2, 1e-7)


# DAMO-NLP-SG/CLEX#11: infinite gradients.
@law
def gradients(subject: Subject, measure: Measure) -> None:
    """Gradients are finite at ten scales and reach all learned numbers."""
    enc, length = subject.build().train(), subject.lengths(1, 8)[-1]
    positions = torch.arange(length)
    names = learned(enc)
    reached: set[str] = set()
    for scale in 10 ** torch.linspace(-6, 3, 10):
        case = Inputs(*((x * scale).requires_grad_() for x in inputs(length)))
        with same_draw():
            embedded = enc.embed(case.x, positions)
        loss = attended(enc, case, positions).square().sum() + embedded.square().sum()
        wanted: dict[str, Tensor] = {"queries": case.q, "keys": case.k, "input": case.x, **names}
        slopes = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        for name, gradient in zip(wanted, slopes, strict=True):
            if gradient is not None and not gradient.isfinite().all():
                raise Broken(f"{name}: a gradient is not finite at scale {scale:.0e}")
            if gradient is not None and gradient.abs().max() > 0:
                reached.add(name)
    lost = [name for name in names if name not in reached]
    if lost:
        raise Broken(f"no gradient reaches {', '.join(lost)}")


@law
def formula(subject: Subject, measure: Measure) -> None:
    """Gradients agree with finite differences."""
    refusals = []
    # A learned number may begin on the bound of its range, and is right on one side only. And what
    # computes in float32 throughout, as it may, shows a slope over a wide step only.
    for step in STEPS:
        for side in (1.0, -1.0):
            measure.reset()
            enc = nudged(subject.build(), side=side).double().train()
            try:
                return _compare(enc, subject.reach([0, 1, 5, 9, 900]), measure, step)
            except Broken as refusal:
                refusals.append(refusal)
    raise refusals[0]


def _compare(enc: Encoding, positions: Tensor, measure: Measure, step: Step) -> None:
    """The slope along a random direction of each input, by autograd and by two evaluations."""
    case = inputs(len(positions), batch=1).to(torch.float64)

    def value() -> Tensor:
        with same_draw():
            embedded = enc.embed(case.x, positions)
        logits = scores(enc, case, positions)
        return (logits * drawn(*logits.shape, seed=5)).sum() + (embedded * toward).sum()

    toward = drawn(*case.x.shape, seed=6)
    wanted = {"queries": case.q, "keys": case.k, "input": case.x} | learned(enc)
    for tensor in wanted.values():
        tensor.requires_grad_()
    slopes = torch.autograd.grad(value(), list(wanted.values()), allow_unused=True)
    for (name, tensor), slope in zip(wanted.items(), slopes, strict=True):
        direction = drawn(*tensor.shape, seed=8).double()
        with torch.no_grad():
            tensor.add_(direction, alpha=step.width)
            above = value()
            tensor.sub_(direction, alpha=2 * step.width)
            below = value()
            tensor.add_(direction, alpha=step.width)
            along = torch.zeros(()) if slope is None else (slope * direction).sum()
        difference = (above - below) / (2 * step.width)
        rounded = step.rounding * float(above.abs()) / step.width  # in a difference of large sums
        measure.close(f"slope along {name}", along, difference, step.error + rounded, step.error)
