"""Backends against the definition, forward and backward; masks; who sees whom."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pe
from pe.attention import BACKENDS, scaled
from pe.attention.dense import dense_attention
from pe.attention.masks import lower_right_causal, positions_from_mask, visible
from pe.encodings import encoding
from pe.model import PEForCausalLM
from pe.model.config import PEConfig

FAST = [name for name in BACKENDS if name != "dense"]


def drawn(batch: int, heads: int, kv: int, tq: int, tk: int, d: int) -> tuple[Tensor, ...]:
    shapes = ((batch, heads, tq, d), (batch, kv, tk, d), (batch, kv, tk, d))
    return tuple(torch.randn(s).requires_grad_() for s in shapes)


def agree(
    name: str,
    inputs: tuple[Tensor, ...],
    scale: float,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    atol: float = 2e-5,
) -> Tensor:
    """Compare a backend with dense attention in output and in every gradient."""
    learned = [*inputs, *([] if bias is None or not bias.requires_grad else [bias])]
    results = []
    for run in (dense_attention, BACKENDS[name]):
        out = run(*inputs, scale=scale, bias=bias, mask=mask)
        direction = torch.linspace(-1, 1, out.numel()).view(out.shape)
        results.append((out, torch.autograd.grad((out * direction).sum(), learned)))
    (want, want_gradients), (out, gradients) = results
    assert out.shape == want.shape
    torch.testing.assert_close(out, want, atol=atol, rtol=1e-4)
    for a, b in zip(gradients, want_gradients, strict=True):
        assert torch.isfinite(b).all()
        torch.testing.assert_close(a, b, atol=10 * atol, rtol=1e-3)
    return want.detach()


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("length", [1, 15, 128, 257])
@pytest.mark.parametrize(("heads", "kv", "d"), [(1, 1, 32), (4, 4, 64), (4, 2, 32), (4, 1, 64)])
def test_causal(name: str, length: int, heads: int, kv: int, d: int) -> None:
    agree(name, drawn(2, heads, kv, length, length, d), d**-0.5)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(("tq", "tk"), [(1, 15), (1, 128), (7, 43), (128, 257), (3, 4)])
@pytest.mark.parametrize("biased", [False, True])
def test_queries_are_the_last_of_the_keys(name: str, tq: int, tk: int, biased: bool) -> None:
    """pytorch/pytorch#108108: torch's causal flag lets a decoding step see the first key only."""
    inputs = drawn(2, 4, 2, tq, tk, 32)
    bias = torch.randn(4, tq, tk).requires_grad_() if biased else None
    out = agree(name, inputs, 0.2, bias=bias)
    explicit = lower_right_causal(tq, tk, torch.device("cpu"))
    assert explicit[-1].all()
    assert explicit[0].sum() == tk - tq + 1
    again = dense_attention(*inputs, scale=0.2, bias=bias, mask=explicit)
    torch.testing.assert_close(out, again.detach())


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("shape", [(1, 1, 15, 15), (1, 4, 15, 15), (2, 4, 15, 15), (15, 15)])
def test_learned_biases(name: str, shape: tuple[int, ...]) -> None:
    """A bias gets its gradient, at lengths that no kernel likes, in any broadcast."""
    bias = torch.randn(shape).requires_grad_()
    agree(name, drawn(2, 4, 2, 15, 15, 32), 0.2, bias=bias)
    padding = torch.ones(2, 15).long()
    padding[0, :4] = 0
    mask = visible(15, 15, torch.device("cpu"), padding)
    agree(name, drawn(2, 4, 2, 15, 15, 32), 0.2, bias=bias, mask=mask)


@pytest.mark.parametrize("name", FAST)
def test_only_the_bias_wants_a_gradient(name: str) -> None:
    """pytorch/pytorch#148476: illegal memory access where only the bias learns."""
    q, k, v = (x.detach() for x in drawn(2, 4, 2, 9, 9, 32))
    bias = torch.randn(4, 9, 9).requires_grad_()
    BACKENDS[name](q, k, v, scale=0.2, bias=bias, mask=None).sum().backward()
    assert bias.grad is not None
    assert bias.grad.abs().sum() > 0


@pytest.mark.parametrize("name", FAST)
def test_queries_wider_than_values(name: str) -> None:
    q, k = torch.randn(1, 4, 12, 64).requires_grad_(), torch.randn(1, 2, 12, 64).requires_grad_()
    out = agree(name, (q, k, torch.randn(1, 2, 12, 32).requires_grad_()), 32**-0.5)
    assert out.shape == (1, 4, 12, 32)


