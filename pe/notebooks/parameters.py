"""From a notebook's parameters to the folder of its run: one function per kind of notebook.

`LAUNCHERS` has the function of each notebook. The notebook's first code cell calls it, and so does
the papermill engine before it starts a kernel. So both use the same folder, and a mistake stops the
command early.

The notebook's ``parameters`` cell repeats the names, types and defaults of the function, and says
what each parameter means. None stands for the default that the cell names, so that 0 is a value.
torch is imported only if the recipe ``auto`` or an encoding needs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pe._errors import unknown
from pe.pretrained.record import configure_pretrained
from pe.recipes.named import recipe as named_recipe
from pe.recipes.named import spaced
from pe.recipes.recipe import Recipe
from pe.runs import Folder, Run, root
from pe.runs.parameters import (
    Count,
    Number,
    Options,
    Positive,
    Switch,
    Whole,
    Words,
    launcher,
    other_fields,
    refuse_strange_study,
    whole_numbers_in,
    without_none,
    words_in,
)
from pe.speed.record import SpeedRun
from pe.study.plan import load_plan
from pe.study.planned import StudyFolder
from pe.tasks.measure.cost import refuse_too_large
from pe.tasks.measure.record import DEVICE_SIZES, SIZES, Experiment, Settings, TaskRun, task_run
from pe.training.check import check_run

RECIPE_FIELDS = tuple(name for name in Recipe.__dataclass_fields__ if name != "name")
SCORING = ("each_length", "examples", "validation")
"""The numbers of examples: fields of an experiment that are not among its settings."""


@launcher(overrides=RECIPE_FIELDS)
def configure(
    pe: str = "rope",
    recipe: str = "auto",
    study: str = "local",
    seed: Whole = 0,
    steps: Whole | None = None,
    corpus: str | None = None,
    context_length: Count | None = None,
    batch_size: Count | None = None,
    learning_rate: Positive | None = None,
    pe_options: Options | None = None,
    overrides: Options | None = None,
) -> Run:
    """Return the run that the parameters of train.ipynb describe. Writes nothing.

    Its directory is ``runs.root() / study / recipe.run_name()``; its recipe is set.

    Args:
        recipe: a name of `pe.RECIPES`; auto: ``demo`` on a CPU, ``tiny`` on a CUDA GPU. An
            argument that is None has the value of the recipe.
        overrides: fields of the recipe that have no parameter.

    Raises:
        ValueError: an unknown encoding, recipe, corpus or field (the nearest is named), or a
            value of another type than its parameter's.
    """
    refuse_strange_study(study)
    fields = {"pe": pe, "pe_options": pe_options or {}, "seed": seed} | without_none(
        steps=steps, corpus=corpus, context_length=context_length, batch_size=batch_size,
        learning_rate=learning_rate,
    )  # fmt: skip
    fields |= other_fields(overrides, inspect.signature(configure).parameters)
    chosen = named_recipe(recipe, **fields)
    run = Run(root() / study / chosen.run_name(), recipe=chosen)
    check_run(run)
    return run


@launcher(overrides=RECIPE_FIELDS)
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
    """Return the run that continues from another run with a new encoding. Writes nothing.

    An argument that is None has the value of the run it starts from, and so have text, sizes, seed
    and evaluation. There are two exceptions. The peak of the learning rate is a third of that
    run's, and the rate falls to a tenth of the peak after a warmup of 3%. The parameters of another
    encoding learn at the rate of the model.

    Args:
        run: the run to start from: its name in the study, or STUDY/NAME.
        step: the step whose weights are taken; None: the last one.
        steps: steps to train; None: as many as that run had left.

    Raises:
        ValueError: as `configure`; or the encoding cannot follow the old one.
        RunError: there is no such run, or it has no weights of that step.
    """
    from pe.encodings.core.change import changed_options
    from pe.training.start import parent_of, start_of

    refuse_strange_study(study)
    if not run:
        raise ValueError("run: name the run to convert: -p run NAME, a folder of runs/STUDY/")
    others = other_fields(overrides, inspect.signature(configure_conversion).parameters)
    folder = root() / study
    parent, pe = parent_of(run, folder), spaced(pe)
    old = parent.recipe
    last = old.steps if step is None else step
    more = old.steps - last if steps is None else steps
    if more <= 0:
        raise ValueError(
            f"steps: {parent.name} has no steps left after step {last}; say how many to train, as "
            "in -p steps 100"
        )
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
        "encoding_rate": old.encoding_rate if pe == old.pe else 1.0,
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
    if not converted.exists():  # a record can be shown without the weights
        start_of(chosen, folder)
    return converted


@launcher()
def configure_study(
    study: str | None = None,
    mini: Switch = False,
    dry_run: Switch = False,
    address: str | None = None,
    workers: Count | None = None,
    retries: Whole = 1,
) -> StudyFolder:
    """Return the folder and the plan of the study that these parameters describe. Writes nothing.

    Raises:
        ValueError: an unknown study (the nearest is named), or a file that does not describe one.
    """
    if not study:
        raise ValueError("study: name one: -p study scaffold, or the path of a YAML file")
    if workers and address:
        raise ValueError(
            f"workers: {workers} has no effect with an address, whose workers run already; leave "
            "one of the two out"
        )
    plan = load_plan(study, mini=mini, check=True)
    refuse_strange_study(plan[0].study)
    return StudyFolder(plan, dry_run=dry_run, workers=1 if address else workers)


@launcher()
def configure_speed(
    name: str | None = None,
    recipe: str = "auto",
    encodings: str | None = None,
    lengths: Words | None = None,
    modes: str | None = None,
    peers: str | None = None,
    tokens: Count | None = None,
    repeats: Count | None = None,
    minutes: Positive | None = None,
    compiled: Switch | None = None,
    deterministic: Switch = False,
) -> SpeedRun:
    """Return the folder and settings of the speed run that these parameters describe.

    Writes nothing.

    Raises:
        ValueError: an unknown name (the nearest is named), or lengths that do not fit the tokens.
    """
    from pe.speed import rig
    from pe.speed.record import default_name, speed_run

    chosen = rig("plan").settings(
        recipe=recipe,
        tokens=tokens or 0,
        lengths=whole_numbers_in(lengths, "lengths"),
        modes=words_in(modes),
        encodings=words_in(encodings),
        peers=() if peers == "none" else words_in(peers) or None,
        repeats=repeats or 0,
        compiled=compiled,
        deterministic=deterministic,
    )
    if name:
        refuse_strange_study(name, "name")
    run = speed_run(name or default_name(chosen.recipe))
    run.settings = chosen
    return run


@launcher(overrides=(*Settings.model_fields, *SCORING))
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
        raise ValueError("pe: expected names of encodings with commas, such as rope,alibi")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"pe: expected each encoding once, got {', '.join(twice)} more than once")
    run = task_run(experiment, names, study)
    if not run.complete:  # a smaller machine can show what is recorded
        refuse_too_large(made, experiment.settings, experiment.at_once(), devices.memory())
    for name in names:
        experiment.check(name)
    return run


def _encodings_in(text: str) -> list[str]:
    """Return the encodings between semicolons, or else between commas outside parentheses."""
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
    return [spaced(word) for word in words if word.strip()]


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
    """Return the fields of an experiment: ``base`` with changes, ``overrides`` and example counts.

    If the width changes, the feed-forward width becomes 11/4 of it, as in the defaults, unless it
    is given too.

    Raises:
        ValueError: an unknown name, or one that both changes and overrides have.
    """
    others = dict(overrides)
    known = [*Settings.model_fields, *SCORING]
    for name in others:
        if name not in known:
            raise unknown("override", name, known)
        if name in changes:
            raise ValueError(
                f"{name} is given twice: {changes[name]}, and {others[name]} in overrides"
            )
    changed = changes | {k: v for k, v in others.items() if k not in SCORING}
    settings = Settings(**(base.model_dump() | changed))
    if "width" in changed and "feedforward" not in changed:
        settings = settings.model_copy(update={"feedforward": round(settings.width * 11 / 4)})
    return {"settings": settings} | {k: v for k, v in others.items() if k in SCORING}


# papermill adds these names itself when it is asked to (--inject-paths).
INJECTED_BY_PAPERMILL = ("PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH")

# What a notebook says it is (its metadata: {"pe": {"run": "train"}}) and who names its run.
LAUNCHERS: dict[str, Callable[..., Folder]] = {
    "train": configure, "convert": configure_conversion, "study": configure_study,
    "speed": configure_speed, "pretrained": configure_pretrained, "tasks": configure_tasks,
}  # fmt: skip


def launch(kind: str, values: Mapping[str, Any], also: Iterable[str] = ()) -> Folder:
    """Return the folder that a notebook's parameters name, as papermill has them.

    Args:
        kind: the notebook's, a key of `LAUNCHERS`.
        also: other names that its ``parameters`` cell defines, which are not passed on.

    Raises:
        ValueError: names what is not right.
    """
    others = {*also, *INJECTED_BY_PAPERMILL} - set(parameters(kind))
    return LAUNCHERS[kind](**{k: v for k, v in values.items() if k not in others})


def parameters(kind: str = "train") -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a kind of notebook: names, types and defaults."""
    return inspect.signature(LAUNCHERS[kind]).parameters
