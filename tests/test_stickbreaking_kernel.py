"""Stick-breaking's kernels, interpreted on the CPU, against the definition: values and gradients.

On a GPU the cases of the other kernels run with stick-breaking among them: tests/test_gpu.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import triton
from kernel_cases import catches, on_both, poison
from torch import Tensor

import pe
from pe.attention import choose
from pe.attention.choose import obstacle, path_for
from pe.attention.kernels.stickbreaking import forward
from pe.attention.kernels.stickbreaking import op as sticks
from pe.attention.spans import spans
from pe.encodings.core.forms import matrix
from pe.encodings.core.key_range import KeyRange
from pe.encodings.stickbreaking import StickBreaking
from pe.model import PEForCausalLM

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries try after 64 keys whether anything is left, so that short sequences have chunks."""
    monkeypatch.setattr(forward, "CHUNK", triton.language.constexpr(64))


def drawn(
    length: int, heads: int = 2, kv: int = 1, width: int = 16, logit: float = 0.0, size: float = 1.0
) -> list[Tensor]:
    """q, k, v and the gradient of the output; ``logit`` is about the mean of the logits."""
    generator = torch.Generator().manual_seed(length)
    shapes = (heads, kv, kv, heads)
    found = [torch.randn(1, h, length, width, generator=generator) for h in shapes]
    found[0] *= size
    if logit:
        found[0][..., 0] = math.sqrt(abs(logit)) * width**0.25
        found[1][..., 0] = math.copysign(math.sqrt(abs(logit)) * width**0.25, logit)
    return found


def results(
    inputs: list[Tensor], backend: str, spec: str = "stickbreaking", **options: Any
) -> list[Tensor]:
    """The output and the gradients of q, k and v; those of the definition are in float64."""
    enc = pe.encoding(
        spec, head_dim=inputs[0].shape[-1], num_heads=inputs[0].shape[1], **options
    )  # fmt: skip
    dtype = torch.float64 if backend == "dense" else inputs[0].dtype
    q, k, v = (x.to(dtype).requires_grad_() for x in inputs[:3])
    out = pe.attend(enc, q, k, v, backend=backend)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), inputs[3].to(dtype))]


def agree(fast: list[Tensor], exact: list[Tensor], tolerance: float = 2e-6) -> None:
    for name, got, want in zip(("out", "q", "k", "v"), fast, exact, strict=True):
        assert torch.isfinite(got).all(), name
        assert float((got - want).norm()) <= tolerance * float(want.norm()), name


@pytest.mark.parametrize("current", [False, True])
@pytest.mark.parametrize(
    ("length", "heads", "kv", "width", "logit", "size"),
    [
        (1, 1, 1, 16, 0.0, 1.0),
        (2, 2, 1, 16, 0.0, 1.0),
        (64, 1, 1, 32, -3.0, 1.0),
        (97, 6, 2, 16, -4.0, 1.0),
        (210, 2, 1, 16, -8.0, 1.0),
        (130, 2, 2, 64, 0.0, 1.0),
        (130, 2, 1, 16, 0.0, 60.0),
    ],
)
def test_kernels_agree_with_the_definition(
    length: int, heads: int, kv: int, width: int, logit: float, size: float, current: bool
) -> None:
    """With logits around -8 a query sees all keys, around 0 some ten.

    Queries that are 60 times as large take everything from one key, so gradients nearly cancel.
    """
    inputs = drawn(length, heads, kv, width, logit, size)
    fast, exact = (results(inputs, b, attend_current=current) for b in ("kernel", "dense"))
    agree(fast, exact, 2e-6 if size == 1 else 1e-4)


@pytest.mark.parametrize(
    "spec", ["stickbreaking+window:40", "stickbreaking+window:70+sinks:9",
             "stickbreaking+chunk:90+sinks:2", "stickbreaking+window:1"],
)  # fmt: skip
def test_hidden_keys_break_nothing_off(spec: str) -> None:
    inputs = drawn(170, logit=-6.0)
    agree(results(inputs, "kernel", spec), results(inputs, "dense", spec))


def test_queries_of_16_bits_agree() -> None:
    inputs = [x.half() for x in drawn(110, logit=-5.0)]
    agree(results(inputs, "kernel"), results(inputs, "dense"), 1e-3)


def test_sticks_that_end_beside_sticks_that_do_not() -> None:
    """The sum of ln(1 + e^z) is in the thousands for every other query. C near the diagonal is the
    difference of two such sums in the backward pass."""
    inputs = drawn(200, logit=-8.0)
    inputs[0][:, :, ::2] *= -1.5  # logits around 12
    agree(results(inputs, "kernel"), results(inputs, "dense"), 1e-5)


def test_keys_behind_the_end_of_all_sticks_are_not_read() -> None:
    inputs = drawn(250)
    for x in inputs[1:3]:
        x[:, :, :64] = math.nan
    out, dq, _, _ = results(inputs, "kernel")
    assert torch.isfinite(out[:, :, 224:]).all()
    assert torch.isfinite(dq[:, :, 224:]).all()
    inputs = drawn(250)
    q, k, v, gradient = inputs
    _, total, far = sticks.launch_forward(q, k, v, 0.25, 1, None, False, False)
    for x in (q, gradient):
        x[:, :, 224:] = math.nan  # of a query block that does not see the first keys
    _, dk, dv = sticks.launch_backward(
        gradient, q, k, v, total, far, 0.25, 1, None, False, False
    )  # fmt: skip
    assert far[..., -1].min() >= 96
    assert torch.isfinite(dk[:, :, :96]).all()
    assert torch.isfinite(dv[:, :, :96]).all()


