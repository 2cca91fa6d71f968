"""How an encoding of this package gets into a decoder of transformers.

Three places, none of which touches a weight:

    the rotary module        passes on positions, in place of cosines and sines
    a hook of each attention gives the layer cosines of 1 and sines of 0, so that its queries and
                             keys pass unrotated and are cached so
    the attention interface  "pe" (`ALL_ATTENTION_FUNCTIONS`): rotates, adds the bias, hides keys

Layers that keep what they have get the host's own cosines and sines. B batch, T tokens, H query
heads, K key heads, D head_dim; the *host* is the model of transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pe._errors import PositionError
from pe.attention import scaled
from pe.attention.choose import bias_of, compute, shown_keys
from pe.encodings import Encoding, Prepared
from pe.encodings.core.base import tightest

INTERFACE = "pe"
"""Name of the attention in transformers' registries."""


class Call:
    """One forward pass of the host: the positions of its tokens, and what encodings derived."""

    def __init__(self, positions: Tensor, host: Any) -> None:
        self.positions = positions
        """(1 or B, T), as the host counts them."""
        self.host = host
        """The host's own cosines and sines."""
        self.prepared: dict[tuple[int, int], Prepared] = {}
        """By encoding and number of keys."""

    def unrotated(self) -> Any:
        """Return cosines of 1 and sines of 0 in the host's shapes."""
        if isinstance(self.host, Tensor):  # complex numbers, as Llama 4 has them
            return torch.ones_like(self.host)
        cos, sin = self.host
        return torch.ones_like(cos), torch.zeros_like(sin)


class RotaryPositions(nn.Module):
    """Takes the place of a host's rotary module."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the host's module, where this one does not have it."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("host"), name)

    def forward(self, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> Call:
        """Return what the host passes to its layers as ``position_embeddings``."""
        if position_ids.dim() != 2:
            raise ValueError(
                f"position_ids: expected one number per token, got {tuple(position_ids.shape)}; "
                "positions with several axes (M-RoPE) are not adapted"
            )
        return Call(position_ids, self.host(x, position_ids, *args, **kwargs))


class LayerCall(NamedTuple):
    """What the hook of a layer passes to the attention interface."""

    encoding: Encoding | None
    """None: the layer keeps what it has."""
    call: Call
    k_positions: Tensor
    """(1 or B, keys so far)."""
    state: Tensor | None
    """As `Encoding.key_state` gives it, of all keys."""
    cached: bool


class LayerHook:
    """A forward pre-hook of one attention module."""

    def __init__(self, encoding: Encoding | None, layer: int, num_layers: int) -> None:
        self.encoding, self.layer, self.num_layers = encoding, layer, num_layers

    def __call__(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
        call = _first(Call, args, kwargs)
        if call is None:
            raise ValueError(
                f"layer {self.layer} does not get its positions from the model's rotary module, "
                "so pe.adapt cannot reach them"
            )
        config = getattr(module, "config", None)  # a linear attention may have none
        interface = getattr(config, "_attn_implementation", INTERFACE)
        if interface != INTERFACE:
            raise ValueError(
                f"attention {interface!r} does not know the encoding that pe.adapt put into this "
                f"model, and would read the text without it; call "
                f"model.set_attn_implementation({INTERFACE!r})"
            )
        enc = self.encoding
        tables = call.host if enc is None else call.unrotated()
        args = tuple(tables if value is call else value for value in args)
        kwargs = {key: tables if value is call else value for key, value in kwargs.items()}
        positions, state, cache = call.positions, None, None
        if enc is not None:
            hidden = args[0] if args else kwargs["hidden_states"]
            cache = _first(Cache, args, kwargs)
            state = enc.key_state(hidden)
            if cache is not None:
                positions, state = self._kept(cache, positions.expand(len(hidden), -1), state)
        own = LayerCall(enc, call, positions, state, cache is not None)
        return args, kwargs | {"pe_call": own}

    def _kept(
        self, cache: Cache, positions: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return positions and state of all tokens so far.

        Each layer gets one more layer of the cache for them, so that the cache reorders and crops
        them together with the keys they belong to.
        """
        assert self.encoding is not None
        if getattr(cache, "is_compileable", False):
            raise ValueError("a static cache is not supported: use transformers' DynamicCache")
        if type(cache).__len__ is not Cache.__len__:
            raise ValueError(
                f"a {type(cache).__name__} counts its layers in another way than other caches of "
                "transformers, so no positions can be kept in it; pass use_cache=False"
            )
        if not self.encoding.cacheable:
            raise ValueError(
                "this encoding draws new positions for all tokens in each call, so a cache cannot "
                "hold them; pass use_cache=False"
            )
        index = self.num_layers + self.layer
        while len(cache.layers) <= index:
            cache.layers.append(DynamicLayer())
        where = positions[:, None, :, None]  # (B, 1, T, 1)
        beside = where[..., :0] if state is None else state
        where, beside = cache.update(where, beside, index)
        return where[:, 0, :, 0], None if state is None else beside


