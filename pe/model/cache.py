"""A layer of a cache that holds the tokens which later queries may still see, and no others.

Which these are follows from what the newest query sees (`Encoding.narrow`): a key that a window or
a chunk hides from it stays hidden from all that come later.
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
    """Keys and values of some of the tokens so far, in their order."""

    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.columns: Tensor | None = None
        """Which of the ``total`` tokens are held, (n,); None before the first."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """All that is held and the new tokens, which are held from now on."""
        self.columns = self.with_new(key_states.shape[-2], key_states.device)
        self.total += key_states.shape[-2]
        return super().update(key_states, value_states, *args, **kwargs)

    def with_new(self, length: int, device: torch.device) -> Tensor:
        """The columns held when ``length`` new tokens are added, (n + length,)."""
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
        """Tokens so far, held or not."""
        return self.total

    def reset(self) -> None:
        """As before the first token."""
        super().reset()
        self.total, self.columns = 0, None

    def crop(self, tokens_to_remove: int) -> None:
        """ValueError: what an earlier query saw may be gone."""
        raise ValueError(
            "a cache of a layer with a window cannot go back, because tokens that earlier queries "
            "saw are gone; generate without an assistant model or prompt lookup"
        )


def window_layer(cache: Cache, index: int) -> WindowLayer | None:
    """Layer ``index`` of the cache, made a `WindowLayer` if nothing is in it yet; None if it holds
    all tokens already."""
    while len(cache.layers) <= index:
        cache.layers.append(DynamicLayer())
    layer = cache.layers[index]
    if type(layer) is DynamicLayer and not layer.is_initialized:
        layer = cache.layers[index] = WindowLayer()
    return layer if isinstance(layer, WindowLayer) else None


def held_tokens(spec: str, num_layers: int, length: int, **options: Any) -> list[int]:
    """How many tokens each layer's cache holds after ``length`` tokens, told by such a cache.

    Args:
        spec: an encoding or a schedule (`pe.encodings.core.spec`). Where it is longer than the
            model or does not come out even, it is cut off after ``num_layers``.
        options: of the encoding.
    """
    period = len(parse(spec))
    sizes = {"head_dim": 64, "num_heads": 8, "original_length": length} | options
    encodings = layer_encodings(spec, period, **sizes)
    encodings *= period // len(encodings)
    cache, held = DynamicCache(), []
    token = torch.zeros(1, 1, length, 1)  # its size decides nothing
    for index, enc in enumerate(encodings):
        layer = window_layer(cache, index) if enc.hides else None
        if layer is None:
            cache.update(token, token, index)
        else:
            layer.update(token, token)
            layer.hold(enc.narrow(None, 1, length, token.device).flatten())
        held.append(cache.layers[index].keys.shape[-2])
    return [held[index % period] for index in range(num_layers)]
