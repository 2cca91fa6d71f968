"""Changes of frequencies as settings of transformers, which load without this package."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pe.encodings import FrequencyTransform
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.dynamic_ntk import DynamicNTK
from pe.encodings.llama3 import Llama3
from pe.encodings.longrope import LongRoPE
from pe.encodings.ntk import NTK
from pe.encodings.pi import PI
from pe.encodings.rope import RoPE
from pe.encodings.yarn import YaRN
from pe.pretrained.explain import Host
from pe.pretrained.methods import with_settings
from pe.pretrained.rope import Rope
from pe.pretrained.settings import Settings, settings_for


def plain_settings(host: Host, enc: RoPE, length: int) -> Settings | str:
    """Return settings of transformers for the frequencies of ``enc``, or why there are none.

    Args:
        host: the model that gets them, in its main layers. length: tokens to be read.
    """
    now, trained = host.rope, host.training.original
    if now.kind == "proportional" or (enc.layout, enc.rotary_dim) != (now.layout, now.width):
        return "it rotates other channels"
    result: Settings | str = "transformers has no setting for these frequencies"
    for rope in _ropes(enc, now, trained):
        result = settings_for(host.source, rope, host.layer_type, length)
        if isinstance(result, Settings):
            break
    return result


def _ropes(enc: RoPE, now: Rope, trained: int) -> list[Rope]:
    """Return settings with the same frequencies, the plainest first."""
    base = now.model_copy(update={"base": enc.theta})
    if not enc.transforms:
        return [with_settings(base, "default", trained, rope_theta=enc.theta)]
    ropes = []
    if len(enc.transforms) == 1:
        transform: FrequencyTransform = enc.transforms[0]  # type: ignore[assignment]
        named = _named(transform, base, trained)
        ropes += [] if named is None else [named]
    spectrum = None if enc.length_dependent else enc.frequencies()
    if spectrum is None or spectrum.period is not None or spectrum.warp is not None:
        return ropes
    if spectrum.exempt or isinstance(spectrum.magnitude, Tensor):
        return ropes
    slower = base_frequencies(enc.rotary_dim, enc.theta).inv_freq / spectrum.inv_freq
    if slower.isfinite().all():  # LongRoPE's form takes any frequencies
        factors = slower.tolist()
        ropes.append(
            with_settings(
                base, "longrope", trained, factor=max(factors), short_factor=factors,
                long_factor=factors, attention_factor=float(spectrum.magnitude),
                original_max_position_embeddings=trained,
            )
        )  # fmt: skip
    return ropes


def _named(transform: FrequencyTransform, base: Rope, trained: int) -> Rope | None:
    """Return transformers' type of scaling for a transform, the inverse of `rope.SCALINGS`."""
    if isinstance(transform, PI):
        return with_settings(base, "linear", trained, factor=transform.factor)
    if isinstance(transform, NTK):
        raised = base.base * transform.factor ** (base.width / (base.width - 2))
        return with_settings(base, "default", trained, rope_theta=raised)
    if isinstance(transform, DynamicNTK):
        return with_settings(base, "dynamic", trained, factor=transform.factor)
    if isinstance(transform, YaRN) and not transform.length_dependent:
        settings: dict[str, Any] = {"factor": transform.factor}
        settings |= {"beta_fast": transform.beta_fast, "beta_slow": transform.beta_slow}
        if transform.fixed_magnitude:
            settings["attention_factor"] = transform.magnitude
        if all(transform.weights):
            settings |= dict(zip(("mscale", "mscale_all_dim"), transform.weights, strict=True))
        elif base.latent and base.settings.get("mscale_all_dim"):
            # latent attention scales its logits by it, whatever cosines are multiplied by
            settings["mscale_all_dim"] = base.settings["mscale_all_dim"]
        if not transform.truncate:
            settings["truncate"] = False
        return _counted(base, "yarn", transform.original_length, settings)
    if isinstance(transform, Llama3):
        settings = {
            "factor": transform.factor, "low_freq_factor": transform.low,
            "high_freq_factor": transform.high,
        }  # fmt: skip
        return _counted(base, "llama3", transform.original_length, settings)
    if isinstance(transform, LongRoPE) and not transform.dynamic and not transform.exempt:
        assert transform.factors is not None
        long, short = (list(each) for each in transform.factors)
        settings = {"factor": transform.factor, "long_factor": long, "short_factor": short}
        settings["attention_factor"] = transform.magnitude
        return _counted(base, "longrope", transform.original_length, settings)
    return None


def _counted(base: Rope, kind: str, original: int, settings: dict[str, Any]) -> Rope:
    settings = settings | {"original_max_position_embeddings": original}
    return with_settings(base, kind, original, **settings)
