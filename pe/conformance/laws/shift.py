"""Relative encodings see distances only; absolute ones see more, or need not be called absolute."""

from __future__ import annotations

import itertools

import torch

from pe.conformance.law import Broken, Measure, NotPromised, law
from pe.conformance.subject import Subject, inputs, same_draw, scores

PLACES = [0, 1, 2, 3, 17, 300]
SHIFTS = (1, 511, 90_001)
FARTHEST = 100_000


@law
@torch.no_grad()
def shift(subject: Subject, measure: Measure) -> None:
    """Shifting all positions by the same amount changes no logit."""
    if not subject.enc.relative:
        raise NotPromised("absolute")
    enc, given = subject.build().double(), inputs(len(PLACES) + 1).to(torch.float64)
    reach = subject.reach(PLACES)
    # What depends on the length sees the largest position, so that one stays where it is.
    last = torch.tensor([FARTHEST]) if enc.length_dependent else torch.tensor([]).long()

    def at(places: torch.Tensor) -> torch.Tensor:
        n = len(places)
        these = given._replace(
            q=given.q[:, :, : n + len(last)], k=given.k[:, :, : n + len(last)],
            x=given.x[:, : n + len(last)],
        )  # fmt: skip
        return scores(enc, these, torch.cat((places, last)))[:, :, :n, :n]

    here = at(reach)
    for amount in SHIFTS:
        if len(subject.reach((reach + amount).tolist())) == len(reach):
            measure.close(f"shifted by {amount}", at(reach + amount), here, 1e-7, 0.0)


@law
@torch.no_grad()
def change(subject: Subject, measure: Measure) -> None:
    """Shifting all positions changes a logit or an embedding."""
    if subject.enc.relative:
        raise NotPromised("relative")
    if subject.enc.random:
        raise NotPromised("positions are drawn, and only their order is kept")
    enc = subject.build().double()
    # The first few alone as well: a text of 300 tokens is long already, and stays so when shifted.
    for amount, count in itertools.product((1, 17, 511, 90_001), (len(PLACES), 3)):
        places = subject.reach(PLACES[:count])
        places = places[: len(subject.reach((places + amount).tolist()))]
        if not len(places):
            continue
        given = inputs(len(places)).to(torch.float64)
        moved = (scores(enc, given, places + amount) - scores(enc, given, places)).abs().max()
        with same_draw():
            embedded = enc.embed(given.x, places + amount) - enc.embed(given.x, places)
        if max(float(moved), float(embedded.abs().max())) > 1e-6:
            return
    raise Broken("nothing changes when all positions are shifted: the encoding is relative")
