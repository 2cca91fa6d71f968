"""A LLaMA-style decoder that knows nothing about any particular positional encoding.

    x = embed(tokens);  x += attention(norm(x));  x += swiglu(norm(x));  logits = norm(x) E^T

RMSNorm before each block, SwiGLU, no biases, head tied to the embeddings (arXiv:2302.13971).
Dropout, if the configuration has it, on the embeddings and on what each block adds to x. The
encoding acts through the hooks of `pe.encodings.Encoding`. Being a transformers `PreTrainedModel`
with `GenerationMixin`, a run loads with ``AutoModelForCausalLM.from_pretrained`` once ``pe.model``
has been imported. Its layers are in `pe.model.layers`. B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    Cache,
    DynamicCache,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from pe._errors import PositionError, unknown
from pe.attention.choose import bounded, spans_for
from pe.attention.documents import document_lengths
from pe.attention.masks import positions_of, visible
from pe.attention.spans import Bounded, Spans, counted_within
from pe.encodings import Encoding, Prepared, layer_encodings
from pe.encodings.core.base import Lengths, tightest
from pe.model.cache import WindowLayer, window_layer
from pe.model.config import PEConfig
from pe.model.layers import Block
from pe.model.loss import IGNORE, summed_loss

# transformers 5 renamed `past_key_values` to `cache` on the way; both are accepted everywhere.
CACHE_FIELD = (
    "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
)
# What transformers' own code passes along and this model has no use for.
TOLERATED = frozenset(
    {"cache_position", "return_dict", "output_hidden_states", "token_type_ids",
     "is_first_iteration"}
)  # fmt: skip


class Seen(NamedTuple):
    """What the layers that share an encoding make of one call's positions and mask."""

    where: Prepared
    mask: Tensor | Spans | None
    """(1 or B, 1, T, keys), True where a query sees a key, or spans for kernels; None: causal."""
    temperature: Tensor | None
    """As `PEModel._temperature` gives it."""
    kept: Tensor | None
    """(keys,), True at those that later queries may see; None: all."""


class PEPreTrainedModel(PreTrainedModel):
    """What both models below share with transformers."""

    config_class = PEConfig
    base_model_prefix = "model"
    _no_split_modules = ["Block"]
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    def __init__(self, config: PEConfig, **unknown: Any) -> None:
        if not isinstance(config, PEConfig):
            raise ValueError(f"config: expected a PEConfig, got a {type(config).__name__}")
        config.refuse_arguments(unknown)
        super().__init__(config)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Encoding):
            # Loading builds the module on the meta device and leaves its constants unwritten.
            module.register_exact_buffers()
            loaded = [getattr(p, "_is_hf_initialized", False) for p in module.parameters()]
            if not all(loaded):
                module.reset_parameters()


