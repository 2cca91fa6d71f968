"""The models that a speed run measures, ours and the peers', behind one interface.

All have the sizes of one recipe: width, layers, heads, inner width, vocabulary and a tied head.
Each is compiled as a user of its library would do it: our model and that of transformers with their
own loss, and that of x-transformers with cross-entropy around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pe.attention import choose
from pe.recipes.recipe import Recipe
from pe.speed.names import library
from pe.training.build import build_config, build_model

# x-transformers 2.31. Its T5 bias, dynamic bias and CoPE refuse flash attention.
_X_OPTIONS: dict[str, dict[str, Any]] = {
    "nope": {"attn_flash": True},
    "rope": {"attn_flash": True, "rotary_pos_emb": True},
    "alibi": {"attn_flash": True, "alibi_pos_bias": True},
    "t5": {"rel_pos_bias": True},
    "pope": {"attn_flash": True, "polar_pos_emb": True},
    "dynamic": {"dynamic_pos_bias": True},
    "fox": {"attn_flash": True, "attn_data_dependent_alibi": True},
    "cope": {"attn_use_cope": True, "attn_cope_max_pos": 16},
}
_X_BIASED = ("alibi", "fox")  # flash is asked for, and a T x T bias is handed to it
# Compiled, x-transformers' CoPE is five times slower than not (benchmarks/LOG.md).
_NOT_COMPILED = ("x-transformers/cope",)


class System(NamedTuple):
    """A model with functions for its training step and its prefill."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    """(B, T) tokens and (B, T) targets -> mean loss."""
    last: Callable[[Tensor], Tensor]
    """(B, T) tokens -> logits (B, 1, V) of the last one."""
    path: str
    """Which attention it runs."""
    compilable: bool = True


def build(name: str, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> System:
    """Build the system of this name; ``recipe`` has its length, ``dtype`` is that of queries.

    Raises:
        ValueError: the chooser refuses the encoding at this length, or on this device.
    """
    makers = {"": _ours, "transformers": _llama, "x-transformers": _x_transformers}
    return makers[library(name)](name, recipe, device, dtype)


def _ours(name: str, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> System:
    model = build_model(recipe, recipe.vocab_size).to(device)
    encoding: Any = model.model.encodings[0]
    sequences = recipe.batch_size * recipe.num_attention_heads
    path = choose.path_for(
        encoding, device, dtype, recipe.context_length, sequences, recipe.head_dim
    )

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        # As the trainer does it: in the model, the divisor would be part of the graph.
        out = model(input_ids=tokens, shift_labels=targets, num_items_in_batch=1)
        return out.loss / targets.numel()  # type: ignore[no-any-return]

    def last(tokens: Tensor) -> Tensor:
        out = model(input_ids=tokens, logits_to_keep=1, use_cache=False)
        return out.logits  # type: ignore[no-any-return]

    return System(model, loss, last, path)


def llama(recipe: Recipe) -> nn.Module:
    """Build transformers' Llama with the recipe's sizes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    ours = build_config(recipe, recipe.vocab_size)
    sizes = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
    )  # fmt: skip
    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            **{name: getattr(ours, name) for name in sizes},
            tie_word_embeddings=True,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )
    return model


def _llama(name: str, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> System:
    model = llama(recipe).to(device)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return model(input_ids=tokens, labels=tokens).loss  # type: ignore[no-any-return]

    def last(tokens: Tensor) -> Tensor:
        return model(input_ids=tokens, logits_to_keep=1).logits  # type: ignore[no-any-return]

    return System(model, loss, last, "torch SDPA")


class _Headed(nn.Module):
    """A TransformerWrapper with the loss inside, so that the compiler sees both."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        if targets is None:
            hidden = self.inner(tokens, return_embeddings=True)
            return self.inner.to_logits(hidden[:, -1:])  # type: ignore[no-any-return]
        return cross_entropy(self.inner(tokens).flatten(0, 1), targets.flatten())


def _x_transformers(name: str, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> System:
    from x_transformers import Decoder, TransformerWrapper

    kind = name.partition("/")[2]
    options = dict(_X_OPTIONS[kind])
    if kind == "rope":
        options["rotary_emb_dim"] = recipe.head_dim  # its default rotates half of the head
    layers = Decoder(
        dim=recipe.hidden_size,
        depth=recipe.num_hidden_layers,
        heads=recipe.num_attention_heads,
        attn_dim_head=recipe.head_dim,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        ff_mult=recipe.intermediate_size / recipe.hidden_size,
        use_rmsnorm=True,
        verbose=False,
        **options,
    )
    wrapper = TransformerWrapper(
        num_tokens=recipe.vocab_size,
        max_seq_len=recipe.context_length,
        use_abs_pos_emb=False,
        tie_embedding=True,
        attn_layers=layers,
    )
    model = _Headed(wrapper).to(device)
    path = "torch SDPA" if options.get("attn_flash") else "scores in memory"
    path += ", a bias in memory" if kind in _X_BIASED else ""
    return System(
        model,
        model,
        functools.partial(model, targets=None),
        path,
        compilable=name not in _NOT_COMPILED,
    )
