"""One layer of the decoder: attention, where the encoding acts, and the feed-forward block.

    x += attention(norm(x));  x += swiglu(norm(x))

Dropout acts on both terms that are added to x, as in GPT-2. The layer does not know which encoding
it has: it calls the methods of `pe.encodings.Encoding`. B batch, T tokens, H query heads, K key
heads, D head_dim.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import Cache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from pe.attention import scaled
from pe.attention.choose import bias_of, checked, compute
from pe.attention.dense import attention_weights
from pe.attention.spans import Spans
from pe.encodings import Encoding, Prepared
from pe.model.config import PEConfig


class LayerInputs(NamedTuple):
    """The inputs of one call that all layers with the same encoding share."""

    prepared: Prepared
    """What the encoding's `prepare` computed from the positions."""
    mask: Tensor | Spans | None
    """(1 or B, 1, T, past + T), True where a query sees a key; None: causal. For some kernels spans
    take its place, which contain the same information."""
    temperature: Tensor | None
    """The factor of the logits, broadcastable to (B, H, T); None: 1."""


class Attention(nn.Module):
    """Multi-head attention with grouped queries, to which the encoding adds what it knows."""

    def __init__(self, config: PEConfig, layer_index: int) -> None:
        super().__init__()
        self.layer_index, self.num_layers = layer_index, config.num_hidden_layers
        self.head_dim = config.head_dim
        queries = config.num_attention_heads * config.head_dim
        kv = config.num_key_value_heads * config.head_dim
        self.widths = [queries, kv, kv]
        # One product in place of three reads the layer's input once.
        self.qkv_proj = nn.Linear(config.hidden_size, queries + 2 * kv, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

        def norm(wanted: bool, width: int) -> nn.Module:
            return nn.RMSNorm(width, eps=config.rms_norm_eps) if wanted else nn.Identity()

        self.q_norm = norm(config.qk_norm, config.head_dim)
        self.k_norm = norm(config.qk_norm, config.head_dim)
        self.joint_q_norm = norm("q" in config.joint_norm, queries)
        self.joint_k_norm = norm("k" in config.joint_norm, kv)
        self.usual_scale = 1.0 / math.sqrt(self.head_dim)
        self.scale = config.softmax_scale or self.usual_scale
        eager = config._attn_implementation == "eager"
        self.backend = checked("dense" if eager else config.attention_backend)

    def _heads(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, -1, self.head_dim).transpose(1, 2)  # (B, H, T, D)

    def forward(
        self,
        x: Tensor,
        enc: Encoding,
        shared: LayerInputs,
        cache: Cache | None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output (B, T, hidden), and the probabilities (B, H, T, past + T) or None.

        Args:
            x: (B, T, hidden), from which queries, keys and values are projected.
            enc: the layer's encoding.
            cache: keys, values and the encoding's state of earlier tokens, to which those of these
                tokens are added.
            output_attentions: also return probabilities. Only the dense backend computes them, so
                it is used then.
        """
        prepared, mask, temperature = shared
        backend = "dense" if output_attentions else self.backend
        q, k, v = torch.split(self.qkv_proj(x), self.widths, dim=-1)
        q, k = self._heads(self.joint_q_norm(q)), self._heads(self.joint_k_norm(k))
        q, k, v = self.q_norm(q), self.k_norm(k), self._heads(v)
        scale = self.scale
        if enc.content_dependent:
            # Its bias takes the logits to be q k / sqrt(d), so all other factors go into q first.
            q = scaled(q, temperature)
            if scale != self.usual_scale:
                q = scaled(q, q.new_full((), scale / self.usual_scale, dtype=torch.float64))
            scale, temperature = self.usual_scale, None
        q_positions, k_positions, tables, counted = prepared
        state = enc.key_state(x)
        if cache is not None and state is not None:
            state = self._cached_state(cache, state)
        if cache is not None and enc.raw_keys:
            k, v = cache.update(k, v, self.layer_index)
        bias = bias_of(enc, q, k, q_positions, k_positions, state, mask, counted, backend)
        factor = enc.logit_scale(q_positions)
        if enc.raw_keys or cache is None:
            q, k = enc.rotate(q, k, q_positions, k_positions, tables)
        else:  # the cache holds rotated keys, so only the new ones are rotated
            q, k = enc.rotate(q, k, q_positions, q_positions, tables)
            k, v = cache.update(k, v, self.layer_index)
        q = scaled(scaled(q, factor), temperature)
        sink = enc.sink_logit()
        out = compute(q, k, v, scale, bias, mask, backend, sink)
        weights = None
        if output_attentions:
            assert not isinstance(mask, Spans)  # the dense backend gets masks only
            weights = attention_weights(q, k, scale, bias.whole, mask, sink)
        return self.o_proj(out.transpose(1, 2).flatten(-2)), weights

    def _cached_state(self, cache: Cache, state: Tensor) -> Tensor:
        """Add the state of the new tokens to the cache and return that of all tokens so far.

        The state is stored as one more layer of the cache per layer of the model, so transformers
        reorders, crops and moves it together with the keys.
        """
        index = self.num_layers + self.layer_index
        while len(cache.layers) <= index:
            cache.layers.append(DynamicLayer())
        return cache.update(state, state[..., :0], index)[0]  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """The feed-forward block down(silu(gate x) * up x), arXiv:2002.05202."""

    def __init__(self, config: PEConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Block(GradientCheckpointingLayer):
    """One decoder layer.

    With activation checkpointing, transformers computes it a second time in the backward pass.
    """

    def __init__(self, config: PEConfig, layer_index: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = Attention(config, layer_index)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        enc: Encoding,
        shared: LayerInputs,
        cache: Cache | None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Arguments and results are those of `Attention.forward`."""
        out, weights = self.attention(self.attention_norm(x), enc, shared, cache, output_attentions)
        x = x + self.dropout(out)
        return x + self.dropout(self.mlp(self.mlp_norm(x))), weights
