"""`pe.adapt`: another encoding for a decoder of transformers, with every weight as it is.

A change of frequencies that transformers has a setting for becomes that setting: the result is a
model like any other of its class, and what it saves loads without this package. Everything else
goes through `pe.pretrained.hooks`; keys are cached unrotated then, and what is saved loads with
``AutoModelForCausalLM.from_pretrained`` once ``pe.pretrained.adapt`` has been imported.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import init_empty_weights
from pydantic import ValidationError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from pe._errors import LAST_SEED, explain, one_line, whole
from pe.encodings import Encoding, layer_encodings
from pe.encodings.core.options import CONTEXT, options_of, takes
from pe.encodings.core.parts import layer_classes, part_classes, stated_options, takes_option
from pe.encodings.core.registry import lookup
from pe.encodings.core.spec import joined, parse
from pe.encodings.p_rope import PRoPE
from pe.encodings.rope import RoPE
from pe.model.decoder import PEPreTrainedModel
from pe.model.initialize import draw_encodings
from pe.pretrained import families, hooks
from pe.pretrained.explain import Host, host_of, longer
from pe.pretrained.mistakes import Scaled, trained_scaling, undoing
from pe.pretrained.plain import plain_settings
from pe.pretrained.read import ADAPTED, quiet, read, saved_host
from pe.pretrained.rope import SCALINGS, Frozen, Rope
from pe.pretrained.settings import Settings

Model = TypeVar("Model", bound=PreTrainedModel)
PARAMETERS = "pe_encodings."
"""Prefix of the names of encodings' parameters, after the name of the decoder."""
AUTO: tuple[Any, ...] = (
    AutoModelForCausalLM, AutoModelForImageTextToText, AutoModel, AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification, AutoModelForTokenClassification,
)  # fmt: skip
"""Classes of transformers that load what an adapted model saved."""
REFUSAL = (
    "pe.adapt saved this model: import pe.pretrained.adapt and load the folder with "
    "AutoModelForCausalLM.from_pretrained"
)
"""What transformers shows where a saved folder is loaded with the host's own class."""
REPLACED_BY = {
    "attention_factor": ("mscale", "mscale_all_dim"),
    "mscale": ("attention_factor",), "mscale_all_dim": ("attention_factor",),
}  # fmt: skip
"""What multiplies cosines and sines can be given in two ways: for each option of YaRN, the options
of the other way."""
WITHOUT_EFFECT = "{}: has no effect on a model's own settings; name an encoding"
CLOSE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""How far logits may differ from the host's, in standard deviations of the logits, per type of
weights. The median over tokens counts: rounding may send one token to other experts."""
CLOSE_IN_16_BITS = 0.1


class Adaptation(Frozen):
    """How a model was adapted."""

    spec: str | None
    """The encoding; None: the model's own settings."""
    options: dict[str, Any]
    """Options of the encoding as they were given, and a factor that follows from ``length``."""
    layers: tuple[int, ...]
    """Indices of the layers that have the encoding."""
    seed: int = 0