class EmbeddingHook:
    """A forward pre-hook of the first decoder layer, for encodings that act on embeddings."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding

    def __call__(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
        call = _first(Call, args, kwargs)
        positions = call.positions
        if self.encoding.random:
            positions = self.encoding.prepare(positions, positions).q_positions
        return (self.encoding.embed(args[0], positions), *args[1:]), kwargs


def _first(kind: type, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the first argument of this type; None if there is none."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, kind)), None)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    pe_call: LayerCall | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention: (B, H, T, D) and (B, K, keys, D) -> (B, T, H, D), for transformers.

    Args:
        attention_mask: (B, 1, T, keys), True where a query sees a key; None: causal. The host's
            own windows are in it. s_aux: (H,), a learned logit beside those of the keys.
    """
    if pe_call is None:
        if getattr(module, "is_causal", False):
            raise ValueError(
                f"attention {INTERFACE!r} is for models that pe.adapt made, and this one has no "
                "encoding of it; load a saved one with AutoModelForCausalLM.from_pretrained"
            )
        # a module outside the decoder, such as the encoder of images
        return ALL_ATTENTION_FUNCTIONS["sdpa"](  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if softcap is not None:
        raise ValueError("this model caps its logits (softcap), which hooks do not do")
    if dropout:
        raise ValueError(
            f"attention_dropout {dropout}: attention probabilities have no dropout here; load the "
            "model with attention_dropout=0, and then adapt it"
        )
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        raise ValueError(
            f"attention_mask: expected booleans (or a padding mask of two dimensions), got "
            f"{attention_mask.dtype}, from the caller or from {type(module).__name__}, whose own "
            "mask pe.adapt does not know"
        )
    # Under autocast the host's cosines of 1 have widened queries and keys, and values are narrow.
    query, key = query.to(value.dtype), key.to(value.dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    enc = pe_call.encoding or Encoding()
    if enc.content_dependent:  # it takes logits to be divided by the root of the width
        wide = torch.promote_types(query.dtype, torch.float32)
        query = (query.to(wide) * (scale * query.shape[-1] ** 0.5)).to(query.dtype)
        scale = query.shape[-1] ** -0.5
    q_positions, k_positions, tables, counted = _where(pe_call, enc, query, key)
    # The host's own sink is unknown to the choice of a kernel.
    backend = None if s_aux is None else "sdpa"
    shown = shown_keys(enc, query, key, attention_mask, backend)
    state = pe_call.state
    if state is not None:  # a window of the host has forgotten the keys before
        state = state[:, :, -key.shape[2] :]
    bias = bias_of(enc, query, key, q_positions, k_positions, state, shown, counted, backend)
    factor = enc.logit_scale(q_positions)
    q, k = enc.rotate(query, key, q_positions, k_positions, tables)
    sinks = [sink.float() for sink in (enc.sink_logit(), s_aux) if sink is not None]
    sink = torch.stack(sinks).logsumexp(0) if sinks else None
    out = compute(scaled(q, factor), k, value, scale, bias, shown, backend, sink)
    return out.transpose(1, 2).contiguous(), None


def _where(own: LayerCall, enc: Encoding, query: Tensor, key: Tensor) -> Prepared:
    """Return what the encoding makes of the positions. Layers with as many keys share it."""
    call, known = own.call, key.shape[2]
    if own.k_positions.shape[-1] < known:
        if own.encoding is not None:
            raise ValueError(
                f"the cache holds {known} keys and {own.k_positions.shape[-1]} positions: it was "
                "filled by another model; begin with an empty one"
            )
        return Prepared(call.positions, own.k_positions)
    if own.encoding is None:
        return Prepared(call.positions, own.k_positions)
    name = id(enc), known
    # Activation checkpointing runs each layer twice. Tables with a gradient that the first layer
    # made would be outside of the others' graphs, so each layer makes them for itself.
    learns = torch.is_grad_enabled() and any(p.requires_grad for p in enc.parameters())
    shared = not (enc.random or learns or torch.compiler.is_compiling())
    if shared and name in call.prepared:
        return call.prepared[name]
    k_positions = own.k_positions[..., -known:]  # a window of the host has forgotten the others
    limit, part = tightest([enc])
    if limit is not None and int(k_positions.max()) >= limit:
        raise PositionError(int(k_positions.max()), limit, part)
    where = enc.prepare(call.positions, k_positions, query.dtype)
    plain = torch.arange(known, device=key.device)
    counted = (
        query.is_cuda and enc.biased and not own.cached and where.q_positions is call.positions
        and bool((call.positions == plain).all())
    )  # fmt: skip
    where = where._replace(counted=counted)
    if shared:  # never while compiling: torch 2.11 cannot store a named tuple from a graph
        call.prepared[name] = where
    return where


def register() -> None:
    """Register the attention with transformers, with the boolean masks that "sdpa" gets."""
    ALL_ATTENTION_FUNCTIONS.register(INTERFACE, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(INTERFACE, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attention_modules(decoder: Any) -> list[nn.Module | None]:
    """Return the attention of each layer, by what transformers' layers have in common, or None.

    Raises:
        ValueError: the layers are not built like transformers' decoders.
    """
    modules: list[nn.Module | None] = []
    for layer in decoder.layers:
        inner = [m for m in layer.modules() if type(m).__name__.endswith("Attention")]
        takes_more = [
            m for m in inner
            if inspect.Parameter.VAR_KEYWORD
            in {p.kind for p in inspect.signature(m.forward).parameters.values()}
        ]  # fmt: skip
        if len(inner) > 1 or len(takes_more) < len(inner):
            names = ", ".join(type(m).__name__ for m in inner)
            raise ValueError(
                f"the layers of {type(decoder).__name__} have {names}, which pe.adapt does not "
                "know; it takes decoders whose attention is called through transformers' "
                "attention interface"
            )
        modules.append(inner[0] if inner else None)
    return modules


def install(decoder: Any, encodings: Mapping[int, Encoding]) -> None:
    """Give layers of a decoder these encodings, by index; the other layers keep what they have.

    Raises:
        ValueError: the decoder is not built like transformers' other decoders.
    """
    modules = attention_modules(decoder)
    for index, module in enumerate(modules):
        if module is None and index in encodings:
            raise ValueError(f"layer {index} has no attention")
        if module is not None:
            hook = LayerHook(encodings.get(index), index, len(modules))
            module.register_forward_pre_hook(hook, with_kwargs=True)
    first = encodings.get(0)
    if first is not None and first.embeds:
        decoder.layers[0].register_forward_pre_hook(EmbeddingHook(first), with_kwargs=True)
    decoder.rotary_emb = RotaryPositions(decoder.rotary_emb)
    decoder.pe_encodings = nn.ModuleList(dict.fromkeys(encodings.values()))


def uninstall(decoder: Any) -> None:
    """Take out what `install` put in."""
    for module in decoder.modules():
        hooks = module._forward_pre_hooks
        for number in [
            n for n, hook in hooks.items() if isinstance(hook, LayerHook | EmbeddingHook)
        ]:
            del hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)
    decoder.rotary_emb = decoder.rotary_emb.host
    del decoder.pe_encodings
