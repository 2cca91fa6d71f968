"""Small models for the tests of the decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pe.encodings import Encoding, list_encodings, lookup
from pe.model import PEConfig, PEForCausalLM
from pe.model.initialize import draw_weights

LENGTH = 24  # max_position_embeddings of the small models
# What draws positions anew in each call gives no two calls the same: tests/test_randomized.py.
NAMES = [n for n in list_encodings() if not getattr(lookup(n), "random", False)]
# Some tests read many times the length, one of them 1024 tokens.
OPTIONS: dict[str, dict[str, Any]] = {"learned": {"table_size": 1024}, "clex": {"max_factor": 43}}


def small(name: str = "rope", seed: int = 0, std: float = 0.2, **more: Any) -> PEForCausalLM:
    """Two layers; weights wide enough that logits, and what an encoding does to them, are large."""
    sizes: dict[str, Any] = {
        "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH,
        "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    more = {"pe_options": OPTIONS.get(name, {})} | more
    model = PEForCausalLM(PEConfig(pe=name, **(sizes | more)))
    draw_weights(model, seed, std=std)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Encoding):
                for parameter in module.parameters():  # where it begins as a constant
                    if (parameter == parameter.flatten()[0]).all():
                        parameter.uniform_(-1.5, -0.2, generator=generator)
    return model.eval()


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor, atol: float = 2e-4) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-4)


def gradients(model: PEForCausalLM) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
