"""PoPE: its phases can leave their bounds, its scores are the complex form, its cost is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

import pe
from pe.encodings import Encoding, encoding
from pe.encodings.core.frequencies import cos_sin

TURN = 2 * math.pi


def pope(head_dim: int = 8, heads: int = 2, **options: object) -> Encoding:
    return encoding("pope", head_dim=head_dim, num_heads=heads, **options)  # type: ignore[arg-type]


def phase_loss(enc: Encoding, target: float) -> Tensor:
    """Distance of the phases that the encoding uses from a wished one, through its keys."""
    one = torch.ones(1, 2, 1, 8)
    zero = torch.zeros(1, dtype=torch.long)
    _, k = enc.rotate(one, one, zero, zero)
    cos, sin = k[..., :8] / softplus(one), k[..., 8:] / softplus(one)
    return ((cos - math.cos(target)) ** 2 + (sin - math.sin(target)) ** 2).sum()


def clamped_loss(delta: Tensor, target: float) -> Tensor:
    used = delta.clamp(-TURN, 0)
    return ((used.cos() - math.cos(target)) ** 2 + (used.sin() - math.sin(target)) ** 2).sum()


def test_a_phase_that_steps_over_its_bound_comes_back() -> None:
    enc = pope()
    delta = enc.get_parameter("delta")
    control = torch.nn.Parameter(delta.detach().clone())
    optimizer = torch.optim.SGD([delta, control], lr=0.1)

    def step(target: float) -> None:
        optimizer.zero_grad()
        (phase_loss(enc, target) + clamped_loss(control, target)).backward()
        optimizer.step()

    with torch.no_grad():  # a step of momentum, noise or decay has carried both over the bound
        delta.fill_(0.3)
        control.fill_(0.3)
    for _ in range(60):
        step(-1.0)
    torch.testing.assert_close(delta, torch.full_like(delta, -1.0), atol=1e-2, rtol=0)
    assert (control == 0.3).all()  # a plain clamp has no gradient ever again
    with torch.no_grad():
        delta.fill_(-TURN - 0.3)
    for _ in range(60):
        step(-TURN + 1.0)
    torch.testing.assert_close(delta, torch.full_like(delta, -TURN + 1.0), atol=1e-2, rtol=0)


def test_a_training_step_over_zero_and_back() -> None:
    enc = pope()
    delta = enc.get_parameter("delta")
    optimizer = torch.optim.AdamW([delta], lr=0.05, weight_decay=0.0)
    assert (delta == 0).all()
    for target in (0.5, -0.5):  # first pushed out, where the bound holds, then wanted inside
        for _ in range(100):
            optimizer.zero_grad()
            phase_loss(enc, target).backward()
            optimizer.step()
        if target > 0:
            assert (delta <= 0.05).all()  # no run-away beyond the bound
    torch.testing.assert_close(delta, torch.full_like(delta, -0.5), atol=0.02, rtol=0)


def test_the_gradient_is_stopped_outward_only() -> None:
    enc = pope()
    delta = enc.get_parameter("delta")
    for value, wish, moves in [
        (0.0, -1.0, True), (0.0, 1.0, False), (0.2, -1.0, True), (0.2, 1.0, False),
        (-TURN, -TURN + 1, True), (-TURN - 0.2, -TURN + 1, True), (-TURN - 0.2, -TURN - 1, False),
        (-3.0, -2.0, True), (-3.0, -4.0, True),
    ]:  # fmt: skip
        with torch.no_grad():
            delta.fill_(value)
        delta.grad = None
        phase_loss(enc, wish).backward()
        assert delta.grad is not None
        assert bool((delta.grad != 0).all()) == moves, (value, wish)
        assert bool((delta.grad == 0).all()) != moves, (value, wish)


def test_no_content_leaves_a_kernel_of_distance() -> None:
    """At distance 0, q = k = 0 gives sqrt(d) ln(2)^2; further away, less."""
    for d in (8, 64, 128):
        enc = pope(d)
        zero = torch.zeros(1, 2, 50, d, dtype=torch.float64)
        p = torch.arange(50)
        q, k = enc.double().rotate(zero, zero, p, p)
        logits = (q @ k.transpose(-1, -2) / math.sqrt(d)).detach()
        torch.testing.assert_close(
            logits.diagonal(dim1=-2, dim2=-1),
            torch.full((1, 2, 50), math.sqrt(d) * math.log(2) ** 2, dtype=torch.float64),
        )
        assert (logits[..., 49, :40] < logits[..., 49, 49:]).all()
    assert math.sqrt(64) * math.log(2) ** 2 == pytest.approx(3.84, abs=0.005)


def test_scores_equal_the_complex_form() -> None:
    """The logit is re(conj(softplus(q) e^{i t w}) softplus(k) e^{i (s w + delta)})."""
    enc = pope(16, 3, delta_init="uniform").double()
    enc.reset_parameters(torch.Generator().manual_seed(1))
    delta = enc.get_parameter("delta").detach()
    assert ((delta < 0) & (delta > -TURN)).all()
    assert delta.std() > 1
    q, k = torch.randn(2, 1, 3, 12, 16, dtype=torch.float64)
    t, s = torch.randint(0, 100_000, (2, 12))
    w = 10000.0 ** -(torch.arange(16, dtype=torch.float64) / 16)
    complex_q = torch.polar(softplus(q), (t[:, None] * w).expand_as(q))
    complex_k = torch.polar(softplus(k), s[:, None] * w + delta[:, None])
    want = (complex_q.conj() @ complex_k.transpose(-1, -2)).real
    a, b = enc.rotate(q, k, t, s)
    torch.testing.assert_close((a @ b.transpose(-1, -2)).detach(), want, atol=1e-9, rtol=1e-9)


def test_width_doubles_for_queries_and_keys_only() -> None:
    enc = pope(16, 4, num_kv_heads=2)
    q, k, v = torch.randn(1, 4, 9, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16)
    p = torch.arange(9)
    a, b = enc.rotate(q, k, p, p)
    assert (a.shape, b.shape) == ((1, 4, 9, 32), (1, 2, 9, 32))
    half, _ = pope(16, 2, rotary_fraction=0.5).rotate(q, k, p, p)
    assert half.shape[-1] == 16 + 8
    for backend in ("dense", "sdpa"):
        out = pe.attend(enc, q, k, v, p, p, backend=backend)
        assert out.shape == q.shape
        logits = (a @ b.repeat_interleave(2, 1).transpose(-1, -2) / 4).tril()  # scale of width 16
        logits = logits.masked_fill(torch.ones(9, 9).triu(1).bool(), float("-inf"))
        want = logits.softmax(-1) @ v.repeat_interleave(2, 1)
        torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)


def test_the_table_operator_keeps_its_contract() -> None:
    inv_freq = torch.rand(4, dtype=torch.float64)
    for positions in (torch.arange(5), torch.arange(6).view(2, 3), torch.tensor([100_000.0])):
        for dtype in (torch.float32, torch.float64):
            torch.library.opcheck(torch.ops.pe.cos_sin.default, (positions, inv_freq, dtype))
    cos, sin = cos_sin(torch.tensor([[3]]), inv_freq, torch.float64)
    assert torch.equal(cos, (3 * inv_freq).cos()[None, None])
    assert torch.equal(sin, (3 * inv_freq).sin()[None, None])
