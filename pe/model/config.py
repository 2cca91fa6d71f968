"""Configuration of the decoder, in transformers' form."""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedConfig

from pe.encodings import check
from pe.encodings.core.checks import choice, positive


class PEConfig(PreTrainedConfig):
    """Sizes of a LLaMA-style decoder and the positional encoding it uses.

    Args:
        pe: encoding, as the registry spells it. pe_options: its options.
        max_position_embeddings: context length of training, in tokens. It is no limit: what lies
            beyond it is what this project measures.
        qk_norm: RMS-normalise queries and keys of each head before rotation.
        joint_norm: RMS-normalise queries ("q"), keys ("k") or both ("qk") over all their heads
            together, as DroPE's variants do. "": neither.
        softmax_scale: factor of the logits in place of 1/sqrt(head_dim).
        length_temperature: c in the factor 1 + c ln(n / max_position_embeddings) of the logits of
            a query that sees n tokens, n beyond the context of training.
        attention_backend: "sdpa", "dense" or "kernel" forces that one; None takes the fastest that
            is exact (`pe.attention.choose`).
    """

    model_type = "pe-decoder"
    keys_to_ignore_at_inference = ("past_key_values", "cache")

    def __init__(
        self,
        vocab_size: int = 4096,
        hidden_size: int = 128,
        intermediate_size: int = 352,
        num_hidden_layers: int = 4,
        num_attention_heads: int = 4,
        num_key_value_heads: int | None = None,
        max_position_embeddings: int = 256,
        pe: str = "rope",
        pe_options: dict[str, Any] | None = None,
        qk_norm: bool = False,
        joint_norm: str = "",
        softmax_scale: float | None = None,
        length_temperature: float = 0.0,
        attention_backend: str | None = None,
        rms_norm_eps: float = 1e-5,
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        if hidden_size % num_attention_heads:
            raise ValueError(
                f"hidden_size {hidden_size} does not divide into {num_attention_heads} heads"
            )
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        if num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        self.head_dim = hidden_size // num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.pe = pe
        self.pe_options = dict(pe_options or {})
        self.qk_norm = qk_norm
        self.joint_norm = joint_norm
        self.softmax_scale = softmax_scale
        self.length_temperature = length_temperature
        self.attention_backend = attention_backend
        self.rms_norm_eps = rms_norm_eps
        self.initializer_range = initializer_range
        kwargs.pop("head_dim", None)  # derived, though a saved configuration lists it
        self._refuse_impossible()
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    def _refuse_impossible(self) -> None:
        choice("joint_norm", self.joint_norm, ("", "q", "k", "qk"))
        if self.softmax_scale is not None:
            positive("softmax_scale", self.softmax_scale)
        check(self.pe, self.pe_options, **self.encoding_context())

    def changed(self, **fields: Any) -> PEConfig:
        """A copy in which these fields have other values. ValueError if they do not fit."""
        other = copy.deepcopy(self)
        for name, value in fields.items():
            setattr(other, name, value)
        other._refuse_impossible()
        return other

    def encoding_context(self) -> dict[str, int]:
        """The sizes that `pe.encodings.encoding` wants to know."""
        return {
            "head_dim": self.head_dim,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self.num_key_value_heads,
            "hidden_size": self.hidden_size,
            "original_length": self.max_position_embeddings,
        }
