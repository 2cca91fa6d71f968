"""The decoder, its configuration, and the conversion of trained models."""

from pe._imports import without_collections

with without_collections():
    from pe.model.config import PEConfig
    from pe.model.decoder import PEForCausalLM, PEModel, PEPreTrainedModel