class AdaptedConfig(PreTrainedConfig):
    """The config.json of an adapted model: the host's configuration, and the adaptation.

    transformers finds ``host`` when the folder is loaded with the host's own class, and would read
    the weights without the encoding. So a field of ``host`` holds `REFUSAL`, which no class of
    transformers accepts there, whatever attention it is asked for; ``taken_out`` has what it held.
    """

    model_type = ADAPTED

    def __init__(
        self,
        host: dict[str, Any] | None = None,
        adaptation: dict[str, Any] | None = None,
        taken_out: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.host, self.adaptation = host or {}, adaptation or {}
        self.taken_out = taken_out or {}
        super().__init__(**kwargs)


class Adapted:
    """Mixed into the class of a host to make the class of the adapted model."""

    pe_adaptation: Adaptation
    pe_attention_before: str
    """The host's attention implementation."""

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Save as transformers does, but under the model type ``pe-adapted``.

        Under the host's model type the weights would load with the wrong positions.
        """
        super().save_pretrained(save_directory, **kwargs)  # type: ignore[misc]
        file = Path(save_directory) / "config.json"
        host = json.loads(file.read_text("utf-8"))
        host["architectures"] = [type(self).__mro__[2].__name__]
        adaptation = self.pe_adaptation.model_dump(mode="json")
        field = next(iter(read(self).inside), "num_hidden_layers")
        taken_out, host[field] = {field: host[field]}, REFUSAL
        config = AdaptedConfig(host=host, adaptation=adaptation, taken_out=taken_out)
        config.save_pretrained(save_directory)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Tell pickle how to make it, since the class was made while the program ran."""
        return _empty, (type(self).__mro__[2],), self.__dict__


def _adapted_class(host: type) -> type:
    """Return the class of an adapted model.

    It has the host's name, because transformers' Trainer and pipelines look models up by name.
    """
    return type(host.__name__, (Adapted, host), {})


def _empty(host: type) -> Any:
    """Return a model of an adapted class without any attributes, for pickle to fill."""
    return object.__new__(_adapted_class(host))


class AdaptedLoader:
    """Loads what an adapted model saved. A class of ``AUTO`` comes here by the model type."""

    config_class = AdaptedConfig
    auto: Any
    """The class of ``AUTO`` that loads the host."""

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *args: Any, config: AdaptedConfig | None = None, **kwargs: Any
    ) -> Any:
        """Return the host with its weights, adapted as it was when it was saved.

        Raises:
            ValueError: there is no such folder on this machine, its config.json is damaged, or it
                does not have all weights of the class that is asked for.
        """
        from safetensors import safe_open

        where = Path(folder, kwargs.pop("subfolder", ""))
        if not where.is_dir():
            raise ValueError(f"{where}: no such folder; download what pe.adapt saved first")
        config = AdaptedConfig.from_pretrained(where) if config is None else config
        try:
            made = Adaptation.model_validate(config.adaptation)
            saved = dict(saved_host(vars(config)))
            own = AutoConfig.for_model(saved.pop("model_type"), **saved)
        except (ValidationError, KeyError, TypeError) as error:
            found = explain(error)[0] if isinstance(error, ValidationError) else one_line(error)
            raise ValueError(
                f"{where / 'config.json'}: not what pe.adapt saves ({found}); save the model again"
            ) from error
        with quiet():  # the parameters of encodings are not the host's
            more = kwargs | {"use_safetensors": True, "output_loading_info": True}
            model, info = cls.auto.from_pretrained(where, *args, config=own, **more)
        if missing := sorted(info["missing_keys"]):
            raise ValueError(
                f"{where}: no {', '.join(missing)}, which a {type(model).__name__} needs; it was "
                f"saved as {', '.join(own.architectures or ('another class',))}"
            )
        host = host_of(read(model))
        chosen = _layers(host, made.spec, made.layers)
        _hook(model, host, made, _encodings(host, made.spec, chosen, made.options))
        learned: dict[str, Tensor] = {}
        for file in sorted(where.glob("*.safetensors")):
            with safe_open(file, "pt") as weights:
                names = [name for name in weights.keys() if PARAMETERS in name]  # noqa: SIM118
                learned |= {n.partition(PARAMETERS)[2]: weights.get_tensor(n) for n in names}
        _decoder(model).pe_encodings.load_state_dict(learned)
        return model


AutoConfig.register(AdaptedConfig.model_type, AdaptedConfig)
for auto in AUTO:
    auto.register(AdaptedConfig, type(AdaptedLoader.__name__, (AdaptedLoader,), {"auto": auto}))
hooks.register()