@pytest.mark.parametrize("name", FAST)
def test_arbitrary_masks(name: str) -> None:
    allowed = torch.rand(2, 4, 17, 17) < 0.5
    allowed |= torch.eye(17, dtype=torch.bool)
    agree(name, drawn(2, 4, 4, 17, 17, 32), 0.2, mask=allowed)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_padding_rows_are_finite_and_reach_nobody(name: str) -> None:
    """Padding on the left changes no real row, forward nor backward, and makes no NaN."""
    q, k, v = drawn(1, 4, 2, 6, 6, 32)
    alone = BACKENDS[name](q, k, v, scale=0.2)

    def padded(x: Tensor) -> Tensor:
        return torch.cat((torch.full_like(x[:, :, :3], 1e4), x), dim=2)

    padding = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1]])
    mask = visible(9, 9, q.device, padding)
    out = BACKENDS[name](padded(q), padded(k), padded(v), scale=0.2, mask=mask)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out[:, :, 3:], alone)
    gradients = torch.autograd.grad(out[:, :, 3:].square().sum(), (q, k, v))
    want = torch.autograd.grad(alone.square().sum(), (q, k, v))
    for a, b in zip(gradients, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_documents_do_not_see_each_other(name: str) -> None:
    q, k, v = drawn(1, 2, 2, 10, 10, 32)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2]])
    mask = visible(10, 10, q.device, documents=documents)
    out = BACKENDS[name](q, k, v, scale=0.2, mask=mask)
    for part in (slice(0, 3), slice(3, 7), slice(7, 10)):
        alone = BACKENDS[name](q[:, :, part], k[:, :, part], v[:, :, part], scale=0.2)
        torch.testing.assert_close(out[:, :, part], alone)


def test_the_mask_of_who_sees_whom() -> None:
    here = torch.device("cpu")
    assert visible(5, 5, here) is None
    padding = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    mask = visible(2, 4, here, padding)  # the last two of four
    assert mask is not None
    assert mask.shape == (2, 1, 2, 4)
    assert mask[0, 0].tolist() == [[False, False, True, False], [False, False, True, True]]
    assert mask[1, 0].tolist() == [[True, True, True, False], [True] * 4]
    both = visible(4, 4, here, padding, torch.tensor([[0, 0, 0, 1]] * 2))
    assert both is not None
    assert both[1, 0, 3].tolist() == [False, False, False, True]
    assert both[0, 0, 0].tolist() == [True, False, False, False]  # padding sees itself alone
    assert positions_from_mask(padding).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize("rows", [(6,), (2, 1, 6), (4, 6), (2, 4, 6)])
def test_a_scale_for_each_query_row(rows: tuple[int, ...]) -> None:
    q, k, v = drawn(2, 4, 2, 6, 6, 32)
    factor = torch.rand(rows) + 0.5
    out = dense_attention(scaled(q, factor), k, v, scale=0.2)
    logits = 0.2 * (q @ k.repeat_interleave(2, 1).transpose(-1, -2))
    logits = logits * factor.expand(2, 4, 6)[..., None]
    logits = logits.masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    torch.testing.assert_close(out, logits.softmax(-1) @ v.repeat_interleave(2, 1))
    assert scaled(q, None) is q
    assert scaled(q.bfloat16(), factor).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", FAST)
def test_other_types(name: str, dtype: torch.dtype) -> None:
    q, k, v = (x.detach().to(dtype) for x in drawn(2, 4, 2, 33, 33, 32))
    want = dense_attention(q, k, v, scale=0.2)
    out = BACKENDS[name](q, k, v, scale=0.2)
    assert out.dtype == want.dtype == dtype
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-12
    torch.testing.assert_close(out, want, atol=tolerance, rtol=tolerance)


def test_dense_is_float32_under_autocast() -> None:
    q, k, v = (x.detach() for x in drawn(1, 2, 2, 9, 9, 32))
    want = dense_attention(q, k, v, scale=0.2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(dense_attention(q, k, v, scale=0.2), want)


@pytest.mark.parametrize("spec", ["nope", "rope", "yarn", "pope"])
@pytest.mark.parametrize("name", FAST)
def test_attend_by_any_backend(spec: str, name: str) -> None:
    """Every backend under every encoding, with positions for each row."""
    enc = encoding(spec, head_dim=32, num_heads=4, num_kv_heads=2, original_length=64)
    q, k, v = drawn(2, 4, 2, 5, 20, 32)
    positions = torch.stack((torch.arange(20), torch.arange(20) + 1000))
    results = []
    for backend in ("dense", name):
        out = pe.attend(enc, q, k, v, positions[:, -5:], positions, backend=backend)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_an_unknown_backend_is_named() -> None:
    q = k = v = torch.zeros(1, 1, 2, 16)
    with pytest.raises(ValueError, match=r"unknown attention backend 'spda' .*'sdpa'"):
        pe.attend(encoding("nope", head_dim=16, num_heads=1), q, k, v, backend="spda")
    with pytest.raises(ValueError, match=r"unknown attention backend 'spda'"):
        PEForCausalLM(PEConfig(attention_backend="spda"))


@pytest.mark.parametrize("name", FAST)
def test_a_float32_bias_does_not_round_float64_queries(name: str) -> None:
    """A bias may be float32 whatever the queries are; sdpa computed everything in its type."""
    q, k, v = (x.double() for x in drawn(1, 2, 1, 5, 5, 8))
    bias = torch.randn(5, 5)
    want = dense_attention(q, k, v, scale=0.3, bias=bias)
    out = BACKENDS[name](q, k, v, scale=0.3, bias=bias)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, want, atol=1e-12, rtol=1e-12)
