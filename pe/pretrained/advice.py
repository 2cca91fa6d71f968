"""Which method to take for longer texts, with what factor, why, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pe.pretrained.layers import Layer
from pe.pretrained.length import TrainingLength
from pe.pretrained.methods import Method
from pe.pretrained.mistakes import trained_so
from pe.pretrained.rope import Frozen, Rope

TRAIN_BEYOND = 4.0
"""Beyond this factor the advice speaks of further training."""

WITHOUT_SCALING = ("yarn", "longrope", "pi", "ntk")
"""Methods for a configuration that scales nothing, the preferred one first."""

WHAT = {
    "yarn": "YaRN leaves fast frequencies alone and slows what never completed a rotation, so that "
    "no angle is new",
    "longrope": "this model type takes no YaRN, but the same frequencies as LongRoPE's factors",
    "pi": "PI slows every frequency, so that no angle is new",
    "ntk": "a larger base slows the slowest frequencies most",
}


class Advice(Frozen):
    """What to do to read longer texts, and why."""

    method: str | None
    """The name of a method; None: nothing has to change, or nothing can be done by settings."""
    factor: float | None
    why: str
    short_texts: str
    """What it costs on texts within the training length."""


def advise(
    config: Any,
    main: Layer,
    layers: Sequence[Layer],
    training: TrainingLength,
    length: int,
    methods: Sequence[Method],
    refused: Mapping[str, str],
) -> Advice:
    """Return the advice for ``length`` tokens.

    Args:
        main: the rotating layer that sees furthest.
        methods: all methods, `as_it_is` first.
        refused: the reason for each method that has no settings.
    """
    rope = main.rope
    assert rope is not None
    if main.reach is not None and main.reach <= training.tokens:
        return _nothing(_in_windows(main.reach, layers))
    if methods[0].unseen == 0:
        return _nothing(f"As it is, no frequency meets a new angle within {length:,} tokens.")
    wanted = ("further",) if rope.scaled else WITHOUT_SCALING
    usable = {method.name: method for method in methods if method.name not in refused}
    name = next((name for name in wanted if name in usable), None)
    if name is None:
        return _nothing(_no_settings(rope, training, [refused[n] for n in wanted if n in refused]))
    chosen, more = usable[name], length / training.tokens
    assert chosen.rope is not None
    if name == "further":
        factor = chosen.rope.factor
        why = _further(rope, factor, trained_so(config, rope))
    else:
        factor = more
        why = (
            f"{length:,} / {training.tokens:,} = {more:g}: the smallest factor that covers the "
            f"length; {WHAT[name]}. A larger factor changes more and gains nothing."
        )
    if more > TRAIN_BEYOND:
        why += (
            f" {more:g} times the training length is much without further training: YaRN's own "
            "models of 16 and 32 times were trained on (arXiv:2309.00071)."
        )
    return Advice(method=name, factor=factor, why=why, short_texts=_short_texts(chosen))


def _nothing(why: str) -> Advice:
    return Advice(method=None, factor=None, why=why, short_texts="nothing changes")


def _in_windows(reach: int, layers: Sequence[Layer]) -> str:
    limit = (
        "What limits such a model is its layers without rotation, which no rotary setting reaches."
        if any(layer.position == "none" for layer in layers)
        else "Text before a window reaches a token through the layers below only."
    )
    return (
        f"Every layer that rotates sees {reach:,} tokens at most, so no angle is new at any "
        "length: leave the rotary settings alone and raise max_position_embeddings. " + limit
    )


def _no_settings(rope: Rope, training: TrainingLength, reasons: Sequence[str]) -> str:
    if rope.kind == "dynamic":
        return (
            f"The configuration scales dynamically: beyond {training.original:,} tokens the base "
            "grows with the text by itself. Static YaRN instead would leave no new angle."
        )
    if rope.kind == "longrope":
        return (
            f"The configuration has LongRoPE, whose factors were found for {training.tokens:,} "
            "tokens; more needs new factors (pe.search_longrope) or training. A window needs "
            "neither, but the model then reads no more than before."
        )
    return f"No settings extend it: {reasons[0]}."


def _further(rope: Rope, factor: float, trained: bool) -> str:
    already = f"The configuration scales already ({rope.kind}, factor {rope.factor:g})"
    keep = f"keep the method and raise the factor to {factor:g}"
    if trained:
        return f"{already}, and its makers trained the weights so: {keep}, never lower it."
    return (
        f"{already}. If its weights were trained so, another method would undo that: {keep}, never "
        f"below {rope.factor:g}. If somebody added it after training, take the smallest factor "
        "that covers the longest text."
    )


def _short_texts(method: Method) -> str:
    grown = (method.logits - 1) * 100
    if method.name == "longrope":
        return (
            "Texts within the training length keep their frequencies; logits are "
            f"{grown:.0f}% larger in them too."
        )
    return (
        f"Static settings act at every length: {method.changed} of {len(method.inv_freq)} "
        "frequencies are slower in short prompts too"
        + (f", and logits are {grown:.0f}% larger" if grown >= 0.5 else "")
        + ". Where short prompts matter, serve them from a second copy with the original settings."
    )
