"""Shapes that do not fit are refused in one sentence and never broadcast; paths agree at any
position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pe
from pe.attention.documents import document_lengths
from pe.encodings import encoding

SIZES: dict[str, Any] = {"head_dim": 16, "num_heads": 4, "num_kv_heads": 2, "hidden_size": 64}
PLACES = torch.arange(6)


def heads(count: int, width: int = 16, length: int = 6) -> Tensor:
    return torch.randn(1, count, length, width, generator=torch.Generator().manual_seed(count))


def build(name: str) -> Any:
    return encoding(name, original_length=24, **SIZES)


@pytest.mark.parametrize("name", ["rope", "yarn", "xpos", "pope", "fope", "multiscale_rope"])
def test_a_rotation_refuses_heads_of_another_width(name: str) -> None:
    with pytest.raises(ValueError, match="built for 16 as head_dim, got 32"):
        build(name).rotate(heads(4, 32), heads(2, 32), PLACES, PLACES)


@pytest.mark.parametrize("name", ["pope", "fope", "multiscale_rope"])
def test_a_rotation_by_head_refuses_another_count_of_them(name: str) -> None:
    with pytest.raises(ValueError, match="built for 2 as heads of k, got 1"):
        build(name).rotate(heads(4), heads(1), PLACES, PLACES)


@pytest.mark.parametrize("name", ["alibi", "t5", "kerple_log", "kerple_power", "sandwich", "fire"])
def test_a_bias_of_four_heads_is_not_given_to_one(name: str) -> None:
    enc = build(name)
    with pytest.raises(ValueError, match="built for 4 as heads of q, got 1"):
        enc.bias(heads(1), heads(1), PLACES, PLACES)
    with pytest.raises(ValueError, match="bias of shape .1, 4, 6, 6. does not fit|built for 4"):
        pe.attend(enc, heads(1), heads(1), heads(1))
    assert enc.bias(heads(4), heads(2), PLACES, PLACES).shape == (1, 4, 6, 6)


def test_one_factor_for_each_of_four_heads_is_not_given_to_one() -> None:
    with pytest.raises(ValueError, match="logit_scale of shape .4, 6. does not fit"):
        pe.attend(build("ssmax"), heads(1), heads(1), heads(1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"q": torch.zeros(4, 6, 16)}, r"q: expected \(batch, heads, tokens, head_dim\), got \(4,"),
        ({"k": torch.zeros(1, 3, 6, 16)}, "do not fit: .* a multiple of those of k"),
        ({"v": torch.zeros(1, 2, 5, 16)}, r"v: expected \(1, 2, 6, 'width'\) as k"),
        ({"q": torch.zeros(1, 4, 7, 16)}, "7 queries and 6 keys"),
        ({"q_positions": torch.arange(5)}, r"q_positions: expected \(6,\) or \(1, 6\)"),
        ({"k_positions": torch.zeros(3, 6).long()}, r"_positions: .* one position per token"),
        ({"mask": torch.ones(6, 6)}, "mask: expected booleans"),
        ({"mask": [[True]]}, "mask: expected booleans, .* got a list"),
        ({"k_positions": torch.arange(6) - 1}, "k_positions: expected 0 or more, got -1"),
        ({"q_positions": torch.ones(6).bool()}, "q_positions: .* whole numbers, got torch.bool"),
        ({"layer_input": [1]}, "layer_input: .* one vector per key, got a list"),
        ({"mask": torch.ones(2, 1, 6, 6).bool()}, r"mask of shape \(2, 1, 6, 6\) does not fit"),
        ({"layer_input": torch.zeros(1, 5, 64)}, "layer_input: .* one vector per key"),
        ({"q": torch.zeros(1, 4, 6, 16).half()}, "expected one dtype, got torch.float16, torch.fl"),
        ({"v": torch.zeros(1, 2, 6, 16).double()}, "32, torch.float32 and torch.float64; convert"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_attend_refuses_what_does_not_fit(changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"q": heads(4), "k": heads(2), "v": heads(2)}
    with pytest.raises(ValueError, match=said):
        pe.attend(build("rope"), **(given | changes))


def test_embeddings_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="embeddings: expected .batch, tokens, 64., got"):
        build("sinusoidal").embed(torch.zeros(1, 6, 1), PLACES)
    with pytest.raises(ValueError, match="positions: expected"):
        build("sinusoidal").embed(torch.zeros(1, 6, 64), torch.arange(1))


@pytest.mark.parametrize("start", [0, 30_000, 100_000])
def test_xpos_is_the_same_compiled_wherever_the_positions_begin(start: int) -> None:
    enc, q, k = build("xpos"), heads(4), heads(2)

    def run(positions: Tensor) -> Tensor:
        return pe.attend(enc, q, k, k, positions, positions)

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(PLACES + start), run(PLACES), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run(PLACES + start), run(PLACES), atol=1e-5, rtol=1e-5)
    with pytest.raises(RuntimeError, match="positions with gaps"):
        compiled(PLACES * 30_000)


def test_documents_are_what_chains_of_visible_keys_connect() -> None:
    """Two documents in turn; a window that slides, which is one; a query that looks at both."""
    name = torch.tensor([0, 1, 0, 1, 1, 0])
    places = torch.tensor([0, 0, 1, 1, 2, 2])
    mask = (name[:, None] == name).tril()[None, None]
    assert document_lengths(mask, places, places).of_keys.tolist() == [[3] * 6]
    places = places + name * 10
    assert document_lengths(mask, places, places).of_keys[0].tolist() == [3, 13, 3, 13, 13, 3]
    window = torch.ones(6, 6).tril().triu(-1).bool()[None, None]
    assert document_lengths(window, PLACES, PLACES).of_keys.tolist() == [[6] * 6]
    mask[..., 5, 1] = True
    assert document_lengths(mask, places, places).of_queries.tolist() == [[13] * 6]
    mask[..., 5, :] = False
    found = document_lengths(mask[..., 3:, :], places[3:], places)
    assert found.of_queries.tolist() == [[13, 13, 1]]  # the last sees nothing
