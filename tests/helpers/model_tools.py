"""Small models for the tests of the decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache

from pe.encodings import Encoding, FrequencyTransform, encoding, list_encodings, lookup
from pe.model import PEConfig, PEForCausalLM
from pe.model.initialize import draw_weights

LENGTH = 24  # max_position_embeddings of the small models
# Encodings that draw positions in each call give no two calls the same: tests/test_randomized.py.
NAMES = [n for n in list_encodings() if not getattr(lookup(n), "random", False)]
# Some tests read many times the length, one of them 1024 tokens.
OPTIONS: dict[str, dict[str, Any]] = {
    "learned": {"table_size": 1024}, "clex": {"max_factor": 43, "steps": 2},
}  # fmt: skip


def cheaper(spec: str) -> dict[str, Any]:
    """Options with which an encoding takes less time and has the same properties.

    CLEX solves its equation in each forward pass, in 10 steps per unit of t by default.
    """
    return {"steps": 2} if "clex" in spec.split("+") else {}


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


def encoding_of(name: str) -> Encoding:
    """The encoding of the small models by itself."""
    return encoding(
        name, head_dim=16, num_heads=4, num_kv_heads=2, hidden_size=64, original_length=LENGTH,
        **OPTIONS.get(name, {}),
    )  # fmt: skip


def one_per_kind(
    names: Iterable[str], traits: Callable[[Encoding], tuple[Any, ...]] | None = None
) -> list[str]:
    """One encoding for each combination of traits, for tests of what surrounds an encoding.

    What an encoding itself has to keep is a law, checked for every one of them. ``traits`` gives
    those that the code under test can tell apart, if these are not all.
    """
    kinds: dict[tuple[Any, ...], str] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        enc: Any = encoding_of(name)
        if traits is not None:
            kinds.setdefault(traits(enc), name)
            continue
        q, k, where = torch.ones(1, 4, 2, 16), torch.ones(1, 2, 2, 16), torch.arange(2)
        kind = (
            enc.relative, enc.random, enc.length_dependent, enc.content_dependent, enc.raw_keys,
            enc.state_size, enc.per_layer, enc.rotates, enc.embeds, enc.biased, enc.has_form,
            enc.max_positions is None, any(p.requires_grad for p in enc.parameters()),
            enc.logit_scale(where) is None, enc.rotate(q, k, where, where)[0].shape[-1],
            issubclass(lookup(name), FrequencyTransform),
        )  # fmt: skip
        kinds.setdefault(kind, name)
    return sorted(kinds.values())


def in_a_cache(enc: Encoding) -> tuple[Any, ...]:
    """Return the traits of an encoding on which a cache depends."""
    q, k, where = torch.ones(1, 4, 2, 16), torch.ones(1, 2, 2, 16), torch.arange(2)
    width = enc.rotate(q, k, where, where)[1].shape[-1]
    return (enc.raw_keys, enc.length_dependent, enc.state_size, enc.embeds, enc.biased, width)


def in_a_run(enc: Encoding) -> tuple[Any, ...]:
    """Return the traits of an encoding on which training, checkpoints and evaluation depend."""
    learns = any(p.requires_grad for p in enc.parameters())
    ends = enc.max_positions is not None
    return (enc.random, learns, enc.per_layer, enc.raw_keys, enc.state_size, enc.embeds, ends)


def stepwise(model: PEForCausalLM, ids: Tensor, chunks: list[int], **more: Any) -> Tensor:
    """Return the logits of all tokens, fed in chunks through one cache."""
    cache, logits, start = DynamicCache(), [], 0
    mask = more.pop("attention_mask", None)
    for size in chunks:
        end = start + size
        if mask is not None:
            more["attention_mask"] = mask[:, :end]
        logits.append(model(ids[:, start:end], past_key_values=cache, **more).logits)
        start = end
    assert start == ids.shape[1]
    assert cache.get_seq_length() == start
    return torch.cat(logits, 1)


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor, atol: float = 2e-4) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-4)


def gradients(model: PEForCausalLM) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operator returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.elements = max(self.elements, leaf.numel())
        return out


# Without those that draw positions in each call: no two calls agree (tests/test_randomized.py).
KINDS = one_per_kind(NAMES)
