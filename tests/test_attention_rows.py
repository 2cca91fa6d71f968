"""A bias that only a matrix can express, when the matrix would be large."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import pe
from pe.attention import choose, path_for, rows
from pe.model import PEForCausalLM
from pe.model.config import PEConfig

SPECS = ["cope", "fire", "alibi", "fox", "t5", "kerple_log+fox", "alibi+randomized", "rope+cope"]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix counts as large; a block is about seven rows."""
    monkeypatch.setattr(choose, "LARGEST_MATRIX", 0)
    monkeypatch.setattr(rows, "BLOCK", 2 * 4 * 40 * 7)


def step(spec: str, compiler: Any = None, **inputs: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    config = PEConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, pe=spec,
    )  # fmt: skip
    model = PEForCausalLM(config)
    for encoding in model.model.encodings:  # CoPE begins with a table of zeros
        for parameter in encoding.parameters():
            torch.nn.init.normal_(parameter, 0.3, 0.1)
    if compiler is not None:
        model.compile(backend=compiler)
    ids = torch.randint(0, 40, (2, 40))
    torch.manual_seed(1)  # of randomized positions
    loss = model(input_ids=ids, labels=ids, **inputs).loss
    loss.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return found | {"loss": loss.detach()}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("padded", [False, True])
def test_rows_give_the_loss_and_gradients_of_the_matrix(
    spec: str, padded: bool, request: pytest.FixtureRequest
) -> None:
    inputs: dict[str, Any] = {}
    if padded:
        inputs["attention_mask"] = torch.ones(2, 40).long()
        inputs["attention_mask"][0, :9] = 0
        inputs["attention_mask"][1, 12:17] = 0  # tokens between others
    whole = step(spec, **inputs)
    request.getfixturevalue("small_blocks")
    by_rows = step(spec, **inputs)
    assert whole.keys() == by_rows.keys()
    for name, want in whole.items():
        torch.testing.assert_close(by_rows[name], want, atol=2e-5, rtol=2e-4, msg=name)


class Largest(TorchDispatchMode):
    """Entries of the largest tensor that any operator gives, forward or backward."""

    entries = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        for found in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(found, Tensor):
                self.entries = max(self.entries, found.untyped_storage().nbytes() // 4)
        return out


@pytest.mark.parametrize("spec", ["cope", "kerple_log+fox"])
def test_the_matrix_is_never_there(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LARGEST_MATRIX", 0)
    monkeypatch.setattr(rows, "BLOCK", 2**14)
    largest = []
    for length in (256, 512):
        torch.manual_seed(0)
        options = {"npos": 16} if spec == "cope" else {}
        enc = pe.encoding(
            spec, head_dim=16, num_heads=2, num_kv_heads=2, hidden_size=24, original_length=16,
            **options,
        )  # fmt: skip
        q, k, v = (torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3))
        with Largest() as seen:
            out = pe.attend(enc, q, k, v, layer_input=torch.randn(1, length, 24))
            out.square().sum().backward()
        largest.append(seen.entries)
    assert largest[1] < 2.1 * largest[0] < 512**2


def test_what_is_large_is_said_beforehand() -> None:
    enc = pe.encoding("cope", head_dim=16, num_heads=2, original_length=16)
    place, dtype = torch.device("cuda"), torch.bfloat16
    assert path_for(enc, place, dtype, 1024, 64 * 8) == "matrix"
    assert path_for(enc, place, dtype, 16384, 4 * 8) == "rows"


@pytest.mark.usefixtures("small_blocks")
def test_generation_with_a_cache_goes_on() -> None:
    torch.manual_seed(0)
    config = PEConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, pe="t5+rope", eos_token_id=None,
    )  # fmt: skip
    model = PEForCausalLM(config).eval()
    ids = torch.randint(0, 40, (1, 12))
    out = model.generate(ids, max_new_tokens=5, do_sample=False)
    for end in range(12, 17):
        assert out[0, end] == model(out[:, :end], use_cache=False).logits[0, -1].argmax()


@pytest.mark.usefixtures("small_blocks")
def test_a_compiler_does_not_unroll_the_blocks() -> None:
    eager = step("cope")
    torch._dynamo.reset()
    traced: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        traced.append(len(graph.graph.nodes))
        assert not any("checkpoint" in str(node.target) for node in graph.graph.nodes)
        return graph

    found = step("cope", compiler=count)
    assert len(traced) >= 2
    for name, want in eager.items():
        torch.testing.assert_close(found[name], want, atol=2e-5, rtol=2e-4, msg=name)
