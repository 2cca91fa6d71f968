"""The decoder, its configuration, and the conversion of trained models."""

from __future__ import annotations

from pe.model.config import PEConfig
from pe.model.decoder import PEForCausalLM, PEModel, PEPreTrainedModel

__all__ = ["PEConfig", "PEForCausalLM", "PEModel", "PEPreTrainedModel"]
