"""An encoding acts along time, never along heads; axes mixed up run without an error (A13)."""

from __future__ import annotations

import torch
from torch import Tensor

from pe.conformance.law import Broken, Measure, NotPromised, law
from pe.conformance.subject import SIZES, Inputs, Subject, inputs, same_draw, scores


@law
def heads(subject: Subject, measure: Measure) -> None:
    """A head depends on itself alone; heads that are alike may change places."""
    enc, keys = subject.enc, SIZES["num_kv_heads"]
    group = SIZES["num_heads"] // keys
    # As many tokens as heads, so that exchanged axes raise no error of shape.
    positions = torch.arange(*subject.lengths(1, SIZES["num_heads"])[-1:])
    given, other = inputs(len(positions)), inputs(len(positions), seed=40)
    here = scores(enc, given, positions)
    for g in range(keys):
        mine = slice(g * group, (g + 1) * group)
        mixed = given._replace(q=other.q.clone(), k=other.k.clone())
        mixed.q[:, mine], mixed.k[:, g] = given.q[:, mine], given.k[:, g]
        measure.close(f"key head {g}, others changed", scores(enc, mixed, positions)[:, mine],
                      here[:, mine], 1e-5, 1e-5)  # fmt: skip
    twins = _twins(given)
    answers = scores(enc, twins, positions)
    if torch.allclose(answers, answers[:, :1].expand_as(answers), atol=1e-6):  # heads are alike
        order = torch.arange(keys).flip(0)
        queries = torch.arange(SIZES["num_heads"]).view(keys, group)[order].flatten()
        turned = given._replace(q=given.q[:, queries], k=given.k[:, order])
        measure.close("heads exchanged", scores(enc, turned, positions), here[:, queries],
                      1e-5, 1e-5)  # fmt: skip


@law
def time(subject: Subject, measure: Measure) -> None:
    """The same content is rotated differently at different positions."""
    if not subject.enc.rotates:
        raise NotPromised("does not rotate")
    positions = torch.arange(SIZES["num_heads"])
    given = inputs(len(positions))
    q = given.q[:, :, :1].expand_as(given.q)
    k = given.k[:, :, :1].expand_as(given.k)
    turning = 0  # a schedule may leave some layers unrotated
    for enc in subject.layers():
        with same_draw():
            where = enc.prepare(positions, positions)
        turned = enc.rotate(q, k, where.q_positions, where.k_positions, where.tables)
        if torch.equal(turned[0], q) and torch.equal(turned[1], k):
            continue
        turning += 1
        for name, x in zip(("query", "key"), turned, strict=True):
            if (x[:, :, 1:] - x[:, :, :1]).abs().amax(-1).min() < 1e-6:
                raise Broken(f"a {name} is rotated alike at two positions")
    if not turning:
        raise Broken("no layer rotates")


def _twins(given: Inputs) -> Inputs:
    """All heads with the content of the first."""

    def alike(x: Tensor) -> Tensor:
        return x[:, :1].expand_as(x)

    return given._replace(q=alike(given.q), k=alike(given.k))
