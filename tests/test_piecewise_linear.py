"""Far away KERPLE's logarithm is taken for a line a row, and that is as good as exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pe.attention.kernels.flash import op as ops
from pe.attention.kernels.flash import piecewise_linear
from pe.attention.kernels.flash import self_check as cases
from pe.attention.kernels.flash.blocks import plan_for
from pe.attention.kernels.flash.launch import backward, forward
from pe.encodings.core.forms import FIRE, LOG2E, LOGARITHM, Form, by_logarithm, fire, matrix

LENGTH = 704
FIRST, SECOND = torch.tensor([0.0004, 0.2]), torch.tensor([0.5, 0.01])


def bias(first: Tensor, second: Tensor, distance: Tensor) -> Tensor:
    return -first[:, None, None] * torch.log1p(second[:, None, None] * distance)


def test_the_line_is_as_close_as_it_says_from_where_it_says() -> None:
    """Over every piece of 32 to 128 tokens that begins there or later, for steep and flat alike."""
    for x0 in (0.01, 0.3, 2.0, 20.0):
        for side in (32, 64, 128):
            begin = math.ceil(piecewise_linear.SIDES.value * side * math.sqrt(x0)) + 1
            for x1 in (1e-3, 0.1, 1.0, 50.0):
                for start in (begin, 2 * begin, 50 * begin):
                    d = start + torch.arange(side, dtype=torch.float64)
                    node, middle = side * piecewise_linear.NODE.value, float(d.mean())
                    more, less = (math.log2(1 + x1 * (middle + s * node)) for s in (1, -1))
                    line = (more + less) / 2 + (d - middle) * (more - less) / (2 * node)
                    off = x0 * (torch.log2(1 + x1 * d) - line).abs().max()
                    assert off <= piecewise_linear.BITS, (x0, side, x1, start)


def given(dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and the gradient of the output, drawn in 16 bits."""
    generator = torch.Generator().manual_seed(0)
    heads = (2, 1, 1, 2)
    drawn = [torch.randn(1, h, LENGTH, 16, generator=generator).half() for h in heads]
    return [x.to(dtype) for x in drawn]


def by_kernel(dtype: torch.dtype) -> list[Tensor]:
    q, k, v, gradient = given(dtype)
    form = by_logarithm(FIRST, SECOND)
    how = form.kind, form.own, list(form.parts), form.reach
    out, lse, beyond = forward(q, k, v, 0.25, *how)
    return [out, *backward(gradient, q, k, v, out, lse, beyond, 0.25, *how, True)[:4]]


def by_definition() -> list[Tensor]:
    q, k, v, gradient = (x.double().requires_grad_() for x in given(torch.float32))
    first, second = (x.double().requires_grad_() for x in (FIRST, SECOND))
    place = torch.arange(LENGTH, dtype=torch.float64)
    distance = place[:, None] - place
    logits = 0.25 * q @ k.transpose(-1, -2) + bias(first, second, distance.clamp(min=0))
    logits = logits.masked_fill(distance < 0, -math.inf)
    out = logits.softmax(-1) @ v
    grads = torch.autograd.grad(out, (q, k, v, first, second), gradient.detach())
    return [out.detach(), *grads[:3], torch.stack(grads[3:], -1)]


def test_far_blocks_agree_with_the_definition_forward_and_backward() -> None:
    """The end of this sequence is far for both heads; of a weak bias not all that lies before it.

    A line over the first tokens would do for what 0.0004 adds, and not for the gradient of 0.0004.
    """
    begins = piecewise_linear.SIDES.value * 64 * FIRST.sqrt()
    assert begins[0] < 64 < piecewise_linear.MIN_SIDES.value * 64 < LENGTH - 128
    assert piecewise_linear.MIN_SIDES.value * 64 < begins[1] < LENGTH - 128
    *fast, own = by_kernel(torch.float16)
    *exact, own_exact = by_definition()
    for name, some, want in zip(("out", "q", "k", "v"), fast, exact, strict=True):
        assert float((some.double() - want).norm() / want.norm()) < 6e-4, name
    off = (own.double() - own_exact).abs() / own_exact.abs()
    assert float(off.max()) < 1e-3, off


def test_only_numbers_of_16_bits_take_the_line() -> None:
    kind = by_logarithm(FIRST, SECOND).kind
    assert piecewise_linear.takes_lines(kind, torch.float16, 1)
    assert not piecewise_linear.takes_lines(kind, torch.float32, 10**6)
    assert piecewise_linear.takes_lines(FIRE, torch.bfloat16, piecewise_linear.LONG)
    assert not piecewise_linear.takes_lines(FIRE, torch.bfloat16, piecewise_linear.LONG - 1), (
        "not worth the look"
    )