@pytest.mark.parametrize("spec", ["stickbreaking", "stickbreaking+window:40"])
def test_a_few_heads_at_a_time_give_the_same_bits(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = drawn(70, 12, 6, logit=-5.0)
    whole, steps = results(inputs, "kernel", spec), []
    new_full = Tensor.new_full

    def watched(self: Tensor, size: Any, *more: Any, **options: Any) -> Tensor:
        steps.append(size[0])
        return new_full(self, size, *more, **options)

    monkeypatch.setattr(Tensor, "new_full", watched)
    monkeypatch.setattr(sticks, "HELD", 5 * 2 * 3 * 70)  # five heads: two pairs, in three blocks
    pieces = results(inputs, "kernel", spec)
    assert steps == [4, 4, 4]
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


@pytest.mark.parametrize("spec", ["stickbreaking", "stickbreaking+window:40+sinks:2"])
def test_every_number_is_written(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    inputs = drawn(140, logit=-6.0)
    agree(results(inputs, "kernel", spec), results(inputs, "dense", spec))


@pytest.mark.parametrize("current", [False, True])
def test_the_spec_is_the_bias(current: bool) -> None:
    enc, (q, k, _, _) = StickBreaking(2, attend_current=current), drawn(90)
    places = torch.arange(90)
    want = enc.bias(q, k, places, places)
    got = matrix(enc.bias_form(90, CPU, None), 90, q, k)
    seen = torch.ones(90, 90, dtype=torch.bool).tril()
    assert torch.allclose(got[..., seen], want[..., seen], rtol=1e-5, atol=1e-4)


def test_where_the_kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "unavailable_reason", lambda device: None)
    sizes: dict[str, Any] = {"head_dim": 128, "num_heads": 2}
    enc = pe.encoding("stickbreaking", **sizes)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert path_for(enc, CUDA, dtype, 64, head_dim=128) == "kernel"
    assert path_for(enc, CPU, torch.float32, 64) == "matrix"
    assert path_for(enc, CUDA, torch.bfloat16, 64, head_dim=24) == "matrix"
    narrow = pe.encoding("stickbreaking+window:4+sinks:1", **sizes)
    assert path_for(narrow, CUDA, torch.bfloat16, 64, head_dim=128) == "kernel"
    assert "positions are not simply counted" in str(
        obstacle(enc, CUDA, torch.bfloat16, False, 128)
    )
    x = torch.randn(1, 2, 6, 128)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="cannot serve StickBreaking here: .*tokens are masked"):
        pe.attend(enc, x, x, x, mask=mask, backend="kernel")


@pytest.mark.parametrize(
    ("spec", "inputs"),
    [
        ("stickbreaking", {}),
        ("stickbreaking+window:6", {"document_ids": torch.arange(33).expand(2, -1) // 20}),
        (
            "stickbreaking+chunk:7+sinks:1",
            {"attention_mask": (torch.arange(33) > 4).long().expand(2, -1)},
        ),
    ],
)
def test_a_model_on_kernels_has_the_loss_and_gradients_of_one_on_matrices(
    spec: str, inputs: dict[str, Tensor]
) -> None:
    real = inputs.get("attention_mask", torch.ones(2, 33))

    def loss_of(model: PEForCausalLM, ids: Tensor) -> Tensor:
        logits = model(input_ids=ids, use_cache=False, **inputs).logits
        loss: Tensor = (logits.logsumexp(-1) * real).mean()
        return loss

    models = on_both(
        spec, 33, loss_of, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    for name, fast, slow in models:
        assert fast is not None, name
        assert slow is not None, name
        assert float((fast - slow).norm()) <= 1e-4 * float(slow.norm()) + 1e-6, name


def test_the_check_before_first_use_passes_and_catches_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sticks, "CHECKED", 100)
    case = (16, 16, torch.float32, CPU)
    for kinds in ((0, *case), (1, *case), (1, *case, True), (1, *case, True, True)):
        sticks.self_check.__wrapped__(*kinds)
    message = "wrong on this machine: the gradient of v is off"
    catches(monkeypatch, sticks, "launch_backward", 2, (1, *case), message)


def test_the_definition_of_the_check_is_the_encoding() -> None:
    """Otherwise kernels with the same mistake as the definition would pass."""
    inputs = q, k, v, gradient = drawn(90, logit=-4.0)
    for nearest, spec, shown in ((0, "stickbreaking", None), (1, "stickbreaking+window:20", 20)):
        hidden = None
        if shown is not None:
            hidden = spans(KeyRange(shown), 90, CPU)
        want = results(inputs, "dense", spec, attend_current=nearest == 0)
        agree(list(sticks.expected(q, k, v, gradient, 0.25, nearest, hidden)), want, 1e-12)
