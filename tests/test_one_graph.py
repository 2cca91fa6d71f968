"""A training step is one graph to torch.compile, whatever the encoding.

Where the compiler has to stop and ask Python, the pieces around run uncompiled and every tensor
that crosses is copied: it cost ALiBi and T5 an eighth of their speed on an H100.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from pe.attention import available
from pe.model import PEForCausalLM
from pe.model.config import PEConfig

BY_KERNEL = [
    "alibi", "kerple_log", "t5", "sandwich", "fire", "fox", "cope", "dape", "path", "rope+alibi",
    "rope+window:5+sinks:2+sink", "stickbreaking", "cope+window:5",
]  # fmt: skip

TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="kernels need Triton")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@TRITON
@pytest.mark.parametrize("spec", BY_KERNEL)
def test_a_training_step_by_kernel_is_one_graph(spec: str) -> None:
    """The other encodings, and other backends: tests/test_model.py."""
    config = PEConfig(
        pe=spec, hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=48,
        vocab_size=32, max_position_embeddings=32, attention_backend="kernel",
    )  # fmt: skip
    model = PEForCausalLM(config).train()
    text = torch.randint(0, 32, (2, 17))
    batch = {"input_ids": text[:, :-1], "shift_labels": text[:, 1:].contiguous()}
    if "sinks" in spec:
        batch["document_ids"] = torch.arange(16).expand(2, -1) // 7
    whole = torch.compile(model, fullgraph=True, backend="eager")  # raises where it has to stop
    loss = whole(**batch, num_items_in_batch=1).loss
    assert torch.allclose(loss, model(**batch, num_items_in_batch=1).loss, rtol=1e-5)


@pytest.mark.parametrize("spec", ["pope", "t5", "cope", "dape", "path", "sinusoidal"])
def test_a_compiled_model_takes_another_length_without_stopping(spec: str) -> None:
    """The length is a symbol to the compiler, as from the second length on; not all takes one."""
    config = PEConfig(
        pe=spec, hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=48,
        vocab_size=32, max_position_embeddings=64,
    )  # fmt: skip
    model = PEForCausalLM(config).eval()
    whole = torch.compile(model, fullgraph=True, backend="eager")
    for length in (12, 40):
        text = torch.randint(0, 32, (2, length))
        torch._dynamo.maybe_mark_dynamic(text, 1)
        with torch.no_grad():
            read = whole(input_ids=text, use_cache=False).logits
            assert torch.allclose(read, model(input_ids=text, use_cache=False).logits, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@TRITON
def test_asking_what_a_gpu_can_do_does_not_stop_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No GPU here: a stand-in for what torch reports, which the compiler takes for a constant.
    class Ampere:
        major = 8

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Ampere())
    monkeypatch.setattr(available, "INTERPRETED", False)

    def ask(x: torch.Tensor) -> torch.Tensor:
        return x + (available.unavailable_reason(torch.device("cuda")) is None)

    assert torch.compile(ask, fullgraph=True, backend="eager")(torch.zeros(1)).item() == 1
