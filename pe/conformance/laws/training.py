"""Laws about gradients: they are finite, reach all parameters, and agree with differences."""

from collections.abc import Container, Iterator
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
    """The width of a finite difference, and the tolerances of the slope that it gives."""

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
    refusals: dict[str, tuple[Broken, Measure]] = {}
    agreeing: set[str] = set()
    # Each input has to agree in one of several cases. A parameter that begins on the bound of its
    # range has the right slope on one side only. An encoding that computes in float32 throughout,
    # which is allowed, has a measurable slope over a wide step only. But a wide step along a
    # learned frequency rotates far positions by many radians.
    for step in STEPS:
        for side in (1.0, -1.0):
            enc = nudged(subject.build(), side=side).double().train()
            for name, slope in _slopes(enc, subject.reach([0, 1, 5, 9, 900]), step, agreeing):
                compared = Measure()
                try:
                    compared.close(f"slope along {name}", *slope)
                except Broken as broken:
                    refusals.setdefault(name, (broken, compared))
                else:
                    agreeing.add(name)
                    measure.keep_worse(compared.error, compared.allowed)
            if agreeing.issuperset(refusals):
                return
    refusal, compared = next(refusals[name] for name in refusals if name not in agreeing)
    measure.error, measure.allowed = compared.error, compared.allowed
    raise refusal


def _slopes(
    enc: Encoding, positions: Tensor, step: Step, without: Container[str]
) -> Iterator[tuple[str, tuple[Tensor, Tensor, float, float]]]:
    """Yield the slope along a random direction of each input, by autograd and by a difference.

    Each item is the name of an input and the other arguments of `Measure.close`. Inputs in
    ``without`` are left out.
    """
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
        if name in without:
            continue
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
        yield name, (along, difference, step.error + rounded, step.error)
