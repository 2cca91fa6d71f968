"""One temperature per head, and training that changes an encoding's own parameters alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import train_tiny, weights

from pe.attention import attend
from pe.encodings import encoding
from pe.encodings.head_scale import HeadScale


def test_a_factor_multiplies_the_logits_of_its_head() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 16, dtype=torch.float64).unbind()
    enc = HeadScale(2).double()
    with torch.no_grad():
        enc.scale.copy_(torch.tensor([1.6, 3.0]))
    for head, factor in enumerate((1.6, 3.0)):
        logits = factor / math.sqrt(16) * q[0, head] @ k[0, head].T
        hidden = torch.ones(5, 5).triu(1).bool()
        want = logits.masked_fill(hidden, -math.inf).softmax(-1) @ v[0, head]
        torch.testing.assert_close(attend(enc, q, k, v)[0, head], want)


def test_it_begins_as_the_model_without_encoding() -> None:
    q, k, v = torch.randn(3, 1, 4, 5, 16).unbind()
    nope = attend(encoding("nope", head_dim=16, num_heads=4), q, k, v)
    assert torch.equal(attend(encoding("head_scale", head_dim=16, num_heads=4), q, k, v), nope)


def test_a_factor_below_the_least_acts_as_the_least_and_can_return() -> None:
    enc = HeadScale(2, start=1.6)
    with torch.no_grad():
        enc.scale[0] = 0.4  # where one step may carry it
    scale = enc.logit_scale(torch.arange(3))
    assert scale.tolist() == [[1.0], [pytest.approx(1.6)]]
    (up,) = torch.autograd.grad(-scale.sum(), [enc.scale], retain_graph=True)
    (down,) = torch.autograd.grad(scale.sum(), [enc.scale])
    assert up.tolist() == [-1, -1]
    assert down.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("option", "value"), [("start", 0.5), ("least", -1.0), ("start", math.inf)]
)
def test_a_start_below_the_least_is_refused(option: str, value: float) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(ValueError, match=option):
        encoding("head_scale", head_dim=16, num_heads=4, **options)


@pytest.mark.usefixtures("alone")
def test_tuning_the_encoding_alone_changes_nothing_else(shared: Path, tmp_path: Path) -> None:
    parent = train_tiny(tmp_path, shared, pe="nope", steps=1, warmup_steps=0)
    options = {"start_from": parent.name, "tune": "encoding", "steps": 3, "warmup_steps": 0}
    run = train_tiny(
        tmp_path, shared, pe="head_scale", pe_options={"start": 1.5}, context_length=32, **options
    )
    before, after = weights(parent), weights(run)
    new = after.keys() - before.keys()
    assert len(new) == 2
    for name in before:
        assert torch.equal(before[name], after[name]), name
    for name in new:
        assert (after[name] != 1.5).all(), name
    with pytest.raises(ValueError, match="tune: nope has no parameters"):
        train_tiny(tmp_path, shared, pe="nope", **options)
    with pytest.raises(ValueError, match="tune: 'encoding' keeps all other weights"):
        train_tiny(tmp_path, shared, pe="head_scale", tune="encoding")
