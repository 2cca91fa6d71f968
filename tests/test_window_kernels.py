"""Windows, chunks, first keys and sinks in the Triton kernels, interpreted on the CPU.

Each case is the smallest that takes a branch: the first block, a block at the edge of a window, one
that is skipped, first keys far away, a sink, documents that begin within a block. On a GPU, beyond
a few blocks and in bfloat16: tests/test_gpu.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import pe
from pe.attention.choose import kernel_form
from pe.attention.dense import dense_attention
from pe.attention.kernels.flash import op as ops
from pe.attention.kernels.flash import self_check as cases
from pe.attention.kernels.flash.launch import Shown, backward, forward
from pe.attention.masks import visible
from pe.attention.spans import Spans, counted_within, spans
from pe.encodings import Encoding, encoding
from pe.encodings.core import forms
from pe.encodings.core.key_range import KeyRange, key_range
from pe.model import PEConfig, PEForCausalLM

CPU = torch.device("cpu")
LENGTH = 260
"""Tokens in three blocks of queries, the last of them not full."""


@pytest.mark.parametrize(
    "spec", ["window:1", "window:5", "chunk:6", "window:5+sinks:3", "chunk:7+sinks:2",
             "window:4+chunk:6", "window:99+sinks:99"],
)  # fmt: skip
def test_spans_say_what_a_mask_says(spec: str) -> None:
    enc = encoding(spec, head_dim=8, num_heads=1)
    shown = key_range(enc)
    assert shown is not None
    padding = torch.ones(3, 23, dtype=torch.long)
    padding[0, :4] = padding[1, 19:] = padding[2, 8:10] = 0
    documents = torch.tensor([[0] * 9 + [3] * 14, [5] * 23, [7] * 6 + [-2] * 8 + [7] * 9])
    for hidden in ((None, None), (padding, None), (None, documents), (padding, documents)):
        whole = visible(23, 23, CPU, *hidden)
        want = enc.narrow(whole, 23, 23, CPU)
        given = spans(shown, 23, CPU, *hidden)
        real = torch.ones(1, 23, dtype=torch.bool) if hidden[0] is None else hidden[0].bool()
        rows = real[:, None, :, None]  # what padding sees is not read
        assert torch.equal(given.mask() & rows, want & rows)
        newest = torch.where(real, torch.arange(23), -1).amax(-1).expand(len(want))
        seen = want[torch.arange(len(want)), 0, newest]  # by the last token that is none
        assert torch.equal(given.of_next_query(), seen)
        assert given.rows.numel() == 4 * 23 * (1 if hidden == (None, None) else 3)


def test_distances_are_those_of_places_where_no_document_has_gaps() -> None:
    documents, index = torch.tensor([[1] * 4 + [0] * 5]), torch.arange(9)
    again = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4])
    left, hole = torch.ones(1, 9).long(), torch.ones(1, 9).long()
    left[:, :3] = hole[:, 4] = 0
    for hidden, positions, want in (
        ((None, documents), index, True), ((None, documents), again, True),
        ((None, documents % 1), again, False), ((left, None), (index - 3).clamp(min=0), True),
        ((hole, None), index, False), ((None, torch.tensor([[1, 0, 1] * 3])), index, False),
        ((None, documents), 2 * index, False),
    ):  # fmt: skip
        given = spans(KeyRange(3), 9, CPU, *hidden)
        assert counted_within(given, positions) is want


def drawn(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v and the gradient of the output; two heads share their keys."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, h, LENGTH, 16, generator=generator).to(dtype) for h in (2, 1, 1, 2)]


def kernel_results(inputs: list[Tensor], shown: Spans, sink: Tensor | None = None) -> list[Tensor]:
    """o, dq, dk, dv and the gradient of the sink, without a bias."""
    q, k, v, gradient = inputs
    seen = Shown(*shown)
    out, lse, beyond = forward(q, k, v, 0.25, forms.NONE, None, [], 0, shown=seen, sink=sink)
    dq, dk, dv, _, dsink = backward(
        gradient, q, k, v, out, lse, beyond, 0.25, forms.NONE, None, [], 0, False, shown=seen,
        sink=sink,
    )  # fmt: skip
    return [out, dq, dk, dv, dsink]


@pytest.mark.parametrize(
    ("shown", "sink", "documents"),
    [
        (KeyRange(40), False, None),
        (KeyRange(70, None, 9), True, None),
        (KeyRange(None, 100, 2), False, None),
        (KeyRange(30, None, 2), True, (90, 70, 100)),
    ],
)
def test_kernels_agree_with_the_definition(
    shown: KeyRange, sink: bool, documents: tuple[int, ...] | None
) -> None:
    names = None
    if documents is not None:
        names = torch.arange(len(documents)).repeat_interleave(torch.tensor(documents))[None]
    hidden = spans(shown, LENGTH, CPU, None, names)
    logits = torch.tensor([0.5, 3.0]) if sink else None
    fast = kernel_results(drawn(), hidden, logits)
    q, k, v = (x.requires_grad_() for x in drawn(torch.float64)[:3])
    leaves = [q, k, v]
    if logits is not None:
        leaves.append(logits.double().requires_grad_())
    last = leaves[3] if sink else None
    out = dense_attention(q, k, v, 0.25, mask=hidden.mask(), sink=last)
    exact = [out.detach(), *torch.autograd.grad(out, leaves, drawn(torch.float64)[3])]
    for name, got, want in zip(("out", "q", "k", "v", "sink"), fast, exact, strict=False):
        assert float((got - want).norm()) <= 2e-6 * float(want.norm()), name


def test_blocks_that_a_window_hides_are_not_read() -> None:
    hidden = spans(KeyRange(40), LENGTH, CPU)
    q, k, v, gradient = drawn()
    v[:, :, :128] = k[:, :, :128] = math.nan
    out, dq, *_ = kernel_results([q, k, v, gradient], hidden)
    assert torch.isfinite(out[:, :, 256:]).all()
    assert torch.isfinite(dq[:, :, 256:]).all()
    q, k, v, gradient = drawn()
    gradient[:, :, 192:] = q[:, :, 192:] = math.nan
    _, _, dk, dv, _ = kernel_results([q, k, v, gradient], hidden)
    assert torch.isfinite(dk[:, :, :128]).all()
    assert torch.isfinite(dv[:, :, :128]).all()


@pytest.mark.parametrize(
    ("kind", "reach", "hides", "segmented", "has_sink"),
    [
        (forms.KEYS, 0, True, True, True),
        (forms.TABLE, 40, False, False, True),
        (forms.TABLE, 0, True, False, True),
        (forms.LOGARITHM, 0, True, True, False),
        (forms.FIRE, 0, True, False, False),
        (forms.ROWS, 40, True, True, True),
    ],
)
def test_every_kind_of_bias_goes_with_windows_and_sinks(
    kind: int, reach: int, hides: bool, segmented: bool, has_sink: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By the check before first use, whose definition is written out."""
    monkeypatch.setattr(cases, "BATCH", 1)
    monkeypatch.setattr(cases, "LENGTH", 140)
    ops.self_check.__wrapped__(kind, reach, 16, 16, torch.float32, CPU, hides, segmented, has_sink)


