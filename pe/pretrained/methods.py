"""What each way of reading further would do to a model's frequencies.

A frequency that completes a rotation within the training length L has met every angle. One that
does not has met angles below w_i L only, so with a changed frequency w_i' a distance of

    d = L w_i / w_i'

tokens is the first whose angle is new. Angles are those of RoPE (arXiv:2104.09864).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pe.encodings.core.extension import Rotary, raised_base
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.self_extend import smallest_group
from pe.pretrained.rope import FIELDS, PAPERS, TITLES, TYPE_KEYS, Frozen, Rope, turns


class Method(Frozen):
    """A way to read ``length`` tokens, and what it changes."""

    name: str
    title: str
    paper: str
    """The number of its paper on arXiv."""
    rope: Rope | None
    """The settings that it leads to; None where transformers has none for it."""
    inv_freq: tuple[float, ...]
    """Radians per token of each frequency, for a text of ``length`` tokens."""
    attention_factor: float = 1.0
    """The factor on cos and sin. Queries and keys both have it, so logits have its square."""
    logits: float
    """By how much logits of rotated channels grow over those of training."""
    changed: int
    """Frequencies that it changes."""
    unseen: int
    """Frequencies that reach angles which training did not have."""
    first_unseen: int | None
    """The first distance between two tokens with such an angle; None: none up to ``length``."""
    reach: int | None = None
    """Distances stay below this; None: they go up to the length of the text."""
    short_texts: str
    """What it does to texts within the training length."""
    remark: str = ""


def first_new(seen: Tensor, slowed: Tensor, length: int, reach: int) -> Tensor:
    """Return for each frequency the first distance below ``reach`` with a new angle, or inf.

    Args:
        seen: frequencies in training, (F,), radians per token, at ``length`` tokens.
        slowed: frequencies to be judged, (F,).
    """
    distance = torch.ceil(length * seen / slowed - 1e-6)
    never = (turns(seen, length) >= 1) | (slowed == 0) | (distance >= reach)
    return torch.where(never, math.inf, distance)


def method(
    name: str,
    title: str,
    paper: str,
    *,
    now: Rope,
    trained: int,
    length: int,
    rope: Rope | None = None,
    inv_freq: Tensor | None = None,
    attention_factor: float = 1.0,
    short_texts: str,
    remark: str = "",
    reach: int | None = None,
) -> Method:
    """Return a `Method` with its frequencies compared to those of training.

    Args:
        now: the settings that the model was trained with, at ``trained`` tokens.
        rope: the settings of the method; frequencies follow from them unless given.
        reach: distances stay below it; default: ``length``.
    """
    if rope is not None and inv_freq is None:
        spectrum = rope.spectrum(length)
        inv_freq, attention_factor = spectrum.inv_freq, float(spectrum.magnitude)
        logits = rope.logits(length)
    else:
        logits = attention_factor**2
    assert inv_freq is not None
    seen = now.spectrum(trained).inv_freq
    new = first_new(seen, inv_freq, trained, reach or length)
    unseen = int(new.isfinite().sum())
    return Method(
        name=name, title=title, paper=paper, rope=rope, inv_freq=tuple(inv_freq.tolist()),
        attention_factor=attention_factor,
        logits=logits / now.logits(trained),
        changed=int((~torch.isclose(seen, inv_freq, rtol=1e-9, atol=0.0)).sum()),
        unseen=unseen, first_unseen=int(new.min()) if unseen else None, reach=reach,
        short_texts=short_texts, remark=remark,
    )  # fmt: skip


EVERY = "changed"
NEVER = "unchanged"


def list_methods(now: Rope, trained: int, length: int) -> list[Method]:
    """Return every way to read ``length`` tokens with a model that was trained on ``trained``.

    A model whose configuration scales already can only be scaled further in the same way: another
    method would undo what its weights were trained with.
    """
    common: dict[str, Any] = {"now": now, "trained": trained, "length": length}
    as_it_is = method(
        "as_it_is", "as it is", PAPERS[now.kind], rope=now, short_texts=NEVER, **common
    )  # fmt: skip
    window = method(
        "window", f"window of {trained:,}", "2309.17453", rope=now, reach=trained,
        short_texts=NEVER, **common,
        remark="keeps the first few tokens and counts positions inside the window, as StreamingLLM "
        "does; nothing else before it is read. A plain sliding window of transformers or vLLM "
        "loses the first tokens, and the model may then predict badly",
    )  # fmt: skip
    if now.kind in ("default", "proportional"):
        return [as_it_is, *_of_plain(now, trained, length, common), window]
    return [as_it_is, *_scaled_further(now, trained, length, common), window]


def with_settings(now: Rope, kind: str, original: int, **settings: Any) -> Rope:
    """Return the same layer with another scaling; its base, width and other settings stay."""
    kept = {
        key: value for key, value in now.settings.items()
        if key not in _OF_SCALINGS and value is not None
    }  # fmt: skip
    if now.width != now.head_dim and now.kind == "default":
        kept.setdefault("partial_rotary_factor", now.share)
    if "llama_4_scaling_beta" in kept:  # the temperature counts from it, whatever scales
        kept["original_max_position_embeddings"] = now.settings["original_max_position_embeddings"]
    if "short_mscale" in kept and "attention_factor" in settings:  # families.OWN_MAGNITUDE
        kept |= dict.fromkeys(("short_mscale", "long_mscale"), settings["attention_factor"])
    block: dict[str, Any] = {"rope_type": kind, "rope_theta": now.base} | kept | settings
    return now.model_copy(
        update={
            "kind": kind, "settings": block, "original_length": original,
            "base": float(block["rope_theta"]),
        }
    )  # fmt: skip


_OF_SCALINGS = {*TYPE_KEYS, "alpha", "finetuned"}.union(*FIELDS.values())


def _of_plain(now: Rope, trained: int, length: int, common: dict[str, Any]) -> list[Method]:
    factor = length / trained
    linear = with_settings(now, "linear", trained, factor=factor)
    if now.kind == "proportional":  # transformers' p-RoPE takes a factor, and nothing else
        linear = with_settings(now, "proportional", trained, factor=factor)
        return [_interpolation(linear, common)]
    methods = []
    if now.width % 2 == 0:  # of an odd width the last frequency has no channel to pair with
        yarn = with_settings(
            now, "yarn", trained, factor=factor, original_max_position_embeddings=trained
        )
        extended = yarn.spectrum()
        slower = (base_frequencies(now.width, now.base).inv_freq / extended.inv_freq).tolist()
        longrope = with_settings(
            now, "longrope", trained, factor=factor, original_max_position_embeddings=trained,
            short_factor=[1.0] * len(slower), long_factor=slower,
        )  # fmt: skip
        methods += [
            method(
                "yarn", "YaRN, static", "2309.00071", rope=yarn, short_texts=EVERY, **common,
                remark="what transformers and vLLM have: the factor acts at every length",
            ),
            method(
                "yarn_dynamic", "YaRN, dynamic", "2309.00071", inv_freq=extended.inv_freq,
                attention_factor=float(extended.magnitude), short_texts=NEVER, **common,
                remark="neither transformers nor vLLM has it; pe.adapt(model, 'yarn', "
                "dynamic=True) does",
            ),
            method(
                "longrope", "LongRoPE as YaRN", "2402.13753", rope=longrope, **common,
                short_texts="larger logits",
                remark="YaRN's slowing as factors, which act in texts beyond the training length "
                "only; keys cached before a text crosses it keep the other frequencies. "
                "pe.search_longrope finds better factors",
            ),
        ]  # fmt: skip
        if now.width >= 4:
            raised = now.base * factor ** (now.width / (now.width - 2))
            methods += [
                method(
                    "ntk", "NTK, static", "2309.00071", short_texts=EVERY, **common,
                    rope=with_settings(now, "default", trained, rope_theta=raised),
                    remark="slows the last frequency by the whole factor, those before it by less",
                ),
                method(
                    "dynamic_ntk", "NTK, dynamic", "2309.00071", short_texts=NEVER, **common,
                    rope=with_settings(now, "dynamic", trained, factor=1.0),
                    remark="transformers keeps cached keys rotated as for a shorter text; vLLM "
                    "computes one base for the longest text, which is NTK, static",
                ),
            ]  # fmt: skip
    methods.append(_interpolation(linear, common))
    base = raised_base(Rotary(now.base, now.width, trained), factor)
    if base is not None:
        methods.append(
            method(
                "abf", "larger base", "2309.16039", short_texts=EVERY, **common,
                rope=with_settings(now, "default", trained, rope_theta=base),
                remark="the smallest base without a new angle; meant for continued training",
            )
        )  # fmt: skip
    methods += _self_extend(now, trained, length, common)
    return methods


def _interpolation(linear: Rope, common: dict[str, Any]) -> Method:
    return method(
        "pi", "PI", "2306.15595", rope=linear, short_texts=EVERY, **common,
        remark="divides every frequency by the factor, the fast ones too",
    )  # fmt: skip


def _self_extend(now: Rope, trained: int, length: int, common: dict[str, Any]) -> list[Method]:
    if now.width % 2 or trained < 2:
        return []
    size, window = smallest_group(trained, length)
    return [
        method(
            "self_extend", "Self-Extend", "2401.01325", **common, reach=trained,
            inv_freq=base_frequencies(now.width, now.base).inv_freq,
            short_texts=f"same to {window:,}",
            remark=f"counts distances from {window:,} on in groups of {size}; neither transformers "
            f"nor vLLM has it; pe.adapt(model, 'self_extend', length={length}) does",
        )
    ]  # fmt: skip


def _scaled_further(now: Rope, trained: int, length: int, common: dict[str, Any]) -> list[Method]:
    """Return the scaling of the training, stronger by as much as ``length`` asks for."""
    if now.kind in ("longrope", "dynamic"):  # its factors are a search's; it grows by itself
        return []
    rope = now.with_factor(length / now.unit(trained))
    return [
        method(
            "further", f"{TITLES[now.kind]} ×{rope.factor:g}", PAPERS[now.kind], rope=rope,
            short_texts=EVERY, **common,
            remark=f"the scaling that the configuration has, with a larger {now.factor_name}",
        )
    ]  # fmt: skip
