"""DAPE's kernels, interpreted on the CPU, against the definition: values and every gradient."""

from __future__ import annotations

from typing import Any

import kernel_cases
import pytest
import torch
from kernel_cases import agree, catches, on_both, path_on_a_gpu, poison
from torch import Tensor

from pe.attention import choose
from pe.attention.available import INTERPRETED
from pe.attention.choose import path_for
from pe.encodings.core import forms
from pe.encodings.dape import DAPE

dape = pytest.importorskip("pe.attention.kernels.dape", reason="needs triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled here")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of keys in a short text, which the interpreter computes in little time."""
    for plan in (dape.FORWARD, dape.BACKWARD):
        monkeypatch.setitem(plan, "BN", 16)


def computed(enc: DAPE, backend: str, length: int, kv: int, batch: int = 2) -> dict[str, Tensor]:
    """Output and gradients by name; the definition's are in float64."""
    torch.manual_seed(length)
    heads, width = enc.num_heads, 16
    inputs = [2 * torch.randn(batch, h, length, width) for h in (heads, kv, kv)]
    direction = torch.randn(batch, heads, length, width)
    return kernel_cases.computed(enc, backend, inputs, direction)


@pytest.mark.parametrize(
    ("length", "heads", "kv", "prior", "units"),
    [
        (1, 2, 2, "kerple_log", 3), (15, 8, 8, "kerple_log", 32), (32, 12, 4, "alibi", 32),
        (21, 3, 1, "kerple_log", 5), (20, 20, 20, "kerple_log", 20),
    ],
)  # fmt: skip
def test_kernels_agree_with_the_definition(
    length: int, heads: int, kv: int, prior: str, units: int
) -> None:
    """Sizes that blocks divide and that they do not, and heads that share keys."""
    enc = DAPE(heads, prior, units)
    fast, exact = computed(enc, "kernel", length, kv), computed(enc, "dense", length, kv)
    if length == 1:  # a single weight is 1, whatever its logit
        exact = {name: exact[name] for name in ("out", "v")}
    agree(fast, exact)
    # Adding a number to all logits of a query changes nothing.
    assert all(float(exact[name].norm()) > 1e-3 for name in exact if name != "head_bias")


BLOCKS = [
    (3 * 2 * 22 * 22, [(3, 22)]),
    (2 * 2 * 22 * 22, [(2, 22), (1, 22)]),
    (2 * 22 * 10, [(1, 2), (1, 10), (1, 10)] * 3),
]  # fmt: skip
"""How many logits may be held, and the sequences and queries of each block of 3 x 22."""


@pytest.mark.parametrize(("held", "sizes"), BLOCKS)
def test_blocks_hold_no_more_than_they_may(
    held: int, sizes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dape, "HELD", held)
    found = [(b.stop - b.start, q.stop - q.start) for b, q in dape.blocks(3, 2, 22)]
    assert found == sizes


@pytest.mark.parametrize("held", [held for held, sizes in BLOCKS if len(sizes) > 1])
def test_sequences_and_queries_are_done_a_few_at_a_time(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of the network, and those of keys over later queries, are added up."""
    enc = DAPE(2, mlp_width=4)
    exact = computed(enc, "dense", 22, 1, batch=3)
    monkeypatch.setattr(dape, "HELD", held)
    agree(computed(enc, "kernel", 22, 1, batch=3), exact)


def test_every_number_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    enc = DAPE(2, mlp_width=4)
    agree(computed(enc, "kernel", 19, 2), computed(enc, "dense", 19, 2))


def test_large_logits_do_not_overflow() -> None:
    enc = DAPE(2, mlp_width=4)
    with torch.no_grad():
        enc.head_weight *= 50
    exact = computed(enc, "dense", 20, 2)
    assert exact["head_weight"].norm() > 1e-3
    agree(computed(enc, "kernel", 20, 2), exact)


@pytest.mark.parametrize(("spec", "path"), [
    ("dape", "kernel"), ("dape+rope", "matrix"), ("dape+ssmax", "matrix"),
    ("dape+window:8", "matrix"), ("sinusoidal+dape", "kernel"),
])  # fmt: skip
def test_what_turns_scales_or_hides_keeps_dape_from_the_kernel(
    spec: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (64, 128):
        assert path_on_a_gpu(monkeypatch, spec, width) == path


@pytest.mark.parametrize(("heads", "units", "path"), [
    (32, 32, "kernel"), (33, 32, "matrix"), (32, 33, "matrix"),
])  # fmt: skip
def test_a_network_too_large_for_registers_is_left_to_torch(
    heads: int, units: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "unavailable_reason", lambda device: None)
    enc = DAPE(heads, mlp_width=units)
    assert path_for(enc, torch.device("cuda", 0), torch.bfloat16, 64) == path


def test_a_model_on_kernels_has_the_loss_and_gradients_of_one_on_matrices() -> None:
    for name, fast, slow in on_both("dape"):
        assert fast is not None, name  # of c2 too, since some wrappers demand it
        assert slow is not None, name
        assert float((fast - slow).norm()) <= 2e-4 * float(slow.norm()) + 1e-6, name
        assert name.endswith("head_bias") or float(slow.norm()) > 0, name


def test_the_operators_pass_torchs_own_checks() -> None:
    """What torch.compile is told about shapes and layouts is true."""
    q, k, v = (torch.randn(1, 5, heads, 8).transpose(1, 2) for heads in (2, 1, 1))
    network = torch.randn(2, 5), torch.randn(3, 4), torch.randn(3), torch.randn(2, 3)
    inputs = [x.requires_grad_() for x in (q, k, v, *network)]
    torch.library.opcheck(dape.attend, (*inputs[:3], 0.3, *inputs[3:]))


def test_the_check_before_first_use_passes_and_catches_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = (2, 4, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(dape, "LENGTH", 24)
    message = r"machine: the gradient of W2 is off by 0.01"
    catches(monkeypatch, dape, "gradients", -1, case, message)

    def broken(*arguments: Any) -> tuple[Tensor, ...]:
        raise MemoryError("out of resource: shared memory")

    monkeypatch.setattr(dape, "attend_by_kernel", broken)
    with pytest.raises(RuntimeError, match=r"do not run .* shared memory.*backend='sdpa'"):
        dape.self_check.__wrapped__(*case)


def test_the_form_is_the_bias_up_to_a_number_per_head() -> None:
    enc = DAPE(3, mlp_width=5)
    q, k = torch.randn(2, 3, 7, 4), torch.randn(2, 1, 7, 4)
    at = torch.arange(7)
    want = enc.bias(q, k, at, at)
    got = forms.matrix(enc.bias_form(7, at.device, None), 7, q, k)
    seen = torch.ones(7, 7).tril()
    torch.testing.assert_close((got + enc.head_bias[:, None, None]) * seen, want * seen)