@pytest.mark.parametrize("hides", [False, True])
def test_a_table_per_query_may_be_bfloat16(hides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cannot multiply bfloat16, so the queries are float32 here."""
    monkeypatch.setattr(cases, "BATCH", 1)
    case = cases.case(forms.ROWS, 40, 16, 16, torch.float32, CPU)
    assert case.form.own is not None
    case = case._replace(form=case.form._replace(own=case.form.own.bfloat16()))
    q, k, v, gradient, (kind, own, parts, reach) = case
    seen = cases.spans_of(q, True) if hides else None
    shown = Shown() if seen is None else Shown(*seen)
    bias = 0.25, kind, own, list(parts), reach
    out, lse, beyond = forward(q, k, v, *bias, shown=shown)
    got = out, *backward(gradient, q, k, v, out, lse, beyond, *bias, True, shown=shown)
    assert got[4].dtype == torch.bfloat16
    for one, want in zip(got, cases.expected(case, 0.25, seen), strict=True):
        allowed = 1e-5 if one.dtype == torch.float32 else 5e-3
        assert (one.double() - want).norm() <= allowed * want.norm() + 1e-12


def test_the_table_per_query_is_bfloat16_where_queries_are() -> None:
    enc = encoding("relative_content", head_dim=16, num_heads=2, hidden_size=8, original_length=6)
    state = enc.key_state(torch.randn(1, 9, 8))
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        q = torch.randn(1, 2, 9, 16).to(dtype)
        form = kernel_form(enc, q, q, state, None, True, "kernel")
        assert form is not None
        assert form.own is not None
        assert form.own.dtype == (dtype if dtype == torch.bfloat16 else torch.float32)
        want = forms.matrix(enc.bias_form(9, CPU, state), 9)
        assert (forms.matrix(form, 9) - want).norm() <= 1e-2 * want.norm()


def model_results(
    spec: str, backend: str, inputs: dict[str, Tensor], real: Tensor
) -> dict[str, Tensor]:
    """Loss over ``real`` tokens and gradients of a model of two layers."""
    torch.manual_seed(0)
    config = PEConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=32, pe=spec, attention_backend=backend,
    )  # fmt: skip
    model = PEForCausalLM(config)
    ids = torch.randint(0, 40, real.shape, generator=torch.Generator().manual_seed(1))
    loss = (model(input_ids=ids, use_cache=False, **inputs).logits.logsumexp(-1) * real).mean()
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return gradients | {"loss": loss.detach()}


@pytest.fixture
def no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes a mask of tokens times tokens fails."""

    def refuse(*arguments: Any) -> Tensor:
        raise AssertionError("a T x T mask was made")

    monkeypatch.setattr("pe.model.decoder.visible", refuse)
    monkeypatch.setattr(Encoding, "narrow", refuse)
    monkeypatch.setattr(Spans, "mask", refuse)


HIDDEN = {
    "left padding": {"attention_mask": torch.tensor([[0] * 5 + [1] * 15, [1] * 20])},
    "documents": {"document_ids": torch.tensor([[0] * 7 + [1] * 13, [4] * 20])},
    "holes": {"attention_mask": torch.tensor([[1] * 4 + [0] * 3 + [1] * 13, [1] * 20])},
}


@pytest.mark.parametrize(
    ("spec", "hidden"),
    [
        ("rope+window:5+sinks:2+sink", "holes"),
        ("rope+window:5, pope+chunk:8", "documents"),
        ("fox+window:6", "left padding"),
        ("cope+window:6", "documents"),
        ("alibi+chunk:6+sink", "documents"),
        ("relative_content+window:6", "left padding"),
    ],
)
def test_a_model_with_windows_on_kernels_is_the_one_with_masks(
    spec: str, hidden: str, request: pytest.FixtureRequest
) -> None:
    inputs = HIDDEN[hidden]
    real = inputs.get("attention_mask", torch.ones(2, 20))
    slow = model_results(spec, "sdpa", inputs, real)
    request.getfixturevalue("no_masks")
    fast = model_results(spec, "kernel", inputs, real)
    assert fast.keys() == slow.keys()
    for name, want in slow.items():
        assert float((fast[name] - want).norm()) <= 2e-4 * float(want.norm()) + 1e-6, name


@pytest.mark.parametrize("hidden", ["holes", None])
def test_a_bias_by_distance_takes_a_mask_where_tokens_are_not_counted(hidden: str | None) -> None:
    inputs = {"position_ids": 2 * torch.arange(20)} if hidden is None else HIDDEN[hidden]
    with pytest.raises(ValueError, match="'kernel' cannot serve .* positions are not simply"):
        model_results("alibi+window:5", "kernel", inputs, torch.ones(2, 20))


@torch.no_grad()
def test_a_prompt_read_by_kernels_is_continued_from_what_the_window_keeps() -> None:
    config = PEConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=32, pe="rope+window:5+sinks:2",
        attention_backend="kernel",
    )  # fmt: skip
    model, ids = PEForCausalLM(config).eval(), torch.randint(0, 40, (1, 14))
    first = model(ids[:, :12], use_cache=True)
    cache = first.past_key_values
    assert cache.layers[0].keys.shape[-2] == 5 + 2
    with pytest.raises(ValueError, match="keys come from a cache"):
        model(ids[:, 12:], past_key_values=cache)
    model.model.layers[0].attention.backend = None
    whole = model(ids, use_cache=False).logits
    torch.testing.assert_close(first.logits, whole[:, :12], atol=1e-5, rtol=1e-4)
    more = model(ids[:, 12:], past_key_values=cache).logits
    torch.testing.assert_close(more, whole[:, 12:], atol=1e-5, rtol=1e-4)


def test_attend_takes_no_mask_for_a_window(no_masks: None) -> None:
    enc = pe.encoding("rope+window:5", head_dim=16, num_heads=2)
    q = torch.randn(1, 2, 12, 16)
    assert pe.attend(enc, q, q, q, backend="kernel").shape == q.shape
