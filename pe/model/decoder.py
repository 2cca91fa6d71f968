"""A LLaMA-style decoder that knows nothing about any particular positional encoding.

    x = embed(tokens);  x += attention(norm(x));  x += swiglu(norm(x));  logits = norm(x) E^T

It has an RMSNorm before each block, SwiGLU, no biases, and a head tied to the embeddings
(arXiv:2302.13971). Dropout, if the configuration asks for it, acts on the embeddings and on what
each block adds to x. The encoding acts through the hooks of `pe.encodings.Encoding`. The decoder is
a `PreTrainedModel` of transformers with `GenerationMixin`, so once ``pe.model`` is imported, a
run's checkpoint loads with ``AutoModelForCausalLM.from_pretrained``. The layers are in
`pe.model.layers`. B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any

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
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from pe._errors import PositionError, unknown
from pe.attention.choose import bounded, spans_for
from pe.attention.documents import document_lengths
from pe.attention.masks import documents_of, padding_of, positions_of, visible, whole_numbers
from pe.attention.spans import Bounded, Spans, counted_within
from pe.encodings import Encoding, Prepared, layer_encodings
from pe.encodings.core.base import Lengths, tightest
from pe.model.cache import WindowLayer, window_layer
from pe.model.config import PEConfig
from pe.model.layers import Block, LayerInputs
from pe.model.loss import IGNORE, summed_loss

# Releases of transformers 5 differ: the field is `past_key_values` or `cache`. Both are accepted.
CACHE_FIELD = (
    "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
)
# transformers' own code passes these arguments to every model; this one ignores them.
IGNORED_ARGUMENTS = frozenset(
    {"cache_position", "return_dict", "output_hidden_states", "token_type_ids",
     "is_first_iteration"}
)  # fmt: skip


class PEPreTrainedModel(PreTrainedModel):
    """The base class of both models below: their configuration and their initial weights."""

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
            # from_pretrained builds the module on the meta device, so its constants have no values.
            module.register_exact_buffers()
            loaded = [getattr(p, "_is_hf_initialized", False) for p in module.parameters()]
            if not all(loaded):
                module.reset_parameters()


class PEModel(PEPreTrainedModel):
    """The decoder without its language-model head."""

    float32_residual = False
    """Whether the residual stream stays in float32 under autocast, as in evaluation."""

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
        """For each layer the index of its encoding in `encodings`."""
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
        """Compute the hidden states of T tokens that follow ``past`` tokens in a cache.

        Args:
            input_ids: (B, T) token ids. inputs_embeds: (B, T, hidden) in place of them.
            attention_mask: (B, past + T), booleans or whole numbers, 0 at padding.
            position_ids: (T,) or (B, T), 0 or more. None: counted from the attention mask.
                Positions are not cached, so with a cache only the counted ones are accepted.
            past_key_values, cache: the cache, under either of transformers' names for it.
            document_ids: (B, T); attention stays inside a document. It excludes a cache.
            output_attentions: also return the probabilities of each layer, (B, H, T, past + T) in
                float32. All layers then use the dense backend (`pe.attention.dense`), so memory
                grows with the square of the length. None: as the configuration says.

        Returns:
            last_hidden_state (B, T, hidden), the cache, and attentions if asked for.

        Raises:
            ValueError: an argument is unknown, has a wrong shape, or cannot be combined with
                another one.
            PositionError: a position is beyond what the encoding has.
        """
        for name in kwargs:
            if name not in IGNORED_ARGUMENTS:
                known = list(inspect.signature(PEModel.forward).parameters)[1:-1]
                raise unknown("argument", name, known)
            if name == "output_hidden_states" and kwargs[name]:
                raise ValueError(
                    f"{name}: this model returns its last hidden state only; leave it out"
                )
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        x = self._embedded(input_ids, inputs_embeds)
        if torch.is_autocast_enabled(x.device.type) and not self.float32_residual:
            # The residual stream causes most of the memory traffic, so it is narrow as well.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        cache = self._checked_cache(past_key_values, cache, use_cache)
        batch, length, _ = x.shape
        past = 0 if cache is None else cache.get_seq_length()
        padding = padding_of(attention_mask, batch, past + length)
        positions, k_positions = positions_of(
            padding, position_ids, past, batch, length, cache is not None, x.device
        )
        if document_ids is not None and cache is not None:
            raise ValueError("document_ids cannot be combined with a cache; pass use_cache=False")
        document_ids = documents_of(document_ids, batch, length)
        counted = padding is None and position_ids is None
        plain = counted and document_ids is None and past == 0
        spans: list[Spans | None] = [None] * len(self.encodings)
        if past == 0 and not output_attentions:
            spans = [
                self._spans(enc, x, positions, plain, padding, document_ids)  # type: ignore[arg-type]
                for enc in self.encodings
            ]
        mask = None
        if any(some is None for some in spans):
            mask = visible(length, past + length, x.device, padding, document_ids)
        self._refuse_too_far(k_positions, counted)
        lengths = {}
        if document_ids is not None and any(enc.length_dependent for enc in self.encodings):
            assert mask is not None
            lengths = {"lengths": document_lengths(mask, positions, k_positions)}
        # By the index of the encoding, and which keys later queries may see; None: all.
        inputs: dict[int, tuple[LayerInputs, Tensor | None]] = {}
        attentions = []
        for index, layer in enumerate(self.layers):
            number = self.encoding_of[index]
            enc: Encoding = self.encodings[number]  # type: ignore[assignment]
            windows = [] if cache is None else self._window_layers(cache, index, enc)
            if number not in inputs or enc.random:  # random positions are drawn for each layer
                held = windows[0].with_new(length, x.device) if windows else None
                inputs[number] = self._layer_inputs(
                    enc, positions, k_positions, mask, spans[number], held, x.dtype,
                    cache is not None, plain, lengths if enc.length_dependent else {},
                )  # fmt: skip
            shared, kept = inputs[number]
            if index == 0:
                x = self.dropout(enc.embed(x, shared.prepared.q_positions))
            x, weights = layer(x, enc, shared, cache, output_attentions)
            attentions.append(weights)
            for window in windows:
                window.hold(kept)  # type: ignore[arg-type]
        output: dict[str, Any] = {"last_hidden_state": self.norm(x), CACHE_FIELD: cache}
        if output_attentions:
            output["attentions"] = tuple(attentions)
        return BaseModelOutputWithPast(**output)

    def _embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Return the embeddings of the tokens, (B, T, hidden); arguments are those of `forward`."""
        if inputs_embeds is not None and input_ids is None:
            given = x = inputs_embeds
        elif input_ids is not None and inputs_embeds is None:
            given = whole_numbers("input_ids", input_ids)
            x = self.embed_tokens(given)
        else:
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        width = self.config.hidden_size
        if x.dim() != 3 or x.shape[-1] != width or x.numel() == 0:
            raise ValueError(
                f"expected input_ids (batch, tokens) or inputs_embeds (batch, tokens, {width}), "
                f"with one token or more, got {tuple(given.shape)}"
            )
        return x

    def _checked_cache(
        self, past_key_values: Cache | None, cache: Cache | None, use_cache: bool | None
    ) -> Cache | None:
        """Return the cache to use; arguments are those of `forward`.

        Raises:
            ValueError: two caches are given, it is of a kind that does not work here, or the
                encoding or activation checkpointing does not allow a cache.
        """
        if cache is None:
            cache = past_key_values
        elif past_key_values is not None and past_key_values is not cache:
            raise ValueError("past_key_values and cache are the same argument; give one of the two")
        if cache is None and use_cache:
            cache = DynamicCache()
        if cache is None:
            return None
        if not isinstance(cache, Cache):
            raise ValueError(
                "past_key_values: expected a cache of transformers, such as DynamicCache, got a "
                f"{type(cache).__name__}"
            )
        if getattr(cache, "is_compileable", False):
            # Such a cache returns keys at its full length, including unused places.
            raise ValueError("a static cache is not supported: use transformers' DynamicCache")
        if not self.cacheable:
            raise ValueError(
                f"{self.config.pe!r} draws new positions for all tokens in each call, so cached "
                "keys would have the wrong ones; pass use_cache=False"
            )
        recomputed = any(layer.gradient_checkpointing for layer in self.layers)
        if recomputed and self.training and torch.is_grad_enabled():
            raise ValueError(
                "activation checkpointing computes each layer twice, and a cache would get its "
                "keys twice; pass use_cache=False"
            )
        return cache

    def _spans(
        self,
        enc: Encoding,
        x: Tensor,
        positions: Tensor,
        plain: bool,
        padding: Tensor | None,
        documents: Tensor | None,
    ) -> Spans | None:
        """Return what replaces the mask in layers with this encoding; None if they need a mask.

        Args:
            x: (B, T, hidden), of all tokens; there is no cache.
            positions: (T,) or (B, T). plain: they are counted and no token is hidden.
            padding: (B, T), 0 at padding. documents: (B, T), the document of each token.
        """
        # Both count the keys that a query sees, which takes a mask.
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
        """Return the layers of the cache that drop what a window hides: of keys, and of state."""
        if not enc.hides:
            return []
        slots = [index, *([index + len(self.layers)] if enc.state_size else [])]
        layers = [window_layer(cache, slot) for slot in slots]
        return [layer for layer in layers if layer is not None]

    def _layer_inputs(
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
    ) -> tuple[LayerInputs, Tensor | None]:
        """Prepare what all layers with this encoding share.

        The second result, (keys,), is True at the held keys that later queries may see; None: all.

        Args:
            positions, k_positions: (T,) or (B, T), of the new tokens and of all keys.
            mask: (1 or B, 1, T, keys), in which the encoding's own window is not applied yet; None:
                causal. spans: what replaces the mask, or None.
            held: indices (n,) of the keys that the cache holds, the new ones included; None: all.
            dtype: of the tables. cached: whether keys come from a cache.
            plain: positions are counted and no token is hidden.
            lengths: the lengths of documents, as an argument of `Encoding.prepare`, or empty.
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
        # A cache holds keys that are rotated already, unless the encoding asks for raw ones. Then
        # only the new keys need tables, and they have the positions of the queries.
        rotated = cached and not enc.raw_keys
        prepared = enc.prepare(positions, positions if rotated else k_positions, dtype, **lengths)
        # An encoding may replace positions; those are not 0, 1, 2 ... any more.
        counted = (plain or spans is not None) and prepared.q_positions is positions
        # Not by _replace: torch 2.11 cannot return its result from a graph.
        prepared = Prepared(
            prepared.q_positions, k_positions if rotated else prepared.k_positions,
            prepared.tables, counted,
        )  # fmt: skip
        if spans is not None:  # there is no length temperature then (`_spans`)
            return LayerInputs(prepared, spans, None), kept
        if mask is None:
            count = torch.arange(known - length, known, device=positions.device)[None, None] + 1
        else:
            count = mask.sum(-1)
        return LayerInputs(prepared, mask, self._temperature(count)), kept

    def _temperature(self, seen: Tensor) -> Tensor | None:
        """Return the factor of each query's logits, given how many tokens it sees; (1 or B, 1, T).

        None if the configuration has no length temperature.
        """
        weight = self.config.length_temperature
        if not weight:
            return None
        excess = seen.float() / self.config.max_position_embeddings
        factor: Tensor = 1.0 + weight * excess.clamp(min=1.0).log()
        return factor

    def _refuse_too_far(self, positions: Tensor, counted: bool) -> None:
        """Raise PositionError if a position is beyond what an encoding has.

        Args:
            counted: positions are 0, 1, 2 ..., so their number tells the largest one, and the
                program does not have to wait for a GPU to read it.
        """
        limit, _ = tightest(self.encodings)
        if limit is None or positions.numel() == 0:
            return
        # A compiled graph cannot read positions. A sequence that is no longer than the limit is
        # accepted unread; a longer one leaves the graph so that they can be read.
        if torch.compiler.is_compiling() and positions.shape[-1] <= limit:
            return
        _refuse_from(limit, positions, counted, self.config.pe)


@torch.compiler.disable  # torch 2.11 cannot compile what raises after a break of the graph
def _refuse_from(limit: int, positions: Tensor, counted: bool, spec: str) -> None:
    """Raise PositionError if a position is ``limit`` or more; see `_refuse_too_far`."""
    farthest = positions.shape[-1] - 1 if counted else int(positions.max())
    if farthest >= limit:
        raise PositionError(farthest, limit, spec)


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
        """Compute logits (B, T, V) from token ids (B, T), and the loss if labels are given.

        Args:
            labels: (B, T), not shifted: token t is predicted from those before it. `IGNORE` (-100)
                marks tokens that are not predicted.
            shift_labels: (B, T), already shifted: entry t is predicted from tokens up to t. With
                these no logits are returned, which saves the largest tensor of a training step.
            num_items_in_batch: divide the summed loss by this instead of by the number of targets
                here, so that micro-batches with uneven numbers add up to the whole batch.
            logits_to_keep: return logits of the last n tokens only; 0: of all.
            use_cache: None: only if decoding can continue from this call.
            inputs: other arguments of `PEModel.forward`.
        """
        if labels is not None and shift_labels is not None:
            raise ValueError("labels and shift_labels are the same targets; give one of the two")
        if use_cache is None:
            uncached = labels, shift_labels, inputs.get("position_ids"), inputs.get("document_ids")
            continues = not self.training and all(x is None for x in uncached)
            use_cache = continues and self.model.cacheable
        out = self.model(input_ids=input_ids, use_cache=use_cache, **inputs)
        hidden = out.last_hidden_state
        for name, targets in (("labels", labels), ("shift_labels", shift_labels)):
            if targets is not None and targets.shape != hidden.shape[:2]:
                raise ValueError(
                    f"{name}: expected {tuple(hidden.shape[:2])}, one per token, got "
                    f"{tuple(targets.shape)}"
                )
        result: dict[str, Any] = {CACHE_FIELD: out.get(CACHE_FIELD), "attentions": out.attentions}
        if shift_labels is None:
            if isinstance(logits_to_keep, int):
                if logits_to_keep < 0:
                    raise ValueError(f"logits_to_keep: expected 0 or more, got {logits_to_keep}")
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
# Trainer shifts the labels of the classes named here before it smooths them, and of no others.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["pe-decoder"] = PEForCausalLM.__name__
