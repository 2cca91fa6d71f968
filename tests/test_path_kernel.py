"""PaTH's kernels, interpreted on the CPU, against the definition: values and every gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from kernel_cases import catches, on_both, path_on_a_gpu, poison
from torch import Tensor
from torch.nn.functional import normalize

from pe.attention.available import INTERPRETED

path = pytest.importorskip("pe.attention.kernels.path.op", reason="needs triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled here")


def case(
    length: int, heads: int = 2, kv: int = 2, batch: int = 1, width: int = 16, value: int = 16
) -> list[Tensor]:
    """Return q, k, v, state and the gradient of the output; tokens are first in memory."""
    generator = torch.Generator().manual_seed(length)

    def drawn(count: int, size: int) -> Tensor:
        return torch.randn(batch, length, count, size, generator=generator).transpose(1, 2)

    state = torch.cat((normalize(drawn(heads, width), dim=-1), 2 * drawn(heads, 1).sigmoid()), -1)
    return [drawn(heads, width), drawn(kv, width), drawn(kv, value), state, drawn(heads, value)]


def definition(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> Tensor:
    """Follow all queries back through the text, one reflection after the other."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    w, beta = state[..., :-1], state[..., -1]
    length, columns = q.shape[2], []
    for n in reversed(range(length)):
        columns.append(q @ k[:, :, n, :, None] / math.sqrt(q.shape[-1]))
        past = (torch.arange(length) >= n)[:, None]
        a = (q @ w[:, :, n, :, None]) * beta[:, :, None, n, None] * past
        q = q - a * w[:, :, None, n]
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    return torch.cat(columns[::-1], -1).masked_fill(ahead, -torch.inf).softmax(-1) @ v


def slopes(inputs: list[Tensor], gradient: Tensor, fast: bool) -> list[Tensor]:
    """Return the output and the gradients of q, k, v and state."""
    inputs = [(x if fast else x.double()).detach().requires_grad_() for x in inputs]
    out = path.attend(*inputs)[0] if fast else definition(*inputs)
    found = torch.autograd.grad((out * gradient).sum(), inputs, materialize_grads=True)
    return [out.detach(), *found]


def agree(fast: list[Tensor], exact: list[Tensor], tolerance: float = 3e-6) -> None:
    for name, got, want in zip(("o", "q", "k", "v", "state"), fast, exact, strict=True):
        assert torch.isfinite(got).all(), name
        error, size = float((got - want).norm()), float(want.norm())
        # What is exactly 0 is a difference of equal products, of which their rounding is left.
        assert error <= (tolerance * size + 1e-6 if size else 3e-6), (name, error, size)


@pytest.mark.parametrize("case", [
    case(1), case(63), case(64, kv=1), case(65, heads=4), case(200, heads=1, kv=1),
    case(90, heads=3, kv=1, batch=2, value=32), case(90, heads=1, kv=1, width=32),
])  # fmt: skip
def test_kernels_agree_with_the_definition(case: list[Tensor]) -> None:
    """Lengths that chunks divide and that they do not, heads that share keys, wider values."""
    *inputs, gradient = case
    exact = slopes(inputs, gradient, fast=False)
    agree(slopes(inputs, gradient, fast=True), exact)
    if inputs[0].shape[2] > 1:  # a single weight is 1, whatever its logit
        assert all(float(slope.norm()) > 0.1 for slope in exact)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_tokens_with_the_same_w_erase_or_flip_or_do_nothing(beta: float) -> None:
    """Their triangular system has the largest coefficients, and terms of the sums cancel."""
    *inputs, gradient = case(140, heads=1, kv=1)
    inputs[3] = torch.full_like(inputs[3], 0.25)
    inputs[3][..., -1] = beta
    agree(slopes(inputs, gradient, fast=True), slopes(inputs, gradient, fast=False), 2e-5)


def test_heads_are_done_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    *inputs, gradient = case(100, heads=3, kv=1, batch=1)
    whole = slopes(inputs, gradient, fast=True)
    launched = []
    by_keys = path.by_keys

    class Counted:
        def __getitem__(self, grid: tuple[int, int]) -> Any:
            launched.append(grid)
            return by_keys[grid]

    monkeypatch.setattr(path, "by_keys", Counted())
    monkeypatch.setattr(path, "HELD", 2 * 2 * 64 * 16)  # one pair of chunks of two heads
    some = slopes(inputs, gradient, fast=True)
    assert launched == [(2, 2), (2, 1)]
    assert all(torch.equal(a, b) for a, b in zip(whole, some, strict=True))


def test_every_number_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    *inputs, gradient = case(131)
    agree(slopes(inputs, gradient, fast=True), slopes(inputs, gradient, fast=False))


def test_large_logits_do_not_overflow() -> None:
    *inputs, gradient = case(100)
    inputs[0] = 100 * inputs[0]
    fast, exact = (slopes(inputs, gradient, fast=f) for f in (True, False))
    assert torch.isfinite(torch.cat([x.flatten() for x in fast])).all()
    assert float((fast[0] - exact[0]).norm()) < 1e-3 * float(exact[0].norm())


@pytest.mark.parametrize(("spec", "way"), [
    ("path", "kernel"), ("path+rope", "matrix"), ("path+fox", "matrix"),
    ("path+window:8", "matrix"), ("sinusoidal+path", "kernel"),
])  # fmt: skip
def test_what_else_changes_logits_or_hides_keys_is_left_to_torch(
    spec: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (16, 32, 64, 128):
        assert path_on_a_gpu(monkeypatch, spec, width) == way


def test_a_model_on_kernels_has_the_loss_and_gradients_of_one_on_matrices() -> None:
    models = on_both("path", tokens=70, num_key_value_heads=1, max_position_embeddings=80)
    for name, fast, slow in models:
        assert fast is not None, name
        assert slow is not None, name
        assert float((fast - slow).norm()) <= 2e-4 * float(slow.norm()) + 1e-7, name
        assert float(slow.norm()) > 0, name


def test_the_operators_pass_torchs_own_checks() -> None:
    """What torch.compile is told about shapes and layouts is true."""
    *inputs, _ = case(9, heads=2, kv=1, batch=2)
    torch.library.opcheck(path.attend, tuple(x.requires_grad_() for x in inputs))


def test_the_check_before_first_use_passes_and_catches_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = (16, 16, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(path, "LENGTH", 70)
    message = r"machine: the gradient of w and beta is off by 0.01"
    catches(monkeypatch, path, "gradients", -1, arguments, message)
