"""A decoder of transformers in the form that this package's scorer and trainer expect."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

CLOSE = 1e-2
"""The largest difference between logits and the scaled product with the head's matrix, in standard
deviations of the logits."""


class _Body(nn.Module):
    """Token ids -> hidden states whose product with the head's matrix are the logits."""

    float32_residual = False

    def __init__(self, decoder: nn.Module, scale: float) -> None:
        super().__init__()
        self.decoder, self.scale = decoder, scale

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        out = self.decoder(input_ids=input_ids, use_cache=use_cache)
        if self.scale == 1:
            return out
        return SimpleNamespace(last_hidden_state=out.last_hidden_state * self.scale)


class Judged:
    """A model as `pe.evaluation.scorer.Scorer` takes it: ``model``, ``lm_head``, ``device``.

    Raises:
        ValueError: its logits are something else than a multiple of the head's product.
    """

    def __init__(self, model: Any) -> None:
        self.host, self.lm_head = model, model.get_output_embeddings()
        self.device = model.device
        self.config = SimpleNamespace(length_temperature=0.0)  # transformers' models have none
        self.model = _Body(model.base_model, 1.0)
        self.model.scale = self._scale()

    def modules(self) -> Iterator[nn.Module]:
        """Return all modules of the model, those of its encodings among them."""
        return iter(self.host.modules())

    @torch.no_grad()
    def _scale(self) -> float:
        """Return what multiplies the head's product; 1 but for models like Cohere and Granite."""
        ids = torch.arange(1, 9, device=self.device)[None] % self.lm_head.weight.shape[0]
        hidden = self.model(ids).last_hidden_state
        product = (hidden @ self.lm_head.weight.T).double()
        logits = self.host(input_ids=ids, use_cache=False).logits.double()
        scale = float((logits * product).sum() / (product * product).sum())
        gap = float((logits - scale * product).abs().max() / logits.std())
        if not gap < CLOSE:
            raise ValueError(
                f"{type(self.host).__name__} does more with its last states than multiply them by "
                "a matrix, so it cannot be scored here"
            )
        return 1.0 if abs(scale - 1) < 1e-3 else scale
