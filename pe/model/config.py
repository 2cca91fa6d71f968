"""The decoder's configuration, a subclass of transformers' `PreTrainedConfig`.

Every field has an effect or is refused. transformers stores whatever keyword arguments a
configuration is given, so that a misspelt field would be saved, loaded and never used. `PEConfig`
accepts only fields that the decoder, its encoding or transformers itself reads. Once a model is
built, fields that it would not follow can no longer be changed.
"""

from __future__ import annotations

import copy
import inspect
import math
import typing
from collections.abc import Mapping
from typing import Any, NoReturn

from transformers import GenerationConfig, PreTrainedConfig

from pe._errors import nearest
from pe.attention.choose import checked
from pe.encodings import check
from pe.encodings.core.checks import at_least, choice, positive
from pe.encodings.core.options import ALIASES, fits, options_of, word
from pe.encodings.core.parts import part_classes
from pe.encodings.core.spec import layer_specs

BUILT_IN = "a model was built with this configuration and would not follow; "
"""How messages about a change that comes too late begin."""
LOADING_ARGUMENTS = ("return_unused_kwargs", "gguf_file")
"""Arguments of `from_pretrained` that reach `from_dict` and are not fields."""
TRANSFORMERS_FIELDS = {
    *inspect.signature(PreTrainedConfig.__init__).parameters,
    *getattr(PreTrainedConfig, "__annotations__", ()),
    *(name for name, value in vars(PreTrainedConfig).items() if isinstance(value, property)),
    *(name for name in vars(GenerationConfig()) if name.endswith("_token_id")),
    "attn_implementation", "experts_implementation", "auto_map", "quantization_config",
} - {"self", "kwargs", "rope_scaling"}  # fmt: skip
"""Fields that the installed release of transformers uses itself. `rope_scaling` is left out,
because transformers only stores it for models that read it, and this one does not."""
GENERATION_DEFAULTS: dict[str, Any] = {
    name: value
    for name, value in vars(GenerationConfig()).items()
    if name not in TRANSFORMERS_FIELDS
} | getattr(GenerationConfig, "_get_default_generation_params", dict)()
"""Settings of text generation, which older transformers kept in the model's configuration."""
FREE_AFTER_BUILDING = ("vocab_size", "length_temperature", "tie_word_embeddings")
"""Fields that may change after a model was built: it reads the temperature in each call, and
transformers changes the other two together with the model's weights."""


class BuiltOptions(dict[str, Any]):
    """The options with which a model's encoding was built; read-only, but copies can be changed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__((k, tuple(v) if isinstance(v, list) else v) for k, v in options.items())

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise ValueError(
            f"pe_options: {BUILT_IN}use pe.convert, or config.changed(pe_options=...) and a new "
            "model"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """Copy and pickle as a plain dictionary, with lists where the caller passed lists."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in self.items()}
        return dict, (plain,)