def test_the_check_before_first_use_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float16 its case has blocks that take them, in all three passes."""
    monkeypatch.setattr(cases, "BATCH", 1)
    case = cases.case(LOGARITHM, 0, 16, 16, torch.float16, torch.device("cpu"))
    assert piecewise_linear.takes_lines(LOGARITHM, torch.float16, case.q.shape[2])
    begins = 64 * max(
        piecewise_linear.MIN_SIDES.value,
        piecewise_linear.SIDES.value * float(case.form.own[1, 0]) ** 0.5,
    )
    assert begins + 128 < case.q.shape[2]
    ops.self_check.__wrapped__(LOGARITHM, 0, 16, 16, torch.float16, torch.device("cpu"))


def some_lines(form: Form, length: int) -> bool:
    """In all three passes."""
    plan = plan_for(16, 16, form.kind, 0)
    cuts = (plan.forward, False), (plan.queries, False), (plan.keys, True)
    found = [
        piecewise_linear.lines(list(form.parts), length, b.queries, b.keys, turned)
        for b, turned in cuts
    ]
    return all(bool((f >= 0).any()) for f in found)


def test_the_check_of_a_network_has_lines_too() -> None:
    given = FIRE, 0, 16, 16, torch.bfloat16, torch.device("cpu")
    case = cases.case(*given)
    assert some_lines(case.form, case.q.shape[2])


def network(dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], float]:
    """c, the multiplier of L, weights and offsets of three units to two heads; and L."""
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(*size, generator=generator) for size in ((3, 1), (3,), (2, 3), (2,))]
    drawn[1] = -drawn[0][:, 0] * torch.tensor([0.3, 0.85, 0.97])  # corners near and far
    return [x.to(dtype) for x in (torch.tensor([0.7]), torch.tensor([1.1]), *drawn)], 700.0


def of_fire(length: int) -> tuple[Form, list[Tensor]]:
    """The form, and the numbers that are to get gradients."""
    numbers, bound = network()
    for number in numbers:
        number.requires_grad_()
    return fire(*numbers, bound, 1e-6, length), numbers[:5]


def fire_by_definition(length: int, given: list[Tensor]) -> list[Tensor]:
    numbers, bound = network(torch.float64)
    for number in numbers:
        number.requires_grad_()
    c, multiplier, weight, offset, head_weight, head_offset = numbers
    q, k, v, gradient = (x.double().requires_grad_() for x in given)
    place = torch.arange(length, dtype=torch.float64)
    distance = (place[:, None] - place).clamp(min=0)
    reach = torch.maximum(place, (multiplier * bound).abs())
    share = (c.abs() * distance).log1p() / ((c.abs() * reach).log1p() + 1e-6)[:, None]
    hidden = (share[..., None] * weight[:, 0] + offset).relu()
    logits = 0.25 * q @ k.transpose(-1, -2) + (hidden @ head_weight.T + head_offset).movedim(-1, 0)
    out = logits.masked_fill(place[:, None] < place, -math.inf).softmax(-1) @ v
    own = c, multiplier, weight, offset, head_weight
    grads = torch.autograd.grad(out, (q, k, v, *own), gradient.detach())
    return [out.detach(), *grads]


@pytest.mark.parametrize("turned", [False, True])
def test_blocks_in_one_piece_of_a_network_have_lines_within_the_bound(turned: bool) -> None:
    length = 3000
    form, _ = of_fire(length)
    found = piecewise_linear.lines(list(form.parts), length, 64, 64, turned)
    assert 0.2 < float((found >= 0).float().mean()) * 2 < 0.9
    pieces, _, knots = form.parts[:3]
    exact = matrix(form, length)[0].detach().double() * LOG2E
    for head, row, column in (found >= 0).nonzero()[::97].tolist():
        i0, j0 = 64 * row, 64 * column
        block = exact[head, i0 : i0 + 64, j0 : j0 + 64]
        block = block.T if turned else block
        a, b = 10, 53
        slope = (block[:, b] - block[:, a]) / (b - a)
        line = block[:, a, None] + slope[:, None] * (torch.arange(block.shape[1]) - a)
        assert float((line - block).abs().max()) < 1.5 * piecewise_linear.BITS + 2e-5
        piece = int(found[head, row, column]) % piecewise_linear.REGION.value
        height, rise = pieces[head, piece + 1].tolist()
        nearest = i0 - j0 - 63
        share = math.log2(1 + 0.7 * nearest) * float(knots[i0])
        corner = float(exact[head, i0, j0 + 63]) if i0 < length else 0.0
        assert abs(height + rise * (share - 0.5) - corner) < 1e-3


def test_far_blocks_of_a_network_agree_with_the_definition_forward_and_backward() -> None:
    length = 832
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(1, h, length, 16, generator=generator).half() for h in (2, 1, 1, 2)]
    form, leaves = of_fire(length)
    assert some_lines(form, length)
    q, k, v, gradient = given
    how = 0.25, form.kind, form.own, list(form.parts), form.reach
    out, lse, beyond = forward(q, k, v, *how, long=0)
    found = backward(gradient, q, k, v, out, lse, beyond, *how, True, long=0)
    numbers = torch.autograd.grad(form.own, leaves, found[3])
    names = ("out", "q", "k", "v", "c", "multiplier", "weight", "offset", "head weight")
    exact = fire_by_definition(length, given)
    for name, fast, want in zip(names, (out, *found[:3], *numbers), exact, strict=True):
        bound = 6e-4 if fast.dim() == 4 else 5e-5
        assert float((fast.double() - want).norm() / want.norm()) < bound, name
