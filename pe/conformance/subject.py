"""The encoding under test, at small sizes, with inputs for its hooks.

B batch, T tokens, H query heads, K key heads, D head_dim.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pe._seed import seed_torch
from pe.attention import attend, scaled
from pe.attention.masks import lower_right_causal
from pe.encodings import Encoding, encoding, layer_encodings
from pe.encodings.core.options import takes
from pe.encodings.core.parts import part_classes
from pe.encodings.core.spec import parse

if TYPE_CHECKING:
    from pe.model import PEForCausalLM

SIZES = {"head_dim": 16, "num_heads": 4, "num_kv_heads": 2, "hidden_size": 64}
LENGTH = 24  # original length, unless the options give another
FAR = (0, 1, 255, 256, 257, 2048, 4095, 15962, 65535, 100_000)
VOCABULARY = 61


class Inputs(NamedTuple):
    """The inputs that a layer hands to the hooks."""

    q: Tensor
    k: Tensor
    v: Tensor
    x: Tensor
    """(B, T, hidden): the layer's input, or the token embeddings."""

    def to(self, dtype: torch.dtype) -> Inputs:
        """The same numbers in another type."""
        return Inputs(*(t.to(dtype) for t in self))

    def rows(self, chosen: slice) -> Inputs:
        """Some rows of the batch."""
        return Inputs(*(t[chosen] for t in self))

    def tokens(self, chosen: slice | Tensor) -> Inputs:
        """Some of the tokens."""
        q, k, v = (t[:, :, chosen] for t in (self.q, self.k, self.v))
        return Inputs(q, k, v, self.x[:, chosen])

    def last(self, queries: int) -> Inputs:
        """The last queries of these, with all keys."""
        return self._replace(q=self.q[:, :, -queries:])


class Subject:
    """One spec with its options."""

    def __init__(self, spec: str, options: dict[str, Any] | None = None) -> None:
        self.spec, self.options = spec, dict(options or {})
        for name in (n for n in SIZES if n in self.options):
            raise ValueError(
                f"{name} {self.options[name]!r}: the laws have sizes of their own, and {name} is "
                f"{SIZES[name]}; leave it out"
            )
        self.length: int = self.options.get("original_length") or LENGTH
        self.arguments = {"original_length": self.length} | SIZES | self.options
        self.enc = self.build()
        self.parts = part_classes(spec)
        schedule = any(takes(part, "layer_index") for part in self.parts.values())
        listed = len(parse(spec))
        self.scheduled = listed > 1
        self.depth = listed if self.scheduled else 4 if schedule else 2

    def build(self) -> Encoding:
        """A fresh one, not in training; its learned numbers are drawn, then moved a little."""
        return nudged(encoding(self.spec, **self.arguments)).eval()

    def layers(self) -> list[Encoding]:
        """The encodings of a model: one for each layer, or one for all."""
        arguments = {k: v for k, v in self.arguments.items() if k != "layer_index"}
        return [nudged(enc) for enc in layer_encodings(self.spec, self.depth, **arguments)]

    def model(self, **more: Any) -> PEForCausalLM:
        """A small decoder with wide weights, so that its logits show what an encoding does."""
        from pe.model import PEConfig, PEForCausalLM
        from pe.model.initialize import draw_weights

        sizes: dict[str, Any] = {
            "vocab_size": VOCABULARY, "hidden_size": SIZES["hidden_size"], "intermediate_size": 96,
            "num_hidden_layers": self.depth, "num_attention_heads": SIZES["num_heads"],
            "num_key_value_heads": SIZES["num_kv_heads"], "max_position_embeddings": self.length,
            "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0,
        }  # fmt: skip
        options = {k: v for k, v in self.options.items() if k != "layer_index"}
        config = PEConfig(pe=self.spec, pe_options=options, **(sizes | more))
        model: PEForCausalLM = PEForCausalLM(config)
        draw_weights(model, seed=0, std=0.2)
        for enc in model.model.encodings:
            nudged(enc, draw=False)  # type: ignore[arg-type]
        model.eval()
        return model

    @functools.cached_property
    def cached_model(self) -> PEForCausalLM:
        """A model that gives the same step by step through a cache as all at once.

        Keys that deeper layers computed at earlier lengths stay what they were, so with several
        layers a length-dependent encoding is not promised to agree. Laws share it; the law of
        memory, which asks whether calls leave anything behind, builds one for itself.
        """
        one = self.enc.length_dependent and not self.scheduled
        return self.model(num_hidden_layers=1 if one else self.depth)

    def reach(self, positions: Sequence[int]) -> Tensor:
        """Those positions that the encoding accepts."""
        limit = self.enc.max_positions
        return torch.tensor([p for p in positions if limit is None or p < limit])

    def lengths(self, *wanted: int) -> list[int]:
        """Those lengths that the encoding accepts."""
        limit = self.enc.max_positions
        return sorted({n for n in wanted if n > 0 and (limit is None or n <= limit)})