def adapt(
    model: Model,
    spec: str | None = None,
    *,
    length: int | None = None,
    layers: Sequence[int] | None = None,
    plain: bool | None = None,
    seed: int = 0,
    **options: Any,
) -> Model:
    """Return a model that shares the weights of ``model`` and has the encoding ``spec``.

    ``model`` itself does not change, and weights are held once, so the two can be compared without
    twice the memory. To train one and keep the other, load or copy the model first.

    Args:
        model: a decoder of transformers, or a result of this function, which is adapted from its
            host once more.
        spec: a name, parts joined by ``+``, or a schedule of layers (`pe.encodings.core.spec`);
            ``"nope"`` drops the rotation. None: what the model has. The base, the pairing, the
            rotated width, the length of training and the settings of a scaling that the spec names
            come from the model unless ``options`` or the spec state them. The model's own windows
            stay.
        length: tokens to be read, in place of ``factor``: a multiple of the length of training.
        layers: the layers that get it. None: all for a schedule; otherwise those that rotate and
            see furthest, so that layers with windows and layers without rotation keep what they
            have.
        plain: True: as a setting of transformers, or else an error. This allows methods whose
            frequencies depend on the length, although transformers keeps cached keys as they were
            rotated. False: through hooks. None: as a setting where it gives the same logits.
        seed: draws the parameters of encodings that learn.
        options: of the encoding.

    Raises:
        ValueError: the model is an encoder, has no rotation, is one of this package (`pe.convert`)
            or has layers of an unknown structure; settings contradict each other; the length is
            within that of training; or the rotation lacks the scaling that the model has, or has a
            smaller factor. The message is one line.
    """
    _refuse_others(model)
    if plain is not None and not isinstance(plain, bool):
        raise ValueError(f"plain: expected True, False or None, got {plain!r}")
    whole("seed", seed, most=LAST_SEED)
    new: Model = _sharing_weights(model)
    host = host_of(read(new))
    chosen = _layers(host, spec, layers)
    options = _options(host, spec, length, options)
    if spec is None and plain is not False:
        for name, value in (("layers", layers), ("plain", plain)):
            if value is not None:
                raise ValueError(WITHOUT_EFFECT.format(name))
        return new
    wanted = _encodings(host, spec, chosen, options)
    result: Settings | str = "hooks were asked for (plain=False)"
    if spec is not None:
        _refuse_undoing(host, spec, wanted)
        _refuse_late_embedding(spec, chosen)
        if plain is not False:
            result = _plain(host, spec, wanted, length, bool(plain))
    if isinstance(result, Settings):
        _set(new, host, result)
        return new
    if plain:
        raise ValueError(f"{spec!r} is no setting of transformers: {result}")
    try:
        adaptation = Adaptation(spec=spec, options=options, layers=chosen, seed=seed)
        _hook(new, host, adaptation, wanted)
    except ValueError as error:
        raise ValueError(f"{error}. As a setting of transformers: {result}") from error
    return new


def _refuse_others(model: Any) -> None:
    if isinstance(model, PEPreTrainedModel):
        raise ValueError("this is a model of pe.model: pe.convert gives it another encoding")
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"adapt takes a model of transformers, not a {type(model).__name__}; load it with "
            "AutoModelForCausalLM.from_pretrained, or pe.pretrained.load"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("the weights are not loaded (device 'meta'); load them first")


def _sharing_weights(model: Any) -> Any:
    """Return a copy that shares only the weights, without an adaptation of the original."""
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    new = copy.deepcopy(model, dict(parameters))
    if isinstance(new, Adapted):
        hooks.uninstall(_decoder(new))
        adapted: Any = new
        del adapted.pe_adaptation
        adapted.__class__ = type(adapted).__mro__[2]
        adapted.set_attn_implementation(adapted.pe_attention_before)
    return new


def _decoder(model: Any) -> Any:
    """Return the module with the layers and the rotary module."""
    for module in (model.get_decoder(), *model.modules()):
        if hasattr(module, "layers") and hasattr(module, "rotary_emb"):
            return module
    raise ValueError(
        f"{type(model).__name__} has no module with layers and a rotary module (rotary_emb), "
        "through which pe.adapt reaches the positions"
    )


def _layers(host: Host, spec: str | None, layers: Sequence[int] | None) -> tuple[int, ...]:
    number = len(host.layers)
    if layers is not None:
        listed = list(layers) if isinstance(layers, Sequence) else []
        try:
            chosen = {whole("layers", layer, most=number - 1) for layer in listed}
        except ValueError:
            chosen = set()
        if not chosen or len(chosen) < len(listed):
            raise ValueError(
                f"layers: expected some of 0 to {number - 1} in a list, each once, got {layers!r}"
            )
        return tuple(sorted(chosen))
    if spec is not None and len(parse(spec)) > 1:
        return tuple(range(number))
    rotating = [i for i, layer in enumerate(host.layers) if layer.rope is not None]
    if spec is None:
        return tuple(rotating)
    reach = [host.layers[i].reach or math.inf for i in rotating]
    return tuple(i for i, far in zip(rotating, reach, strict=True) if far == max(reach))


