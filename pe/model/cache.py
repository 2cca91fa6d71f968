"""The cache of a layer with a window or a chunk, which keeps only keys that can still be seen.

A key that the window or the chunk hides from the newest query stays hidden from all later queries,
so it can be dropped. `Encoding.narrow` determines what the newest query sees.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from pe.encodings import layer_encodings
from pe.encodings.core.spec import parse


class WindowLayer(DynamicLayer):
    """Keys and values of some of the earlier tokens, in their order."""

    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.columns: Tensor | None = None
        """Indices (n,) of the tokens that are held, out of ``total``; None before the first."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Add the new tokens and return keys and values of all tokens that are held."""
        self.columns = self.with_new(key_states.shape[-2], key_states.device)
        self.total += key_states.shape[-2]
        return super().update(key_states, value_states, *args, **kwargs)

    def with_new(self, length: int, device: torch.device) -> Tensor:
        """Return `columns` as it will be once ``length`` new tokens are added, (n + length,)."""
        new = torch.arange(self.total, self.total + length, device=device)
        return new if self.columns is None else torch.cat((self.columns, new))

    def hold(self, kept: Tensor) -> None:
        """Drop the tokens for which ``kept``, one boolean per held token, is False."""
        assert self.columns is not None
        chosen = kept.nonzero()[:, 0]
        if len(chosen) < len(kept):
            self.columns = self.columns[chosen]
            self.keys = self.keys.index_select(-2, chosen)  # type: ignore[has-type]
            self.values = self.values.index_select(-2, chosen)  # type: ignore[has-type]

    def get_seq_length(self) -> int:
        """Return the number of tokens so far, held or not."""
        return self.total

    def reset(self) -> None:
        """Return to the state before the first token."""
        super().reset()
        self.total, self.columns = 0, None

    def crop(self, tokens_to_remove: int) -> None:
        """Raise ValueError: tokens that an earlier query saw may be gone."""
        raise ValueError(
            "the cache of a layer with a window cannot be cropped, because tokens that earlier "
            "queries saw are gone; generate without an assistant model or prompt lookup"
        )


def window_layer(cache: Cache, index: int) -> WindowLayer | None:
    """Return layer ``index`` of the cache as a `WindowLayer`.

    A layer that is still empty is replaced by one. None if the layer is of another kind, which
    holds all tokens.
    """
    while len(cache.layers) <= index:
        cache.layers.append(DynamicLayer())
    layer = cache.layers[index]
    if type(layer) is DynamicLayer and not layer.is_initialized:
        layer = cache.layers[index] = WindowLayer()
    return layer if isinstance(layer, WindowLayer) else None


def held_tokens(spec: str, num_layers: int, length: int, **options: Any) -> list[int]:
    """Return how many tokens the cache of each layer holds after ``length`` tokens.

    The numbers are read off a cache that is filled with as many empty tokens.

    Args:
        spec: an encoding or a schedule (`pe.encodings.core.spec`). A schedule is repeated, and cut
            off after ``num_layers``.
        options: options of the encoding.
    """
    period = len(parse(spec))
    sizes = {"head_dim": 64, "num_heads": 8, "original_length": length} | options
    encodings = layer_encodings(spec, period, **sizes)
    encodings *= period // len(encodings)
    cache, held = DynamicCache(), []
    tokens = torch.zeros(1, 1, length, 1)  # only their number matters
    for index, enc in enumerate(encodings):
        layer = window_layer(cache, index) if enc.hides else None
        if layer is None:
            cache.update(tokens, tokens, index)
        else:
            layer.update(tokens, tokens)
            layer.hold(enc.narrow(None, 1, length, tokens.device).flatten())
        held.append(cache.layers[index].keys.shape[-2])
    return [held[index % period] for index in range(num_layers)]
