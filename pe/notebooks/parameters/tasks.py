"""The experiment on a synthetic task that tasks.ipynb makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pe._errors import unknown
from pe.notebooks.parameters.common import (
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
from pe.tasks.measure.record import DEVICE_SIZES, SIZES, Experiment, TaskRun, task_run
from pe.tasks.measure.settings import Settings


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
        pe: encodings, with commas or, where a schedule of layers has commas, with semicolons.
        size: a name of `pe.tasks.measure.record.SIZES`; auto: as the machine allows.
        seeds: whole numbers with commas. learning_rates: numbers with commas.
        overrides: other settings (`pe.tasks.measure.settings.Settings`) or sizes of the scoring.

    Raises:
        ValueError: an unknown task, encoding, size or option (the nearest is named), or sizes that
            do not fit each other.
    """
    refuse_strange_study(study)
    if size == "auto":
        from pe import devices

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
    experiment.make_task()
    names = [name.strip() for name in pe.split(";" if ";" in pe else ",") if name.strip()]
    if not names:
        raise ValueError("pe: which encodings? -p pe rope,alibi")
    if len(set(names)) < len(names):
        raise ValueError(f"pe: each encoding once, got {pe}")
    check_encodings(experiment, names)
    return task_run(experiment, names, study)


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
    """Settings and sizes of the scoring: ``base``, then changes, then ``overrides`` by name.

    Without a feedforward width of their own, models have 11/4 of their width, as the defaults do.

    Raises:
        ValueError: a name that is neither.
    """
    scoring = {"examples", "validation", "each_length"}
    others = dict(overrides)
    known = [*Settings.model_fields, *sorted(scoring)]
    for name in others:
        if name not in known:
            raise unknown("override", name, known)
    changed = changes | {k: v for k, v in others.items() if k not in scoring}
    if "width" in changed:
        changed = {"feedforward": round(changed["width"] * 11 / 4)} | changed
    settings = Settings(**(base.model_dump() | changed))
    return {"settings": settings} | {k: v for k, v in others.items() if k in scoring}


def check_encodings(experiment: Experiment, names: Iterable[str]) -> None:
    """Raise ValueError for an encoding that models of these sizes cannot have."""
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