def _options(
    host: Host, spec: str | None, length: int | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``options``, and the factor that follows from ``length``."""
    for name in options:
        if name in CONTEXT and name != "original_length":
            raise ValueError(f"{name} follows from the model's sizes and is not an option")
    if spec is None:
        if options or length is not None:
            raise ValueError(WITHOUT_EFFECT.format(next(iter(options), "length")))
        return {}
    if length is not None:
        length = longer(host.rope, host.training, length)
        if "factor" in options or "factor" in stated_options(spec):
            raise ValueError("length and factor are two ways to say the same; leave one out")
        if not takes_option(spec, "factor"):
            raise ValueError(f"length: {spec!r} has no factor that would follow from it")
        options = dict(options) | {"factor": length / host.rope.unit(host.training.tokens)}
    return dict(options)


def _refuse_undoing(host: Host, spec: str, wanted: Mapping[int, Encoding]) -> None:
    """Raise ValueError for a rotation without a scaling that the layers were trained with.

    An encoding that does not rotate is allowed: it drops the scaling together with the rotation.
    """
    trained = trained_scaling(host.source.config)
    for index, enc in wanted.items():
        rope = host.layers[index].rope
        if rope is None or not rope.extended or not enc.rotates:
            continue
        scaling: Any = rope.transform()
        parts: Any = enc.modules()
        same = (
            part for part in parts
            if type(part) is type(scaling) and part.length_dependent == scaling.length_dependent
        )  # fmt: skip
        factor = next((float(part.factor) for part in same), None)
        own = Scaled(rope.kind, rope.factor, "the model's configuration has")
        known = trained if trained is not None and trained.kind == rope.kind else own
        least = max(known.factor, own.factor)
        if mistake := undoing(known, factor) or undoing(own, factor):
            raise ValueError(
                f"{spec!r}: {mistake.text}. Use {scaling.name!r} with a factor of {least:g} or "
                f"more, alone or in a sum such as '{scaling.name}+window:4096'; 'nope' drops the "
                "rotation"
                + ("" if known is trained else "; if the scaling was added after training, load "
                   "the model without it")
            )  # fmt: skip


def _refuse_late_embedding(spec: str, chosen: Sequence[int]) -> None:
    """Raise ValueError for an encoding of the token embeddings that is not in the first layer."""
    layers = parse(spec)
    for layer in layers:
        for name, part in layer_classes(layer).items():
            if getattr(part, "embeds", False) and (layer != layers[0] or 0 not in chosen):
                raise ValueError(
                    f"{spec!r} for layers {list(chosen)}: {name} acts on the token embeddings, "
                    "once for all layers; name it in the first part of a schedule only, and let "
                    "layers begin with 0"
                )


def _plain(
    host: Host, spec: str, wanted: Mapping[int, Encoding], length: int | None, asked: bool
) -> Settings | str:
    """Return the settings of transformers for the encodings of layers, or why there are none.

    Args:
        length: as in `adapt`. asked: also settings that give other logits than hooks would.
    """
    if len(parse(spec)) > 1:
        return "a schedule of layers is no setting of transformers"
    chosen = list(wanted)
    enc = wanted[chosen[0]]
    if type(enc) is not RoPE:
        return "it does more than change the frequencies of a rotation"
    types = getattr(host.source.config, "layer_types", None) or ()
    apart = host.layer_type in types  # each layer type has a block
    sharing = [
        index for index, layer in enumerate(host.layers)
        if layer.rope == host.rope and (not apart or types[index] == host.layer_type)
    ]  # fmt: skip
    if chosen != sharing:
        return (
            f"the encoding is for layers {chosen}, and transformers' setting acts on {sharing}; "
            f"choose these with layers={sharing}"
        )
    if enc.length_dependent and not asked:
        return "transformers keeps cached keys rotated as for a shorter text"
    cancelled = not asked and families.cancels_magnitude(host.source.config)
    if cancelled and float(enc.frequencies().magnitude) != 1:
        return "the model normalises away what it multiplies cosines and sines by"
    factor = max((getattr(t, "factor", 1.0) for t in enc.transforms), default=1.0)
    longest = max(int(host.source.config.max_position_embeddings), host.training.original)
    unit = host.rope.unit(host.training.tokens)
    tokens = length or (round(unit * factor) if factor > 1 else longest)
    return plain_settings(host, enc, tokens)


def _set(model: Any, host: Host, settings: Settings) -> None:
    """Write the settings into the configuration, and do what loading a model with them would do.

    A second model without weights is built from the configuration. The tables that its modules
    computed, which are the buffers that are not saved, replace those of ``model``, together with
    the plain attributes of these modules. Latent attention has no such tables, but scales its
    logits by YaRN's ``mscale_all_dim``. Learned parameters stay, those of a rotary module too.
    """
    inner: Any = settings.transformers
    for key in host.source.inside:
        inner = inner[key]
    for name, value in inner.items():
        setattr(host.source.config, name, value)
    with quiet(), init_empty_weights(include_buffers=False):
        loaded = type(model)(model.config)
    for name, built in loaded.named_modules():
        module = model.get_submodule(name)
        if tables := built._non_persistent_buffers_set:
            device = next(module.buffers()).device
            for table in tables:
                module.register_buffer(table, built.get_buffer(table).to(device), persistent=False)
            attributes = {k: v for k, v in vars(built).items() if not k.startswith("_")}
            vars(module).update(attributes | {"training": module.training})
        elif isinstance(getattr(built, "scaling", None), float):
            module.scaling = built.scaling


def _hook(new: Any, host: Host, adaptation: Adaptation, wanted: Mapping[int, Encoding]) -> None:
    """Put the encodings ``wanted``, by layer, into a model. ValueError: hooks cannot reach it."""
    if host.rope.latent:
        raise ValueError(
            "latent attention (MLA) rotates a part of each key only, and transformers' attention "
            "interface does not see which"
        )
    devices = sorted({str(parameter.device) for parameter in new.parameters()})
    if len(devices) > 1:
        raise ValueError(f"the weights are on {', '.join(devices)}; hooks need them on one device")
    decoder = _decoder(new)
    for index, enc in wanted.items():
        if enc.hides and (reach := host.layers[index].reach) is not None:
            raise ValueError(
                f"{adaptation.spec!r} hides keys, and layer {index} has a window of its own "
                f"({reach} tokens); change the model's configuration, or name other layers"
            )
    before, expected = new.config._attn_implementation, _logits(new)
    new.set_attn_implementation(hooks.INTERFACE)
    rotating = [i for i, layer in enumerate(host.layers) if layer.rope is not None]
    _install(new, decoder, _encodings(host, None, rotating, {}))
    _compare(expected, new)
    if adaptation.spec is not None or list(adaptation.layers) != rotating:
        hooks.uninstall(decoder)
        _install(new, decoder, wanted)
        draw_encodings(decoder.pe_encodings, adaptation.seed)
    new.pe_attention_before = before
    new.pe_adaptation = adaptation
    new.__class__ = _adapted_class(type(new))


def _install(model: Any, decoder: Any, encodings: Mapping[int, Encoding]) -> None:
    for enc in encodings.values():
        enc.to(device=model.device, dtype=model.dtype).train(model.training)
    hooks.install(decoder, encodings)


def _encodings(
    host: Host, spec: str | None, chosen: Sequence[int], options: Mapping[str, Any]
) -> dict[int, Encoding]:
    """Return the encoding of each layer. Layers with the same settings share one if they can."""
    config = host.source.config
    built: dict[str, list[Encoding]] = {}
    encodings: dict[int, Encoding] = {}
    for index in chosen:
        rope = host.layers[index].rope or host.rope
        key = rope.model_dump_json()
        if key not in built and spec is None:
            built[key] = [_own(rope)]
        if key not in built:
            heads = config.num_attention_heads
            scaled, more = _with_own_scaling(rope, spec, options)  # type: ignore[arg-type]
            built[key] = layer_encodings(
                scaled, len(host.layers), head_dim=rope.head_dim, num_heads=heads,
                num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
                hidden_size=config.hidden_size,
                **({"original_length": host.training.tokens} | _carried(rope, scaled, more)),
            )  # fmt: skip
        listed = built[key]
        encodings[index] = listed[index % len(listed)]
    return encodings


def _carried(rope: Rope, spec: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` with the model's base, pairing and rotated share where not stated."""
    own: dict[str, Any] = {"theta": rope.base, "layout": rope.layout}
    if rope.kind == "proportional":
        own["p"] = rope.share
    elif rope.width < rope.head_dim:
        own["rotary_fraction"] = rope.share
    rotating = [part for part in part_classes(spec).values() if getattr(part, "rotates", False)]
    taken = {option for part in rotating for option in options_of(part)} - set(stated_options(spec))
    if rope.kind == "proportional" and "rotary_fraction" in taken - set(options):
        raise ValueError(
            f"{spec}: the model has p-RoPE (arXiv:2410.06205), and this would rotate by other "
            "frequencies; put p_rope in it, as in 'p_rope+yarn', or state rotary_fraction"
        )
    return {name: value for name, value in own.items() if name in taken} | dict(options)


def _with_own_scaling(
    rope: Rope, spec: str, options: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """Return ``spec`` and ``options``, with the settings of a scaling that is in the spec.

    They go into the spec itself, because another part may have an option of the same name.
    """
    encoding = SCALINGS[rope.kind].encoding if rope.scaled else None
    if encoding is None or encoding not in part_classes(spec).values():
        return spec, options
    lists: dict[str, Any] = {}
    layers = []
    for layer in parse(spec):
        parts = []
        for part in layer:
            if lookup(part.name) is not encoding:
                parts.append(part)
                continue
            stated = dict(part.options) | {
                name: value for name, value in options.items() if takes(encoding, name)
            }
            factor = stated.get("factor")
            kept = rope.with_factor(factor) if isinstance(factor, int | float) else rope
            replaced = {name for option in stated for name in REPLACED_BY.get(option, ())}
            settings = {n: v for n, v in kept.scaling_options().items() if n not in replaced}
            settings |= stated
            alone = "long_factor" in settings and "long_factor" not in stated
            if alone and kept.factor != rope.factor:
                raise ValueError(
                    f"factor {kept.factor:g}: the factors of frequencies in the model's LongRoPE "
                    f"were found for factor {rope.factor:g}; give long_factor too "
                    "(pe.search_longrope)"
                )
            lists |= {name: v for name, v in settings.items() if isinstance(v, list | tuple)}
            own = {n: v for n, v in settings.items() if n not in lists and n not in options}
            parts.append(part._replace(options=tuple(own.items())))
        layers.append(joined(tuple(parts)))
    return ", ".join(layers), lists | dict(options)


def _own(rope: Rope) -> Encoding:
    """Return the encoding of this package that does what the layer does already."""
    if rope.kind == "proportional":
        if rope.factor != 1 or (rope.settings.get("factor") or 1.0) != 1:
            raise ValueError("p-RoPE with a factor is not adapted through hooks")
        return PRoPE(rope.head_dim, rope.share, rope.base, rope.layout)
    transform = rope.transform()
    transforms = [] if transform is None else [transform]
    return RoPE(rope.head_dim, rope.base, rope.layout, rope.share, transforms)


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    """Return the logits of a few fixed tokens, in float32."""
    size = model.get_input_embeddings().num_embeddings
    tokens = torch.arange(1, 9, device=model.device)[None] * 7919 % size
    training = model.training
    model.eval()
    try:
        with torch.autocast(tokens.device.type, enabled=False):
            out = model(input_ids=tokens, use_cache=False)
    finally:
        model.train(training)
    result: Tensor = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return result.float()


def _compare(expected: Tensor, hooked: Any) -> None:
    """Raise ValueError unless the host's own settings, through hooks, give the expected logits.

    So a model that does something else between rotation and attention is refused.
    """
    name = type(hooked).__name__
    try:
        logits = _logits(hooked)
    except RuntimeError as error:
        raise ValueError(
            f"{name}: its layers have other shapes than its configuration says: "
            f"{' '.join(str(error).split())}"
        ) from error
    gap = float(((logits - expected).abs().amax(-1) / expected.std()).median())
    if not gap <= CLOSE.get(hooked.dtype, CLOSE_IN_16_BITS):
        raise ValueError(
            f"{name}: its own settings through hooks change logits by {gap:.2g} of their standard "
            "deviation, so it does something with positions that pe.adapt does not know"
        )
