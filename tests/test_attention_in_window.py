"""Windows that kernels do not serve: blocks of rows with the keys that they see, and no mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_attention_rows import Largest
from test_window_kernels import HIDDEN, no_masks  # noqa: F401
from torch import Tensor

import pe
from pe.attention import choose, path_for, rows
from pe.encodings import encoding
from pe.model import PEConfig, PEForCausalLM

SIZES: dict[str, Any] = {"head_dim": 16, "num_heads": 2, "original_length": 16, "hidden_size": 32}
SPECS = [
    "rope+window:3+sinks:1", "cope+window:4", "fire+window:3+sink", "fire+chunk:4, nope+window:3",
    "fox+window:3+sinks:1", "path+window:4", "dape+chunk:4", "self_extend+window:4",
]  # fmt: skip


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "FEWEST_ROWS", 5)


def results(spec: str, backend: str | None, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Loss over real tokens and gradients of a model of two layers."""
    torch.manual_seed(0)
    config = PEConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=16, pe=spec, attention_backend=backend,
    )  # fmt: skip
    model = PEForCausalLM(config)
    for enc in model.model.encodings:
        for parameter in enc.parameters():
            torch.nn.init.normal_(parameter, 0.3, 0.1)
    real = inputs.get("attention_mask", torch.ones(2, 20))
    ids = torch.randint(0, 40, (2, 20), generator=torch.Generator().manual_seed(1))
    out = model(input_ids=ids, use_cache=False, **inputs).logits
    (out.logsumexp(-1) * real).mean().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return gradients | {"logits": (out * real[..., None]).detach()}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("spec", SPECS)
def test_no_mask_is_made_and_logits_and_gradients_are_those_of_masks(
    spec: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = {"nothing": {}, **HIDDEN}
    want = {name: results(spec, "sdpa", inputs) for name, inputs in hidden.items()}
    request.getfixturevalue("no_masks")
    for name, inputs in hidden.items():
        monkeypatch.setattr(rows, "LARGEST_BAND", 0 if name == "holes" else 2**29)
        got = results(spec, None, inputs)
        assert got.keys() == want[name].keys()
        for key, value in want[name].items():
            torch.testing.assert_close(got[key], value, atol=2e-5, rtol=2e-4, msg=f"{name} {key}")


@pytest.mark.parametrize("spec", ["cope+window:16", "path+window:16", "rope+window:16+sinks:2"])
def test_nothing_grows_with_the_square_of_the_length(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "FEWEST_ROWS", 16)
    largest = []
    for length in (256, 512):
        enc = encoding(spec, **SIZES)
        q, k, v = (torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3))
        with Largest() as seen:
            out = pe.attend(enc, q, k, v, layer_input=torch.randn(1, length, 32))
            out.square().sum().backward()
        largest.append(seen.entries)
    assert largest[1] <= 2.1 * largest[0] < 256**2


@torch.no_grad()
@pytest.mark.usefixtures("small_blocks", "no_masks")
def test_a_prompt_read_in_blocks_leaves_the_cache_that_a_window_needs() -> None:
    torch.manual_seed(0)
    config = PEConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=16, pe="fox+window:3+sinks:1",
    )  # fmt: skip
    model = PEForCausalLM(config).eval()
    ids = torch.randint(0, 40, (1, 23), generator=torch.Generator().manual_seed(1))
    cache = model(ids, use_cache=True).past_key_values
    assert [layer.keys.shape[-2] for layer in cache.layers] == [3 + 1] * 4


def test_masks_stay_where_a_window_hides_little_or_a_backend_is_named(
    no_masks: None,  # noqa: F811
) -> None:
    enc = encoding("rope+window:5", **SIZES)
    for length, backend in ((20, None), (21, "sdpa"), (21, "dense")):
        q = torch.randn(1, 2, length, 16)
        with pytest.raises(AssertionError, match="a T x T mask was made"):
            pe.attend(enc, q, q, q, backend=backend)
    q = torch.randn(1, 2, 21, 16)
    assert pe.attend(enc, q, q, q).shape == q.shape
    place = torch.device("cpu")
    assert [path_for(enc, place, torch.float32, n) for n in (20, 21)] == ["matrix", "rows"]
    assert not choose.shows_few(encoding("rope", **SIZES), 10**6)