class PEModel(PEPreTrainedModel):
    """The decoder without its head."""

    float32_residual = False
    """Keep the residual stream in float32 under autocast; see `pe.evaluate`."""

    def __init__(self, config: PEConfig, **unknown: Any) -> None:
        super().__init__(config, **unknown)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        arguments = config.encoding_context() | config.pe_options
        layers = layer_encodings(config.pe, config.num_hidden_layers, **arguments)
        distinct = list(dict.fromkeys(layers))
        self.encodings = nn.ModuleList(distinct)
        numbers = [distinct.index(enc) for enc in layers]
        self.encoding_of = (numbers * config.num_hidden_layers)[: config.num_hidden_layers]
        """By layer: which of `encodings` it uses."""
        self.post_init()
        config.built()

    @property
    def cacheable(self) -> bool:
        """Whether the encodings allow a cache (`Encoding.cacheable`)."""
        return all(enc.cacheable for enc in self.encodings)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        document_ids: Tensor | None = None,
        cache: Cache | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """(B, T) token ids -> last_hidden_state (B, T, hidden), and attentions if asked for.

        Args:
            attention_mask: (B, past + T), 0 at padding.
            position_ids: (T,) or (B, T); default: counted from the mask. A cache holds no
                positions, so with one only the counted ones are accepted.
            document_ids: (B, T); attention stays inside a document. Not with a cache.
            output_attentions: return each layer's probabilities too, (B, H, T, past + T) in
                float32. Attention is computed by its definition then (`pe.attention.dense`),
                whatever backend is set, so memory grows with the square of the length. None: as the
                configuration says.
        """
        for name in kwargs:
            if name not in TOLERATED:
                known = list(inspect.signature(PEModel.forward).parameters)[1:-1]
                raise unknown("argument", name, known)
            if name == "output_hidden_states" and kwargs[name]:
                raise ValueError(f"{name}: this model returns its last hidden state only")
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if torch.is_autocast_enabled(x.device.type) and not self.float32_residual:
            # Carry the residual stream in the autocast type too: it is most of the traffic.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        cache = past_key_values if cache is None else cache
        if cache is None and use_cache:
            cache = DynamicCache()
        if getattr(cache, "is_compileable", False):
            # Its keys come back at full length, unused ones among them.
            raise ValueError("a static cache is not supported: use transformers' DynamicCache")
        if cache is not None and not self.cacheable:
            raise ValueError(
                f"{self.config.pe!r} draws the positions of all tokens again in each call, so what "
                "a cache holds of them is of no use; pass use_cache=False"
            )
        recomputed = any(layer.gradient_checkpointing for layer in self.layers)
        if cache is not None and recomputed and self.training and torch.is_grad_enabled():
            raise ValueError(
                "activation checkpointing computes each layer twice, and a cache would get its "
                "keys twice; pass use_cache=False"
            )
        length = x.shape[1]
        past = 0 if cache is None else cache.get_seq_length()
        positions, k_positions = positions_of(
            attention_mask, position_ids, past, length, cache is not None, x.device
        )
        if document_ids is not None and cache is not None:
            raise ValueError("document_ids cannot be combined with a cache; pass use_cache=False")
        plain = attention_mask is None and document_ids is None and position_ids is None
        plain = plain and past == 0
        spans: list[Spans | None] = [None] * len(self.encodings)
        if past == 0 and not output_attentions:
            hidden = attention_mask, document_ids
            spans = [self._spans(enc, x, positions, plain, *hidden) for enc in self.encodings]  # type: ignore[arg-type]
        mask = None
        if any(some is None for some in spans):
            mask = visible(length, past + length, x.device, attention_mask, document_ids)
        self._refuse_too_far(k_positions, plain)
        lengths = {}
        if document_ids is not None and any(enc.length_dependent for enc in self.encodings):
            assert mask is not None
            lengths = {"lengths": document_lengths(mask, positions, k_positions)}
        prepared: dict[int, Seen] = {}
        attentions = []
        for index, layer in enumerate(self.layers):
            number = self.encoding_of[index]
            enc: Encoding = self.encodings[number]  # type: ignore[assignment]
            windows = [] if cache is None else self._window_layers(cache, index, enc)
            if number not in prepared or enc.random:
                held = windows[0].with_new(length, x.device) if windows else None
                prepared[number] = self._seen(
                    enc, positions, k_positions, mask, spans[number], held, x.dtype,
                    cache is not None, plain, lengths if enc.length_dependent else {},
                )  # fmt: skip
            where, narrowed, temperature, kept = prepared[number]
            if index == 0:
                x = self.dropout(enc.embed(x, where.q_positions))
            x, weights = layer(x, enc, where, narrowed, cache, temperature, output_attentions)
            attentions.append(weights)
            for window in windows:
                window.hold(kept)  # type: ignore[arg-type]
        output: dict[str, Any] = {"last_hidden_state": self.norm(x), CACHE_FIELD: cache}
        if output_attentions:
            output["attentions"] = tuple(attentions)
        return BaseModelOutputWithPast(**output)

    def _spans(
        self,
        enc: Encoding,
        x: Tensor,
        positions: Tensor,
        plain: bool,
        padding: Tensor | None,
        documents: Tensor | None,
    ) -> Spans | None:
        """What kernels take in place of the mask of these layers; None where it takes a mask.

        Args:
            x: (B, T, hidden), all tokens that there are. plain, padding, documents: as in
                `forward`.
        """
        if self.config.length_temperature or (enc.length_dependent and documents is not None):
            return None
        backend: str | None = self.layers[0].attention.backend  # type: ignore[union-attr, assignment]
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        result = spans_for(
            enc, x.device, dtype, self.config.head_dim, x.shape[1], backend,
            padding, documents,
        )  # fmt: skip
        if result is None or plain or not enc.biased or isinstance(result, Bounded):
            return result
        if enc.relative and counted_within(result, positions):
            return result
        return bounded(enc, result, backend)

    def _window_layers(self, cache: Cache, index: int, enc: Encoding) -> list[WindowLayer]:
        """The layers of the cache that forget what a window hides: of keys, and of their state."""
        if not enc.hides:
            return []
        slots = [index, *([index + len(self.layers)] if enc.state_size else [])]
        layers = [window_layer(cache, slot) for slot in slots]
        return [layer for layer in layers if layer is not None]

    def _seen(
        self,
        enc: Encoding,
        positions: Tensor,
        k_positions: Tensor,
        mask: Tensor | None,
        spans: Spans | None,
        held: Tensor | None,
        dtype: torch.dtype,
        cached: bool,
        plain: bool,
        lengths: dict[str, Lengths],
    ) -> Seen:
        """What `forward` hands to the layers with this encoding.

        Args:
            mask: without the encoding's window. spans: what replaces it. held: which keys there
                are, (n,); None: all. cached: keys come from a cache. plain: positions are counted
                and no token is hidden.
        """
        kept = None
        length, known = positions.shape[-1], k_positions.shape[-1]
        if spans is not None:
            if held is not None:
                kept = spans.of_next_query().any(0)
        elif enc.hides:
            mask = enc.narrow(mask, length, known, positions.device)
            if held is not None:
                mask, k_positions = mask[..., held], k_positions[..., held]
                kept = mask[..., -1, :].flatten(0, -2).any(0)
        # Keys that are cached rotated are not rotated twice.
        rotated = cached and not enc.raw_keys
        where = enc.prepare(positions, positions if rotated else k_positions, dtype, **lengths)
        # Positions that the encoding moved are no longer counted.
        counted = plain or spans is not None
        where = where._replace(counted=counted and where.q_positions is positions)
        where = where._replace(k_positions=k_positions) if rotated else where
        if mask is None:
            past, known = k_positions.shape[-1] - positions.shape[-1], k_positions.shape[-1]
            count = torch.arange(past, known, device=positions.device)[None, None] + 1
        else:
            count = mask.sum(-1)
        temperature = self._temperature(count)  # with one there are no spans
        return Seen(where, mask if spans is None else spans, temperature, kept)

    def _temperature(self, seen: Tensor) -> Tensor | None:
        """Factor of each query's logits by the number of tokens it sees, (1 or B, 1, T)."""
        weight = self.config.length_temperature
        if not weight:
            return None
        excess = seen.float() / self.config.max_position_embeddings
        factor: Tensor = 1.0 + weight * excess.clamp(min=1.0).log()
        return factor

    def _refuse_too_far(self, positions: Tensor, counted: bool) -> None:
        """Args: counted: positions are 0, 1, 2 ..., so nothing waits for a GPU to look at them."""
        limit, _ = tightest(self.encodings)
        if limit is None or positions.numel() == 0:
            return
        if torch.compiler.is_compiling():
            # A graph cannot look at positions. Counted ones end at the length, and only a sequence
            # that may be too long leaves the graph to have its positions looked at.
            if positions.shape[-1] <= limit:
                return
            torch._dynamo.graph_break()
        farthest = positions.shape[-1] - 1 if counted else int(positions.max())
        if farthest >= limit:
            raise PositionError(farthest, limit, self.config.pe)


