"""Keys whose weights underflow are skipped, and that changes nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pe.attention.kernels.flash import horizon as module
from pe.attention.kernels.flash import op as ops
from pe.attention.kernels.flash.horizon import FALLING, farthest, horizon
from pe.attention.kernels.flash.launch import ALL_KEYS, backward, forward
from pe.encodings.core import forms
from pe.encodings.core.forms import Form, by_key, by_power

LENGTH = 300
STEEP = 2.0


def rising(kind: str) -> Form:
    """Two heads: one whose bias falls fast and one in which all keys count."""
    if kind == "power":
        return by_power(torch.tensor([STEEP, 0.001]), torch.tensor([1.0, 0.5]))
    steps = torch.full((1, 2, LENGTH), STEEP, dtype=torch.float64)
    steps[:, 1] = 0.001
    if kind == "uneven":  # up and down, as nobody's gates are
        steps += 3.0 * torch.randn(steps.shape, generator=torch.Generator().manual_seed(3))
    return by_key(steps.cumsum(-1))


def inputs(size: float = 1.0) -> list[Tensor]:
    """q, k, v and the gradient of the output; the two heads share their keys."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, gradient = (torch.randn(1, h, LENGTH, 16, generator=generator) for h in (2, 1, 1, 2))
    return [q * size, k, v, gradient]


def computed(form: Form, given: list[Tensor], least: int) -> list[Tensor]:
    """o, dq, dk, dv and the gradient of the bias' own numbers."""
    q, k, v, gradient = given
    bias = form.kind, form.own, list(form.parts), form.reach
    out, lse, beyond = forward(q, k, v, 0.25, *bias, least)
    assert beyond.numel() == (2 if least <= LENGTH else 0)
    return [out, *backward(gradient, q, k, v, out, lse, beyond, 0.25, *bias, True)[:4]]


@pytest.mark.parametrize(("kind", "size"), [("even", 8.0), ("uneven", 0.5), ("power", 8.0)])
def test_skipping_what_is_beyond_the_horizon_changes_nothing(kind: str, size: float) -> None:
    form, given = rising(kind), inputs(size)
    names = ("out", "q", "k", "v", "own")
    for name, some, every in zip(
        names, computed(form, given, 0), computed(form, given, LENGTH + 1), strict=True
    ):
        assert float((some - every).norm()) <= 2e-6 * float(every.norm()), name


@pytest.mark.parametrize("kind", ["even", "power"])
def test_what_is_beyond_the_horizon_is_not_read(kind: str) -> None:
    form = rising(kind)
    q, k, v, gradient = inputs()
    v[:, :, :128] = math.nan
    out = computed(form, [q, k, v, gradient], 0)[0]
    assert torch.isfinite(out[:, 0, 256:]).all()  # by the steep head
    assert torch.isnan(out[:, 0, :128]).all()
    assert torch.isnan(out[:, 1]).all()  # the other looks at everything

    q, k, v, gradient = inputs()
    gradient[:, 0, 256:] = math.nan  # queries whom the first keys do not concern
    _, dq, dk, dv, _ = computed(form, [q, k, v, gradient], 0)
    assert torch.isfinite(dq[:, 0, :256]).all()
    assert torch.isfinite(dk[:, :, :128]).all()
    assert torch.isfinite(dv[:, :, :128]).all()
    assert torch.isnan(dv[:, :, 256:]).all()


def test_a_far_key_that_outweighs_its_bias_is_not_skipped() -> None:
    """The bound follows the largest logits there are."""
    form = rising("even")
    q, k, v, gradient = inputs(0.01)
    v[:, :, 5] = 100.0
    q[:, 0, -1] = 0
    k[:, :, 5] = 0
    q[:, 0, -1, 0] = 80.0
    k[:, :, 5, 0] = 4.4 * LENGTH * STEEP / 80.0
    out, *_ = computed(form, [q, k, v, gradient], 0)
    assert torch.allclose(out[0, 0, -1], torch.full((16,), 100.0), atol=0.5)


def test_the_horizon_bounds_the_logits_of_every_pair() -> None:
    q, k, *_ = inputs(3.0)
    logits = 0.25 * forms.LOG2E * (q @ k.transpose(-1, -2))
    most = (horizon(q, k, 0.25) - 24 - math.log2(LENGTH)) / 2
    assert (logits.abs().amax((-1, -2)) <= most * (1 + 1e-6)).all()


@pytest.mark.parametrize("length", [1, 128, 300])
def test_the_horizon_follows_the_longest_query_and_key_of_a_head(length: int) -> None:
    """Four heads to two of keys, tokens first in memory, the longest anywhere."""
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(2, length, h, 16, generator=generator).transpose(1, 2) for h in (4, 2))
    for x in (q, k):
        for place in torch.randint(length, x.shape[:2], generator=generator).flatten().tolist():
            x[:, :, place] *= 3.0
    found = horizon(q, k, 0.25)
    longest = [x.norm(dim=-1).amax(-1) for x in (q, k)]
    most = 0.25 * forms.LOG2E * longest[0] * longest[1].repeat_interleave(2, 1)
    assert torch.allclose(found, 2 * most + 24 + math.log2(length), rtol=1e-6)


def test_the_largest_of_more_chunks_than_are_read_at_once() -> None:
    """As in sequences of more than 16,384 tokens; the largest is in the last chunk."""
    squares = torch.arange(300, dtype=torch.float32).view(1, 1, 300)
    found = torch.empty(1, 1)
    farthest[(1, 1)](squares, squares, found, 300, 1, 0.5, 7.0)
    assert found.item() == 0.5 * 299 + 7


@pytest.mark.parametrize("length", [39, 40])
def test_compiled_code_expects_what_the_operator_gives(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `LEAST` tokens on there is a horizon, for kinds that fall."""
    monkeypatch.setattr(module, "LEAST", 40)
    q, k, v = (torch.randn(1, 1, length, 16) for _ in range(3))
    for form in (by_power(torch.ones(1), torch.ones(1)), by_key(torch.arange(length)[None, None])):
        given = 0.25, *form[:2], list(form.parts), form.reach, *ALL_KEYS, None
        real = ops.attend(q, k, v, *given)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = ops.attend(*(mode.from_tensor(x) for x in (q, k, v)), *given)
        assert [x.shape for x in fake] == [x.shape for x in real]
        assert real[2].shape == ((1, 1) if length == 40 else (0,))


def test_a_bias_that_does_not_fall_has_no_horizon() -> None:
    assert set(FALLING) == {forms.KEYS, forms.POWER}
    q, k, v, _ = inputs()
    table = forms.by_distance(torch.zeros(2, LENGTH))
    assert forward(q, k, v, 0.25, table.kind, table.own, [], 0, 0)[2].numel() == 0
