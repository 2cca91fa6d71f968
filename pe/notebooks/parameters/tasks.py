"""The experiment on a synthetic task that tasks.ipynb makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pe._errors import unknown
from pe.runs.parameters import (
    Count,
    Options,
    Whole,
    Words,
    launcher,
    refuse_strange_study,
    whole_numbers_in,
    without_none,
    words_in,
)
from pe.tasks.measure.cost import refuse_too_large
from pe.tasks.measure.record import DEVICE_SIZES, SIZES, Experiment, Settings, TaskRun, task_run


@launcher
def configure_tasks(
    task: str = "k_back",
    pe: str = "nope,rope,alibi",
    size: str = "auto",
    study: str = "local",
    steps: Whole | None = None,
    width: Count | None = None,
    layers: Count | None = None,
    heads: Count | None = None,
    batch_size: Count | None = None,
    seeds: Words | None = None,
    learning_rates: Words | None = None,
    task_options: Options | None = None,
    overrides: Options | None = None,
) -> TaskRun:
    """Return the folder of the experiment that these parameters describe. Writes nothing.

    Args:
        pe: encodings with commas between them, or with semicolons where a schedule of layers has
            commas. Commas in parentheses do not separate encodings.
        size: a name of `pe.tasks.measure.record.SIZES`; auto: ``small`` on a CPU, else ``app``.
        seeds: whole numbers with commas between. learning_rates: numbers with commas between.
        overrides: other fields of `pe.tasks.measure.record.Settings`, or the numbers of examples
            (``examples``, ``validation``, ``each_length``).

    Raises:
        ValueError: an unknown task, encoding, size or option (the message suggests the nearest
            known one), sizes that do not fit each other, a setting that is given twice, or models
            that are not recorded yet and need more memory than this machine has.
    """
    from pe import devices

    refuse_strange_study(study)
    if size == "auto":
        size = DEVICE_SIZES["cpu" if devices.choose().type == "cpu" else "cuda"]
    if size not in SIZES:
        raise unknown("size", size, ["auto", *SIZES])
    values = {"task": task, "task_options": task_options or {}} | SIZES[size]
    if seeds is not None:
        values["seeds"] = whole_numbers_in(seeds, "seeds")
    if learning_rates is not None:
        values["learning_rates"] = [_rate(word) for word in words_in(learning_rates)]
    values |= task_settings(
        values.pop("settings", Settings()),
        without_none(steps=steps, width=width, layers=layers, heads=heads, batch_size=batch_size),
        overrides or {},
    )
    experiment = Experiment(**values)
    made = experiment.make_task()
    names = _encodings_in(pe)
    if not names:
        raise ValueError("pe: which encodings? Expected names with commas, such as rope,alibi")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"pe: expected each encoding once, got {', '.join(twice)} more than once")
    run = task_run(experiment, names, study)
    if not run.complete:  # what is recorded can be shown on a smaller machine
        refuse_too_large(made, experiment.settings, experiment.at_once(), devices.memory())
    check_encodings(experiment, names)
    return run


def _encodings_in(text: str) -> list[str]:
    """The encodings that semicolons separate, or commas outside parentheses if there are none."""
    if ";" in text:
        words = text.split(";")
    else:
        words, depth = [""], 0
        for character in text:
            depth += (character == "(") - (character == ")")
            if character == "," and depth == 0:
                words.append("")
            else:
                words[-1] += character
    return [word.strip() for word in words if word.strip()]


def _rate(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(
            f"learning_rates: expected numbers with commas between, got {word!r}"
        ) from None


def task_settings(
    base: Settings, changes: dict[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of an experiment: ``base`` with changes and ``overrides``, and numbers of examples.

    If the width changes, the feed-forward width becomes 11/4 of it, as in the defaults, unless it
    is given too.

    Raises:
        ValueError: an unknown name, or one that both changes and overrides have.
    """
    scoring = {"examples", "validation", "each_length"}
    others = dict(overrides)
    known = [*Settings.model_fields, *sorted(scoring)]
    for name in others:
        if name not in known:
            raise unknown("override", name, known)
        if name in changes:
            raise ValueError(
                f"{name} is given twice: {changes[name]}, and {others[name]} in overrides"
            )
    changed = changes | {k: v for k, v in others.items() if k not in scoring}
    settings = Settings(**(base.model_dump() | changed))
    if "width" in changed and "feedforward" not in changed:
        settings = settings.model_copy(update={"feedforward": round(settings.width * 11 / 4)})
    return {"settings": settings} | {k: v for k, v in others.items() if k in scoring}


def check_encodings(experiment: Experiment, names: Iterable[str]) -> None:
    """Raise ValueError for an encoding that does not fit models of these sizes."""
    from pe.model import PEConfig

    made, sizes = experiment.make_task(), experiment.settings
    for name in names:
        PEConfig(
            vocab_size=made.vocab_size,
            hidden_size=sizes.width,
            intermediate_size=sizes.feedforward,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            max_position_embeddings=made.longest("train"),
            pe=name,
        )
