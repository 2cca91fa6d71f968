"""Gradients are finite at any size of queries and keys, and those of the formula (B18)."""

from __future__ import annotations

import torch
from torch import Tensor

from pe.conformance.law import Broken, Measure, NotPromised, law
from pe.conformance.subject import (
    Inputs,
    Subject,
    attended,
    drawn,
    inputs,
    nudged,
    same_draw,
    scores,
)
from pe.encodings import Encoding

STEP = 1e-6  # of the finite differences


@law
def gradients(subject: Subject, measure: Measure) -> None:
    """Gradients are finite at ten scales and reach all learned numbers."""
    enc, length = subject.build(), subject.lengths(1, 8)[-1]
    positions = torch.arange(length)
    names = dict(enc.named_parameters())
    reached: set[str] = set()
    for scale in 10 ** torch.linspace(-6, 3, 10):
        given = Inputs(*((x * scale).requires_grad_() for x in inputs(length)))
        with same_draw():
            embedded = enc.embed(given.x, positions)
        loss = attended(enc, given, positions).square().sum() + embedded.square().sum()
        wanted: dict[str, Tensor] = {"queries": given.q, "keys": given.k, "input": given.x, **names}
        found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        for name, gradient in zip(wanted, found, strict=True):
            if gradient is not None and not gradient.isfinite().all():
                raise Broken(f"{name}: a gradient is not finite at scale {scale:.0e}")
            if gradient is not None and gradient.abs().max() > 0:
                reached.add(name)
    lost = [name for name in names if name not in reached]
    if lost:
        raise Broken(f"no gradient reaches {', '.join(lost)}")


@law
def formula(subject: Subject, measure: Measure) -> None:
    """Gradients agree with finite differences in float64."""
    refusals = []
    # A learned number may begin on the bound of its range, and is right on one side only.
    for side in (1.0, -1.0):
        enc = nudged(subject.build(), side=side).double()
        try:
            return _compare(enc, subject.reach([0, 1, 5, 9, 900]), measure)
        except Broken as refusal:
            refusals.append(refusal)
            measure.reset()
    raise refusals[0]


def _compare(enc: Encoding, positions: Tensor, measure: Measure) -> None:
    """The slope along a random direction of each input, by autograd and by two evaluations."""
    given = inputs(len(positions), batch=1).to(torch.float64)
    learned = dict(enc.named_parameters())
    with torch.no_grad():
        bias = enc.bias(given.q, given.k, positions, positions, enc.key_state(given.x))
    coarse = bias is not None and bias.dtype != torch.float64
    if coarse and (learned or enc.content_dependent):
        raise NotPromised("its bias is float32 for float64 inputs too")

    def value() -> Tensor:
        with same_draw():
            embedded = enc.embed(given.x, positions)
        logits = scores(enc, given, positions)
        return (logits * drawn(*logits.shape, seed=5)).sum() + (embedded * toward).sum()

    toward = drawn(*given.x.shape, seed=6)
    wanted = {"queries": given.q, "keys": given.k, "input": given.x} | learned
    for tensor in wanted.values():
        tensor.requires_grad_()
    slopes = torch.autograd.grad(value(), list(wanted.values()), allow_unused=True)
    for (name, tensor), slope in zip(wanted.items(), slopes, strict=True):
        direction = drawn(*tensor.shape, seed=8).double()
        with torch.no_grad():
            tensor.add_(direction, alpha=STEP)
            above = value()
            tensor.sub_(direction, alpha=2 * STEP)
            below = value()
            tensor.add_(direction, alpha=STEP)
            found = torch.zeros(()) if slope is None else (slope * direction).sum()
        difference = (above - below) / (2 * STEP)
        noise = 1e-9 * float(above.abs())  # what rounding leaves in a difference of two large sums
        measure.close(f"slope along {name}", found, difference, 1e-5 + noise, 1e-5)