class PEConfig(PreTrainedConfig):
    """Sizes of a LLaMA-style decoder and the positional encoding it uses.

    Args:
        pe: the encoding: a name, names joined by ``+``, or a schedule of layers
            (`pe.encodings.core.spec`).
        pe_options: options of the encoding.
        num_key_value_heads: number of key and value heads, which divides num_attention_heads.
            None: num_attention_heads.
        head_dim: width of a head. None: hidden_size / num_attention_heads.
        max_position_embeddings: context length of training, in tokens. It is not a limit; this
            project measures what happens beyond it.
        qk_norm: RMS-normalise queries and keys of each head before rotation.
        joint_norm: RMS-normalise queries ("q"), keys ("k") or both ("qk") over all their heads
            together, as the variants of DroPE do (arXiv:2512.12167). "": neither.
        softmax_scale: factor of the logits. None: 1/sqrt(head_dim).
        length_temperature: c in the factor 1 + c ln(n / max_position_embeddings), by which the
            logits of a query that sees n tokens are multiplied if n exceeds the training context.
        dropout: probability, in training, of setting an entry to 0. As with GPT-2's embd_pdrop and
            resid_pdrop, it applies to the embeddings, after the encoding has added to them, and to
            the output of each attention and feed-forward block. It does not apply to attention
            probabilities, which the fused kernels never hold in memory.
        attention_backend: "sdpa", "dense" or "kernel" forces that backend. None takes the fastest
            exact one (`pe.attention.choose`).
        kwargs: fields of transformers' `PreTrainedConfig`, and ids of special tokens.

    Raises:
        ValueError: a field has no effect (the message names the nearest valid one), values do not
            fit each other, or a field is changed after a model was built with it.
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
        head_dim: int | None = None,
        max_position_embeddings: int = 256,
        pe: str = "rope",
        pe_options: dict[str, Any] | None = None,
        qk_norm: bool = False,
        joint_norm: str = "",
        softmax_scale: float | None = None,
        length_temperature: float = 0.0,
        dropout: float = 0.0,
        attention_backend: str | None = None,
        rms_norm_eps: float = 1e-5,
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = heads = num_attention_heads
        self.num_key_value_heads = heads if num_key_value_heads is None else num_key_value_heads
        self.max_position_embeddings = max_position_embeddings
        for name in SIZES:
            at_least(name, getattr(self, name), 1)
        if head_dim is None and hidden_size % heads:
            raise ValueError(
                f"hidden_size {hidden_size} does not divide into {heads} heads; give head_dim"
            )
        self.head_dim = hidden_size // heads if head_dim is None else head_dim
        at_least("head_dim", self.head_dim, 1)
        self.pe = pe
        self.pe_options = pe_options or {}
        self.pe_options = dict(self.pe_options)  # the caller may change their own
        self.qk_norm = qk_norm
        self.joint_norm = joint_norm
        self.softmax_scale = softmax_scale
        self.length_temperature = length_temperature
        self.dropout = dropout
        self.attention_backend = attention_backend
        self.rms_norm_eps = rms_norm_eps
        self.initializer_range = initializer_range
        self._refuse_impossible()
        for name, value in kwargs.items():
            self._refuse_unused(name, value)
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            self._refuse_unused(name, value)
            self._refuse_wrong(name, value)
            fixed = name in FIELDS and name not in FREE_AFTER_BUILDING
            if fixed and self.__dict__.get("_built") and value != getattr(self, name):
                raise ValueError(
                    f"{name}: {BUILT_IN}use pe.convert, or config.changed({name}=...) and a new "
                    "model"
                )
        super().__setattr__(name, value)

    def refuse_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raise ValueError for every argument that a model is given beside its configuration.

        transformers passes on to the model whatever is not a field of the configuration.
        """
        for name, value in arguments.items():
            self._refuse_unused(name, value)
            raise ValueError(f"{name}: a field of the configuration; set it there")

    def _refuse_unused(self, name: str, value: Any) -> None:
        """Raise ValueError for a field that neither the decoder nor transformers reads."""
        if name in FIELDS or name in TRANSFORMERS_FIELDS or name.startswith("_"):
            return
        if name in GENERATION_DEFAULTS:
            # Older files list the defaults, and transformers itself sets use_cache.
            if value == GENERATION_DEFAULTS[name] or name == "use_cache":
                return
            raise ValueError(
                f"{name}: set it in the model's generation_config, not in its configuration"
            )
        option = ALIASES.get(name, name)
        if option in {o for part in part_classes(self.pe).values() for o in options_of(part)}:
            raise ValueError(
                f"{name}: an option of {self.pe!r}; give pe_options={{{option!r}: {value!r}}}"
            )
        raise ValueError(
            f"PEConfig has no field {name!r}{nearest(name, FIELDS)}; it would have no effect. "
            "Options of an encoding go into pe_options"
        )

    def _refuse_wrong(self, name: str, value: Any) -> None:
        """Raise ValueError if a field of this class has another type, or is not finite."""
        if name not in FIELDS:
            return
        if not fits(value, HINTS[name]):
            raise ValueError(f"{name}: expected {word(HINTS[name])}, got {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: expected a finite number, got {value!r}")

    def _refuse_impossible(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        choice("joint_norm", self.joint_norm, ("", "q", "k", "qk"))
        checked(self.attention_backend)
        if not 0 <= self.dropout < 1:
            raise ValueError(
                f"dropout: expected a probability from 0 to less than 1, got {self.dropout!r}"
            )
        if self.softmax_scale is not None:
            positive("softmax_scale", self.softmax_scale)
        for name in ("rms_norm_eps", "initializer_range"):
            at_least(name, getattr(self, name), 0.0)
        layer_specs(self.pe, self.num_hidden_layers)
        check(self.pe, self.pe_options, **self.encoding_context())

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from a saved one; ``kwargs`` override its fields.

        Raises:
            ValueError: the configuration is that of another type of model, or an override has no
                effect.
        """
        kind = config_dict.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ValueError(
                f"this is a model of type {kind!r}, and {cls.model_type!r} was expected: pe.model "
                "loads only what it saved; load this one with pe.pretrained.load.load and give it "
                "an encoding with pe.adapt"
            )
        own = {name: kwargs.pop(name) for name in list(kwargs) if name in FIELDS}
        config = super().from_dict(config_dict | own, **kwargs)
        if not kwargs.get("return_unused_kwargs"):
            for name, value in kwargs.items():
                if name not in LOADING_ARGUMENTS:
                    config._refuse_unused(name, value)
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, without the internal mark that a model was built."""
        fields: dict[str, Any] = super().to_dict()
        fields.pop("_built", None)
        return fields

    def built(self) -> None:
        """Make read-only the fields that a model was built with; the model calls this."""
        self.pe_options = BuiltOptions(self.pe_options)
        self._built = True

    def changed(self, **fields: Any) -> PEConfig:
        """Return a copy in which these fields have other values.

        Raises:
            ValueError: the values do not fit the other fields.
        """
        other = copy.deepcopy(self)
        other._built = False
        for name, value in fields.items():
            setattr(other, name, value)
        other._refuse_impossible()
        return other

    def encoding_context(self) -> dict[str, int]:
        """Return the sizes that `pe.encodings.encoding` needs to build the encoding."""
        return {
            "head_dim": self.head_dim,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self.num_key_value_heads,
            "hidden_size": self.hidden_size,
            "original_length": self.max_position_embeddings,
        }


FIELDS = tuple(inspect.signature(PEConfig.__init__).parameters)[1:-1]
HINTS = typing.get_type_hints(PEConfig.__init__)
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings",
)  # fmt: skip
