"""The encoding under test, built at small sizes, and inputs for its hooks.

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
LENGTH = 24
"""The training length in tokens, unless the options give ``original_length``."""
FAR = (0, 1, 255, 256, 257, 2048, 4095, 15962, 65535, 100_000)
"""Positions at which rounding errors of bfloat16 or float32 phases are visible."""
VOCABULARY = 61


class Inputs(NamedTuple):
    """The inputs that a layer passes to the hooks."""

    q: Tensor
    """(B, H, T, D)."""
    k: Tensor
    """(B, K, T, D)."""
    v: Tensor
    """(B, K, T, D)."""
    x: Tensor
    """(B, T, hidden): the layer's input, or the token embeddings."""

    def to(self, dtype: torch.dtype) -> Inputs:
        """Return the same numbers in another type."""
        return Inputs(*(t.to(dtype) for t in self))

    def rows(self, chosen: slice) -> Inputs:
        """Return some sequences of the batch."""
        return Inputs(*(t[chosen] for t in self))

    def tokens(self, chosen: slice | Tensor) -> Inputs:
        """Return some of the tokens."""
        q, k, v = (t[:, :, chosen] for t in (self.q, self.k, self.v))
        return Inputs(q, k, v, self.x[:, chosen])

    def last(self, queries: int) -> Inputs:
        """Return the last ``queries`` queries, with all keys."""
        return self._replace(q=self.q[:, :, -queries:])


class Subject:
    """The encoding under test: one spec with its options."""

    def __init__(self, spec: str, options: dict[str, Any] | None = None) -> None:
        self.spec, self.options = spec, dict(options or {})
        for name in (n for n in SIZES if n in self.options):
            raise ValueError(
                f"{name} {self.options[name]!r}: the laws use fixed sizes, and {name} is "
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
        """Build the encoding in evaluation mode, with new parameters to which noise is added."""
        return nudged(encoding(self.spec, **self.arguments)).eval()

    def layers(self) -> list[Encoding]:
        """Return the encodings of a model: one for each layer, or a single one for all layers."""
        arguments = {k: v for k, v in self.arguments.items() if k != "layer_index"}
        return [nudged(enc) for enc in layer_encodings(self.spec, self.depth, **arguments)]

    def model(self, **more: Any) -> PEForCausalLM:
        """Return a small decoder with large weights, so that encodings have a visible effect."""
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
    def deep_model(self) -> PEForCausalLM:
        """A model of all layers, which several laws share; it has to stay as it is."""
        return self.model()

    @functools.cached_property
    def cached_model(self) -> PEForCausalLM:
        """A model whose logits with a cache must equal those without, which several laws share.

        With a length-dependent encoding it has one layer. In a deeper model, the cached keys of
        later layers were computed from a shorter sequence, so the logits do not have to agree.
        """
        one = self.enc.length_dependent and not self.scheduled
        return self.model(num_hidden_layers=1) if one else self.deep_model

    def reach(self, positions: Sequence[int]) -> Tensor:
        """Return the positions that the encoding accepts."""
        limit = self.enc.max_positions
        return torch.tensor([p for p in positions if limit is None or p < limit])

    def lengths(self, *wanted: int) -> list[int]:
        """Return the lengths that the encoding accepts, ascending."""
        limit = self.enc.max_positions
        return sorted({n for n in wanted if n > 0 and (limit is None or n <= limit)})


@torch.no_grad()
def nudged(enc: Encoding, draw: bool = True, side: float = 0.0) -> Encoding:
    """Draw the learned parameters and add noise, because initial values of 0 and 1 hide mistakes.

    Args:
        draw: whether the parameters are drawn again first.
        side: 1 or -1 if all noise must have this sign.
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
    """Return the parameters that training changes, by name."""
    return {name: p for name, p in enc.named_parameters() if p.requires_grad}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers, which are the same in each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(length: int, batch: int = 2, seed: int = 0) -> Inputs:
    """Return queries, keys, values and layer input of the sizes `SIZES`."""
    heads, keys, width = SIZES["num_heads"], SIZES["num_kv_heads"], SIZES["head_dim"]
    return Inputs(
        drawn(batch, heads, length, width, seed=seed),
        drawn(batch, keys, length, width, seed=seed + 1),
        drawn(batch, keys, length, width, seed=seed + 2),
        drawn(batch, length, SIZES["hidden_size"], seed=seed + 3),
    )


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    """Return token ids (batch, length), none of which is padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (batch, length), generator=generator)


@contextlib.contextmanager
def same_draw() -> Iterator[None]:
    """In this block random encodings always draw the same numbers; torch's state is restored."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(0)
        yield


def hooks(enc: Encoding, case: Inputs, positions: Tensor) -> dict[str, Tensor]:
    """Return the result of each hook, by name."""
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
    """Return the logits with the encoding, (B, H, Tq, Tk); 0 at keys ahead of a query."""
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
    """Return the result of `pe.attend` with the layer's input and fixed random draws."""
    if q_positions is None:
        q_positions = k_positions
    with same_draw():
        return attend(
            enc, case.q, case.k, case.v, q_positions, k_positions, mask, backend, case.x
        )  # fmt: skip