class PEForCausalLM(PEPreTrainedModel, GenerationMixin):
    """The decoder with its language-model head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: PEConfig, **unknown: Any) -> None:
        super().__init__(config, **unknown)
        self.model = PEModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()
        if not self.model.cacheable:
            self.generation_config.use_cache = False

    def forward(
        self,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        use_cache: bool | None = None,
        **inputs: Any,
    ) -> CausalLMOutputWithPast:
        """(B, T) token ids -> logits (B, T, V), and the loss when there is something to predict.

        Args:
            labels: (B, T), shifted here: token t is predicted from those before it.
            shift_labels: (B, T), already shifted: entry t is predicted from tokens up to t. With
                these no logits are returned, which saves the largest tensor of a training step.
            num_items_in_batch: divide the summed loss by this instead of by the targets counted
                here, so that micro-batches with uneven counts add up to the big batch.
            logits_to_keep: logits of the last n tokens only; 0: all.
            inputs: as `PEModel.forward` takes them.
        """
        if use_cache is None:  # a cache is of use where decoding may go on
            uncached = labels, shift_labels, inputs.get("position_ids"), inputs.get("document_ids")
            goes_on = not self.training and all(x is None for x in uncached)
            use_cache = goes_on and self.model.cacheable
        out = self.model(input_ids=input_ids, use_cache=use_cache, **inputs)
        hidden = out.last_hidden_state
        result: dict[str, Any] = {CACHE_FIELD: out.get(CACHE_FIELD), "attentions": out.attentions}
        if shift_labels is None:
            if isinstance(logits_to_keep, int):
                logits_to_keep = slice(-logits_to_keep, None)  # type: ignore[assignment]
            result["logits"] = self.lm_head(hidden[:, logits_to_keep])
        if labels is not None:
            ignored = labels.new_full((labels.shape[0], 1), IGNORE)
            shift_labels = torch.cat((labels[:, 1:], ignored), dim=1)
        if shift_labels is not None:
            total = summed_loss(hidden.flatten(0, 1), self.lm_head.weight, shift_labels.reshape(-1))
            if num_items_in_batch is None:
                num_items_in_batch = (shift_labels != IGNORE).sum().clamp(min=1)
            result["loss"] = total / num_items_in_batch
        return CausalLMOutputWithPast(**result)


AutoConfig.register("pe-decoder", PEConfig, exist_ok=True)
AutoModel.register(PEConfig, PEModel, exist_ok=True)
AutoModelForCausalLM.register(PEConfig, PEForCausalLM, exist_ok=True)
