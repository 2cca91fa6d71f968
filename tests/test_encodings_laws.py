"""Laws that every registered encoding keeps, whatever it computes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from pe.encodings import Encoding, encoding, list_encodings

HEADS, WIDTH, HIDDEN = 4, 32, 128
FAR = [0, 1, 255, 256, 257, 2048, 4095, 15962, 65535, 100_000]
EVERY = pytest.mark.parametrize("name", list_encodings())


def build(name: str, **more: Any) -> Encoding:
    sizes: dict[str, Any] = {"head_dim": WIDTH, "num_heads": HEADS, "original_length": 256}
    enc = encoding(name, **(sizes | more))
    generator = torch.Generator().manual_seed(7)
    enc.reset_parameters(generator)
    with torch.no_grad():  # away from the special values of an initialisation
        for parameter in enc.parameters():
            if (parameter == parameter.flatten()[0]).all():
                parameter.uniform_(-1.5, -0.5, generator=generator)
    return enc


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def queries_and_keys(length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    shape = (2, HEADS, length, WIDTH)
    return drawn(*shape, dtype=dtype), drawn(*shape, seed=1, dtype=dtype)


def logits(enc: Encoding, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    """All that an encoding does to logits: rotation, scale, bias."""
    bias, scale = enc.bias(q, k, positions, positions), enc.logit_scale(positions)
    rotated_q, rotated_k = enc.rotate(q, k, positions, positions)
    wide = torch.promote_types(q.dtype, torch.float32)
    result = rotated_q.to(wide) @ rotated_k.to(wide).transpose(-1, -2) / WIDTH**0.5
    if scale is not None:
        result = result * scale[..., None]
    return result if bias is None else result + bias


def reachable(enc: Encoding, positions: list[int]) -> Tensor:
    limit = enc.longest_position
    return torch.tensor([p for p in positions if limit is None or p < limit])


@EVERY
def test_far_positions_keep_their_precision(name: str) -> None:
    """A1, A4: the logits in float32 are those in float64, also at position 100,000."""
    enc = build(name)
    positions = reachable(enc, FAR)
    q, k = queries_and_keys(len(positions))
    exact = logits(copy.deepcopy(enc).double(), q.double(), k.double(), positions)
    torch.testing.assert_close(logits(enc, q, k, positions).double(), exact, atol=1e-5, rtol=1e-5)


@EVERY
def test_autocast_does_not_reach_the_phases(name: str) -> None:
    """A1: float32 inputs give the same bits with and without autocast."""
    enc = build(name)
    positions = reachable(enc, FAR)
    q, k = queries_and_keys(len(positions))
    plain = enc.rotate(q, k, positions, positions)
    bias = enc.bias(q, k, positions, positions)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = enc.rotate(q, k, positions, positions)
        cast_bias = enc.bias(q, k, positions, positions)
    for a, b in zip(plain, cast, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert torch.equal(a, b)
    if bias is not None:
        assert cast_bias is not None
        assert bias.dtype == cast_bias.dtype == torch.float32
        torch.testing.assert_close(bias, cast_bias)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casting_the_module_does_not_reach_the_phases(name: str, dtype: torch.dtype) -> None:
    """A3, A4, A6: after ``.to(bfloat16)`` only the result is rounded, not what it is made of."""
    enc = build(name)
    with torch.no_grad():  # numbers that survive the cast, so that only constants are at stake
        for parameter in enc.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).to(torch.float16))
    positions = reachable(enc, FAR)
    q, k = queries_and_keys(len(positions))
    q, k = q.to(dtype), k.to(dtype)
    before = enc.rotate(q.float(), k.float(), positions, positions)
    bias = enc.bias(q.float(), k.float(), positions, positions)
    enc.half() if dtype == torch.float16 else enc.to(dtype)
    after = enc.rotate(q, k, positions, positions)
    for a, b in zip(before, after, strict=True):
        assert b.dtype == dtype
        # One rounding of the result: half a unit in the last place.
        torch.testing.assert_close(b, a.to(dtype), rtol=1e-2, atol=2e-3)
    again = enc.bias(q, k, positions, positions)
    if bias is not None:
        assert again is not None
        assert again.dtype == torch.float32
        torch.testing.assert_close(again, bias, rtol=1e-2, atol=1e-2)


@EVERY
def test_constants_survive_the_meta_device(name: str) -> None:
    """A8: built without memory, then given uninitialised memory, every constant is right again."""
    here = build(name)
    with torch.device("meta"):
        enc = encoding(name, head_dim=WIDTH, num_heads=HEADS, original_length=256)
    assert all(t.is_meta for t in [*enc.buffers(), *enc.parameters()])
    enc.to_empty(device="cpu")
    buffers = dict(enc.named_buffers())
    assert set(buffers) == set(dict(here.named_buffers()))
    for key, value in here.named_buffers():
        assert torch.equal(buffers[key], value), key
        assert buffers[key].dtype == value.dtype
    enc.reset_parameters(torch.Generator().manual_seed(0))
    assert all(torch.isfinite(p).all() for p in enc.parameters())
    enc.load_state_dict(here.state_dict())
    positions = torch.arange(20)
    q, k = queries_and_keys(20)
    assert torch.equal(logits(enc, q, k, positions), logits(here, q, k, positions))


@EVERY
def test_constants_are_not_saved(name: str) -> None:
    enc = build(name)
    assert set(enc.state_dict()) == {key for key, _ in enc.named_parameters()}


@EVERY
def test_nothing_is_remembered_between_calls(name: str) -> None:
    enc = build(name)
    q, k = queries_and_keys(40)
    first = logits(enc, q, k, torch.arange(40))
    state = {key: value.clone() for key, value in enc.named_buffers()}
    far = reachable(enc, list(range(0, 5000, 100)))
    logits(enc, *queries_and_keys(len(far)), far)
    logits(enc, q[:, :, :3], k[:, :, :3], torch.arange(3))
    assert torch.equal(logits(enc, q, k, torch.arange(40)), first)
    assert all(torch.equal(state[key], value) for key, value in enc.named_buffers())


@EVERY
@pytest.mark.parametrize("shift", [1, 511, 90_001])
def test_shifting_all_positions_changes_no_logit(name: str, shift: int) -> None:
    """A10. Absolute encodings are the ones for which it does."""
    enc = build(name).double()
    positions = torch.tensor([0, 1, 2, 3, 17, 300])
    if enc.longest_position is not None and enc.longest_position <= shift + 300:
        pytest.skip(f"longest position {enc.longest_position}")
    q, k = queries_and_keys(6, torch.float64)
    a, b = logits(enc, q, k, positions), logits(enc, q, k, positions + shift)
    assert enc.relative == bool(torch.allclose(a, b, atol=1e-7, rtol=0))


@EVERY
def test_heads_commute_and_time_does_not(name: str) -> None:
    """A13: an encoding turns along time, never along heads."""
    enc = build(name)
    for parameter in enc.parameters():  # heads that differ would not commute by right
        parameter.data.fill_(-0.7)
    positions, (q, k) = torch.arange(12), queries_and_keys(12)
    heads, times = torch.tensor([2, 0, 3, 1]), torch.randperm(12)
    q1, k1 = enc.rotate(q, k, positions, positions)
    q2, k2 = enc.rotate(q[:, heads], k[:, heads], positions, positions)
    assert torch.equal(q1[:, heads], q2)
    assert torch.equal(k1[:, heads], k2)
    q3, k3 = enc.rotate(q[:, :, times], k[:, :, times], positions, positions)
    assert torch.equal(q1[:, :, times], q3) != enc.rotates
    assert torch.equal(k1[:, :, times], k3) != enc.rotates


@EVERY
def test_positions_for_each_row(name: str) -> None:
    """(B, T) positions give each row what it gets alone, also where B equals the heads."""
    enc = build(name)
    q, k = drawn(HEADS, HEADS, 9, WIDTH), drawn(HEADS, HEADS, 9, WIDTH, seed=1)
    rows = torch.stack([torch.arange(9) + 50 * b for b in range(HEADS)])
    whole = logits(enc, q, k, rows)
    for b in range(HEADS):
        alone = logits(enc, q[b : b + 1], k[b : b + 1], rows[b])
        torch.testing.assert_close(whole[b : b + 1], alone, atol=1e-6, rtol=1e-6)


@EVERY
def test_queries_and_keys_have_positions_of_their_own(name: str) -> None:
    """E1, E3: the last rows of the whole are what a decoding step computes."""
    enc = build(name)
    q, k = queries_and_keys(20)
    positions = torch.arange(20)
    whole_q, whole_k = enc.rotate(q, k, positions, positions)
    step_q, step_k = enc.rotate(q[:, :, -3:], k, positions[-3:], positions)
    assert torch.equal(step_q, whole_q[:, :, -3:])
    assert torch.equal(step_k, whole_k)
    bias = enc.bias(q, k, positions, positions)
    step = enc.bias(q[:, :, -3:], k, positions[-3:], positions)
    if bias is not None:
        assert step is not None
        torch.testing.assert_close(bias.expand(2, HEADS, 20, 20)[:, :, -3:],
                                   step.expand(2, HEADS, 3, 20))  # fmt: skip


@EVERY
def test_gradients_are_finite_at_all_scales(name: str) -> None:
    """B18."""
    enc = build(name)
    scales = 10 ** torch.linspace(-6, 3, 10)
    positions = torch.arange(8)
    for scale in scales:
        q, k = (x.mul(scale).requires_grad_() for x in queries_and_keys(8))
        logits(enc, q, k, positions).softmax(-1).square().sum().backward()
        for tensor in (q, k, *enc.parameters()):
            if tensor.grad is not None:
                assert torch.isfinite(tensor.grad).all()
                tensor.grad = None


@EVERY
def test_gradients_are_those_of_the_formula(name: str) -> None:
    enc = build(name, head_dim=6, num_heads=2).double()
    q, k = (drawn(1, 2, 4, 6, seed=s, dtype=torch.float64).requires_grad_() for s in (0, 1))
    positions = torch.tensor([0, 1, 5, 900])

    def together(q: Tensor, k: Tensor, *_: Tensor) -> Tensor:
        return logits(enc, q, k, positions)

    assert torch.autograd.gradcheck(together, (q, k, *enc.parameters()))


@EVERY
def test_the_embedding_hook_keeps_shape_and_type(name: str) -> None:
    enc = build(name)
    for dtype in (torch.float32, torch.bfloat16):
        x = drawn(2, 9, HIDDEN, dtype=dtype)
        out = enc.embed(x, torch.arange(9))
        assert out.shape == x.shape
        assert out.dtype == dtype
        if type(enc).embed is Encoding.embed:
            assert out is x
