"""The decoder, its configuration, and the conversion of trained models."""

from pe.model.config import PEConfig
from pe.model.decoder import PEForCausalLM, PEModel, PEPreTrainedModel
