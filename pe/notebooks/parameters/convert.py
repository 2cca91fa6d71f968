"""The run that convert.ipynb trains: one that goes on from another."""

from __future__ import annotations

from inspect import signature

from pe.notebooks.parameters.common import (
    Count,
    Number,
    Options,
    Positive,
    Whole,
    launcher,
    other_fields,
    refuse_strange_study,
    without_none,
)
from pe.runs import Run, root
from pe.training.check import check_run


@launcher
def configure_conversion(
    run: str | None = None,
    step: Count | None = None,
    pe: str = "nope",
    study: str = "local",
    steps: Count | None = None,
    learning_rate: Positive | None = None,
    min_learning_rate: Number | None = None,
    warmup_steps: Whole | None = None,
    context_length: Count | None = None,
    batch_size: Count | None = None,
    joint_norm: str | None = None,
    softmax_scale: Number | None = None,
    pe_options: Options | None = None,
    overrides: Options | None = None,
) -> Run:
    """Return the run that goes on from another one under a new encoding. Writes nothing.

    What is None is as in the run it starts from, as are text, sizes, seed and evaluation; but the
    peak of the learning rate is a third of that run's and falls to a tenth, after a warmup of 3%.

    Args:
        run: its name in the study, or STUDY/NAME. step: whose weights are taken; None: its last.
        steps: to train on; None: as many as that run had left.

    Raises:
        ValueError: as `configure`; or the encoding cannot follow the old one.
        RunError: there is no such run, or it has no weights of that step.
    """
    from pe.encodings.core.change import changed_options
    from pe.recipes.recipe import Recipe
    from pe.training.start import parent_of, start_of

    refuse_strange_study(study)
    if not run:
        raise ValueError("run: which run shall be converted? -p run NAME, a folder of runs/STUDY/")
    others = other_fields(overrides, signature(configure_conversion).parameters)
    folder = root() / study
    parent = parent_of(run, folder)
    old = parent.recipe
    last = old.steps if step is None else step
    more = old.steps - last if steps is None else steps
    if more <= 0:
        raise ValueError(f"steps: how many? {parent.name} is at its end after step {last}")
    peak = float(f"{old.learning_rate / 3:.6g}") if learning_rate is None else learning_rate
    stretched = context_length not in (None, old.context_length)
    trained = old.context_length if stretched else None
    if parent.directory.parent == folder:
        start = parent.name
    else:
        below = parent.directory.parent.parent == root()
        start = f"{parent.study}/{parent.name}" if below else run
    fields = old.to_dict() | {
        "pe": pe,
        "pe_options": changed_options(old.pe, old.pe_options, pe, pe_options or {}, trained),
        "start_from": start,
        "start_step": last,
        "start_state": "weights",
        "tune": "all",
        "steps": more,
        "learning_rate": peak,
        "min_learning_rate": float(f"{peak / 10:.6g}"),
        "warmup_steps": round(0.03 * more),
        "schedule": "cosine",
        "decay_steps": 0,
        "keep_steps": [],
        "keep_states": [],
    }
    fields |= without_none(
        min_learning_rate=min_learning_rate, warmup_steps=warmup_steps, joint_norm=joint_norm,
        context_length=context_length, batch_size=batch_size, softmax_scale=softmax_scale,
    )  # fmt: skip
    chosen = Recipe.from_dict(fields | others)
    converted = Run(folder / chosen.run_name(), recipe=chosen)
    check_run(converted)
    if not converted.exists():  # a record can be shown where the weights are not at hand
        start_of(chosen, folder)
    return converted
