"""Positions are integers and phases exact, whatever the type of the model (A1, A3, A4, A6)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from pe.conformance.law import Broken, Measure, law
from pe.conformance.subject import FAR, Inputs, Subject, inputs, same_draw, scores
from pe.encodings import Encoding


def hooks(enc: Encoding, given: Inputs, positions: Tensor) -> dict[str, Tensor]:
    """What each hook gives, by name."""
    with same_draw():
        where = enc.prepare(positions, positions, given.q.dtype)
    q, k = enc.rotate(given.q, given.k, where.q_positions, where.k_positions, where.tables)
    state = enc.key_state(given.x)
    bias = enc.bias(given.q, given.k, where.q_positions, where.k_positions, state)
    found = {"queries": q, "keys": k, "embeddings": enc.embed(given.x, where.q_positions)}
    factor = enc.logit_scale(where.q_positions)
    more = {"key state": state, "bias": bias, "logit scale": factor}
    return found | {key: value for key, value in more.items() if value is not None}


@law
def precision(subject: Subject, measure: Measure) -> None:
    """float32 logits are the float64 ones, up to position 100,000."""
    enc, positions = subject.build(), subject.reach(FAR)
    given = inputs(len(positions))
    double = copy.deepcopy(enc).double()
    exact = scores(double, given.to(torch.float64), positions)
    measure.close("logits", scores(enc, given, positions), exact, 2e-5, 1e-5)
    with same_draw():
        embedded = double.embed(given.x.double(), positions)
    with same_draw():
        measure.close("embeddings", enc.embed(given.x, positions), embedded, 1e-5, 1e-5)


@law
def autocast(subject: Subject, measure: Measure) -> None:
    """Under autocast, phases and biases are still float32."""
    enc, positions = subject.build(), subject.reach(FAR)
    given = inputs(len(positions))
    plain = hooks(enc, given, positions)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = hooks(enc, given, positions)
    for name, value in plain.items():
        if cast[name].dtype != value.dtype:
            raise Broken(f"{name}: {cast[name].dtype} under autocast, {value.dtype} without")
        measure.close(name, cast[name], value, 1e-6, 1e-6)


@law
def cast(subject: Subject, measure: Measure) -> None:
    """After .to(bfloat16) or .half() results are rounded and constants are not."""
    for dtype in (torch.bfloat16, torch.float16):
        enc, positions = subject.build(), subject.reach(FAR)
        with torch.no_grad():  # numbers that survive the cast: only constants are at stake
            for parameter in enc.parameters():
                parameter.copy_(parameter.to(torch.bfloat16).to(torch.float16))
        given = inputs(len(positions)).to(dtype)
        before = hooks(enc, given.to(torch.float32), positions)
        logits = scores(enc, given.to(torch.float32), positions)
        after = hooks(enc.to(dtype), given, positions)
        if after["keys"].shape != before["keys"].shape:  # it spreads keys by the type's range
            for found in (before, after):
                del found["queries"], found["keys"]
            rounded = scores(enc, given, positions)
            measure.close(f"logits, {dtype}", rounded.float(), logits.float(), 2e-2, 2e-2)
        for name, value in before.items():
            got = after[name]
            if name in ("bias", "key state") and got.dtype != torch.float32:
                raise Broken(f"{name}: {got.dtype} after .to({dtype}), expected float32")
            # Rounding a result to 8 bits; what stays float32 is not rounded at all.
            atol, rtol = (1e-5, 1e-5) if got.dtype == torch.float32 else (8e-3, 1e-2)
            measure.close(f"{name}, {dtype}", got.float(), value.float(), atol, rtol)
