"""PaTH in chunks against its definition, one reflection after the other, in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pe.encodings.core import reflections
from pe.encodings.core.reflections import CHUNK, reflect
from pe.encodings.path import PaTH


def definition(seen: Tensor, q: Tensor, k: Tensor, state: Tensor) -> Tensor:
    """Follow all queries back through the text; ``seen`` is (1 or B, 1 or H, Tq, Tk)."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    w, beta = state[..., :-1], state[..., -1]
    left, columns = q, []
    for n in reversed(range(k.shape[2])):
        columns.append((left - q) @ k[:, :, n, :, None] / math.sqrt(q.shape[-1]))
        a = (left @ w[:, :, n, :, None]) * beta[:, :, None, n, None] * seen[..., n, None]
        left = left - a * w[:, :, None, n]
    return torch.cat(columns[::-1], -1)


def case(length: int, known: int, heads: int = 2, kv_heads: int = 2) -> list[Tensor]:
    """Return q, k and state of two sequences, in float64."""
    generator = torch.Generator().manual_seed(length * 1000 + known)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(2, *shape, dtype=torch.float64, generator=generator)

    gates = 2 * drawn(heads, known, 1).sigmoid()
    state = torch.cat((normalize(drawn(heads, known, 8), dim=-1), gates), -1)
    return [drawn(heads, length, 8), drawn(kv_heads, known, 8), state]


def causal(length: int, known: int) -> Tensor:
    return torch.ones(1, 1, length, known, dtype=torch.bool).tril(known - length)


def agree(inputs: list[Tensor], mask: Tensor | None, dtype: torch.dtype, error: float) -> None:
    """Compare values and gradients of what the queries see."""
    q, k, _ = inputs
    seen = causal(q.shape[2], k.shape[2])
    seen = seen if mask is None else seen & mask
    exact = [x.clone().requires_grad_() for x in inputs]
    ours = [x.to(dtype).requires_grad_() for x in inputs]
    want, got = definition(seen, *exact) * seen, reflect(*ours, mask)
    assert got.dtype == dtype
    assert got.isfinite().all()
    torch.testing.assert_close((got * seen).double(), want, atol=error, rtol=error)
    toward = torch.randn(want.shape, dtype=torch.float64)
    wanted = torch.autograd.grad((want * toward).sum(), exact, materialize_grads=True,
                                 allow_unused=True)  # fmt: skip
    slopes = torch.autograd.grad((got * seen * toward.to(dtype)).sum(), ours)
    for slope, expected in zip(slopes, wanted, strict=True):
        largest = float(expected.abs().max())
        torch.testing.assert_close(slope.double(), expected, atol=error * (1 + largest), rtol=error)


@pytest.mark.parametrize(
    ("length", "known"),
    [(1, 1), (7, 7), (CHUNK, CHUNK), (CHUNK + 1, CHUNK + 1), (4 * CHUNK, 4 * CHUNK), (150, 150),
     (1, 3 * CHUNK), (1, 150), (CHUNK, 3 * CHUNK), (70, 150)],
)  # fmt: skip
def test_chunks_give_what_one_reflection_after_the_other_gives(length: int, known: int) -> None:
    agree(case(length, known), None, torch.float64, 1e-12)
    agree(case(length, known), None, torch.float32, 1e-5)


def test_several_heads_share_the_keys_of_one() -> None:
    agree(case(90, 150, heads=4, kv_heads=2), None, torch.float64, 1e-12)


def masks(length: int) -> dict[str, Tensor]:
    at, pairs = torch.arange(length), causal(length, length)
    drawn = torch.rand(2, 2, length, length, generator=torch.Generator().manual_seed(0))
    return {
        "documents": pairs & (at[:, None] // 40 == at // 40),
        "window": pairs & (at[:, None] - at < 50),
        "padding": pairs & (at >= 30),
        "window and sinks": pairs & ((at[:, None] - at < 50) | (at < 4)),
        "at random": drawn > 0.3,
        "nothing": torch.zeros_like(pairs),
    }


@pytest.mark.parametrize("name", masks(1))
def test_a_token_that_a_query_does_not_see_does_not_reflect(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflections, "NUMBERS", 2**20)  # several blocks of queries
    mask = masks(140)[name]
    gaps = reflections.with_gaps(mask)
    assert (gaps is not None) == (name in ("window and sinks", "at random"))
    agree(case(140, 140), mask, torch.float64, 1e-12)
    agree(case(50, 140), mask[:, :, 90:], torch.float32, 1e-5)


def test_equal_directions_lose_little_precision() -> None:
    """The powers of such a chunk's system are astronomic, though its inverse is small."""
    q, k, state = case(3 * CHUNK, 3 * CHUNK)
    state[..., :-1], state[..., -1] = normalize(torch.ones(8, dtype=torch.float64), dim=0), 1.9
    agree([q, k, state], None, torch.float32, 1e-4)


def test_queries_in_bfloat16_are_rounded_no_further() -> None:
    q, k, state = (x.float() for x in case(100, 100))
    q, k = q.bfloat16(), k.bfloat16()
    torch.testing.assert_close(
        reflect(q, k, state, None), reflect(q.float(), k.float(), state, None)
    )


def test_several_models_at_once_give_what_each_gives() -> None:
    models = [[x.float() for x in case(70, 150)], [x.float() * 0.5 for x in case(70, 150)]]
    stacked = [torch.stack(x).requires_grad_() for x in zip(*models, strict=True)]
    mask = torch.rand(2, 1, 1, 70, 150, generator=torch.Generator().manual_seed(0)) > 0.3
    for seen, place in ((None, None), (mask[0], None), (mask, 0)):
        together = torch.vmap(reflect, (0, 0, 0, place))(*stacked, seen)
        alone = [
            reflect(*model, seen if seen is None or place is None else seen[n])
            for n, model in enumerate(models)
        ]
        torch.testing.assert_close(together, torch.stack(alone))
        assert all(g.abs().max() > 0 for g in torch.autograd.grad(together.sum(), stacked))


@pytest.mark.parametrize("mask", [None, masks(100)["at random"][:, :, 30:]])
def test_the_operator_is_what_it_tells_the_compiler(mask: Tensor | None) -> None:
    inputs = [x.float().requires_grad_() for x in case(70, 100)]
    torch.library.opcheck(reflect, (*inputs, mask))


def test_autocast_rounds_no_product() -> None:
    q, k, state = (x.float().requires_grad_() for x in case(150, 150))
    enc = PaTH(8, 2, 2, 16)
    places, slopes = torch.arange(150), []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            bias = enc.bias(q, k, places, places, state)
            slopes.append(torch.autograd.grad(bias.square().sum(), (q, k, state)))
    torch.testing.assert_close(slopes[0], slopes[1])