@torch.no_grad()
def nudged(enc: Encoding, draw: bool = True, side: float = 0.0) -> Encoding:
    """Draw the learned numbers and add noise, so that nothing rests on zeros or ones.

    ``side``: 1 or -1 where the noise shall have one sign.
    """
    generator = torch.Generator().manual_seed(7)
    if draw:
        enc.reset_parameters(generator)
    for parameter in enc.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        noise = side * noise.abs() if side else noise
        parameter.add_(0.1 * noise.to(parameter.dtype))
    return enc


def learned(enc: Encoding) -> dict[str, Tensor]:
    """The parameters that training changes, by name."""
    return {name: p for name, p in enc.named_parameters() if p.requires_grad}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same ones each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(length: int, batch: int = 2, seed: int = 0) -> Inputs:
    """Queries, keys, values and layer input at the suite's sizes."""
    heads, keys, width = SIZES["num_heads"], SIZES["num_kv_heads"], SIZES["head_dim"]
    return Inputs(
        drawn(batch, heads, length, width, seed=seed),
        drawn(batch, keys, length, width, seed=seed + 1),
        drawn(batch, keys, length, width, seed=seed + 2),
        drawn(batch, length, SIZES["hidden_size"], seed=seed + 3),
    )


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    """Token ids, none of them padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (batch, length), generator=generator)


@contextlib.contextmanager
def same_draw() -> Iterator[None]:
    """Random encodings draw the same here each time; the caller's own numbers are untouched."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(0)
        yield


def hooks(enc: Encoding, case: Inputs, positions: Tensor) -> dict[str, Tensor]:
    """The result of each hook, by name."""
    with same_draw():
        where = enc.prepare(positions, positions, case.q.dtype)
    q, k = enc.rotate(case.q, case.k, where.q_positions, where.k_positions, where.tables)
    state = enc.key_state(case.x)
    results = {
        "embeddings": enc.embed(case.x, where.q_positions), "queries": q, "keys": k,
        "key state": state, "logit scale": enc.logit_scale(where.q_positions),
        "bias": enc.bias(case.q, case.k, where.q_positions, where.k_positions, state),
    }  # fmt: skip
    return {name: value for name, value in results.items() if value is not None}


def scores(enc: Encoding, case: Inputs, positions: Tensor) -> Tensor:
    """All that an encoding does to logits, (B, H, Tq, Tk); 0 where a query may not look."""
    q, k = case.q, case.k
    with same_draw():
        where = enc.prepare(positions, positions, q.dtype)
    bias = enc.bias(q, k, where.q_positions, where.k_positions, enc.key_state(case.x))
    factor = enc.logit_scale(where.q_positions)
    q, k = enc.rotate(q, k, where.q_positions, where.k_positions, where.tables)
    wide = torch.promote_types(q.dtype, torch.float32)
    keys = k.to(wide).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    logits = scaled(q.to(wide), factor) @ keys.transpose(-1, -2) / math.sqrt(case.q.shape[-1])
    if bias is not None:
        logits = logits + bias
    causal = lower_right_causal(logits.shape[-2], logits.shape[-1], logits.device)
    return logits.masked_fill(~causal, 0.0)


def attended(
    enc: Encoding,
    case: Inputs,
    k_positions: Tensor,
    q_positions: Tensor | None = None,
    backend: str = "dense",
    mask: Tensor | None = None,
) -> Tensor:
    """`pe.attend` with the layer's input, and the same draw each time."""
    if q_positions is None:
        q_positions = k_positions
    with same_draw():
        return attend(
            enc, case.q, case.k, case.v, q_positions, k_positions, mask, backend, case.x
        )  # fmt: skip
