"""From a notebook's parameters to a run: one function per notebook, which everything calls.

The first code cell of ``notebooks/train.ipynb`` calls `configure`, that of ``convert.ipynb`` calls
`configure_conversion`, that of ``study.ipynb`` `configure_study`, that of ``speed.ipynb``
`configure_speed`, that of ``pretrained.ipynb`` `configure_pretrained`, that of ``tasks.ipynb``
`configure_tasks`, and so does the papermill engine before any kernel starts, so that both mean the
same folder and a mistake stops the command early.
The notebook's ``parameters`` cell has the names, types and defaults of the function, which a test
compares, and says what each means. None is the default that it names, so that 0 can be asked for.
Imports torch only where the recipe ``auto`` or an encoding needs it.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, validate_call

from pe._errors import explain, unknown
from pe.notebooks.failures import in_one_line
from pe.pretrained.record import PretrainedRun
from pe.runs import Folder, Run, root
from pe.speed.record import SpeedRun
from pe.study.plan import StudyFolder, check_run, load_plan
from pe.tasks.measure.record import DEVICE_SIZES, SIZES, Experiment, TaskRun, task_run
from pe.tasks.measure.settings import Settings

# papermill adds these names itself when it is asked to (--inject-paths).
INJECTED_BY_PAPERMILL = ("PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH")
PLANNED = "PE_RUN_DIR"
"""Environment variable of a kernel: the folder that the command named."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(value: Any) -> Any:
    """YAML reads ``1e-4`` as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _mapping(value: Any) -> Any:
    """A text that is a dictionary in JSON or YAML."""
    import yaml

    try:
        return yaml.safe_load(value) or {} if isinstance(value, str) else value
    except yaml.YAMLError:
        return value


Words = Annotated[str, BeforeValidator(lambda v: str(v) if type(v) in (int, float) else v)]
Whole = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Count = Annotated[int, BeforeValidator(_whole), Field(gt=0)]
Number = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0)]
Switch = Annotated[bool, Field(strict=False)]
Options = Annotated[dict[str, Any], BeforeValidator(_mapping)]

P = ParamSpec("P")
F = TypeVar("F", bound=Folder)


def _launcher(function: Callable[P, F]) -> Callable[P, F]:
    """Check the arguments against the annotations, and the folder against what was planned.

    In a kernel, failures are shown in one line from there on (`pe.notebooks.failures`).
    """
    names = list(inspect.signature(function).parameters)
    checked = validate_call(config=ConfigDict(strict=True, allow_inf_nan=False))(function)

    @functools.wraps(function)
    def launch(*arguments: P.args, **values: P.kwargs) -> F:
        in_one_line()
        try:
            folder = checked(*arguments, **values)
        except ValidationError as error:
            raise ValueError(_explained(error, names)) from None
        planned = os.environ.pop(PLANNED, None)
        if planned is not None and Path(planned).resolve() != folder.directory.resolve():
            raise ValueError(
                f"the command named {planned}, and the cells of this notebook lead to "
                f"{folder.directory}; give parameters on the command line (-p NAME VALUE) or in "
                "the cell tagged 'parameters'"
            )
        return folder

    return launch


def _explained(error: ValidationError, names: list[str]) -> str:
    from pe.recipes.recipe import Recipe

    lines = []
    for one, line in zip(error.errors(), explain(error, "parameter", names), strict=True):
        name = str(one["loc"][-1])
        if one["type"] == "unexpected_keyword_argument" and name in Recipe.__dataclass_fields__:
            line = (
                f"unknown parameter {name!r}: it is a field of the recipe; "
                f"pass it as -y 'overrides: {{{name}: VALUE}}'"
            )
        elif one["type"] == "string_type" and len(one["loc"]) == 1:
            line += f"; to pass it as text write -r {name} {one['input']}"
        lines.append(line)
    return "; ".join(lines)


@_launcher
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
        recipe: a name of `pe.RECIPES`; auto: as the machine allows. What is None is as it says.
        overrides: fields of the recipe that have no parameter.

    Raises:
        ValueError: an unknown encoding, recipe, corpus or field (the nearest is named), or a
            value of another type than its parameter's.
    """
    from pe.recipes.named import recipe as named_recipe

    _refuse_strange_study(study)
    fields = {"pe": pe, "pe_options": pe_options or {}, "seed": seed} | _given(
        steps=steps, corpus=corpus, context_length=context_length, batch_size=batch_size,
        learning_rate=learning_rate,
    )  # fmt: skip
    chosen = named_recipe(recipe, **(fields | _others(overrides, "train")))
    run = Run(root() / study / chosen.run_name(), recipe=chosen)
    check_run(run)
    return run


@_launcher
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

    _refuse_strange_study(study)
    if not run:
        raise ValueError("run: which run shall be converted? -p run NAME, a folder of runs/STUDY/")
    others = _others(overrides, "convert")
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
    fields |= _given(
        min_learning_rate=min_learning_rate, warmup_steps=warmup_steps, joint_norm=joint_norm,
        context_length=context_length, batch_size=batch_size, softmax_scale=softmax_scale,
    )  # fmt: skip
    chosen = Recipe.from_dict(fields | others)
    converted = Run(folder / chosen.run_name(), recipe=chosen)
    check_run(converted)
    if not converted.exists():  # a record can be shown where the weights are not at hand
        start_of(chosen, folder)
    return converted


@_launcher
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
        ValueError: an unknown study (the nearest is named), or a file that is none.
    """
    if not study:
        raise ValueError("study: which one? -p study scaffold, or the path of a YAML file")
    if workers and address:
        raise ValueError("workers: those at the address are there already; give one of the two")
    plan = load_plan(study, mini=mini, check=True)
    _refuse_strange_study(plan[0].study)
    return StudyFolder(plan, dry_run=dry_run, workers=1 if address else workers)


@_launcher
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

    words = _words(lengths)
    if not all(word.isdigit() for word in words):
        raise ValueError(f"lengths: expected whole numbers with commas between, got {lengths!r}")
    chosen = rig("plan").settings(
        recipe=recipe,
        tokens=tokens or 0,
        lengths=[int(word) for word in words],
        modes=_words(modes),
        encodings=_words(encodings),
        peers=() if peers == "none" else _words(peers) or None,
        repeats=repeats or 0,
        compiled=compiled,
        deterministic=deterministic,
    )
    if name:
        _refuse_strange_study(name)
    run = speed_run(name or default_name(chosen.recipe))
    run.settings = chosen
    return run


@_launcher
def configure_pretrained(
    model: str | None = None,
    pe: str = "yarn",
    factor: Positive | None = None,
    pe_options: Options | None = None,
    corpus: str = "stdlib",
    lengths: Words | None = None,
    windows: Count | None = None,
    target_tokens: Count = 256,
    prompts: Whole = 11,
    steps: Whole = 0,
    context_length: Count | None = None,
    batch_size: Count = 8,
    learning_rate: Positive = 1e-4,
    seed: Whole = 0,
    study: str = "pretrained",
) -> PretrainedRun:
    """Return the folder and settings of a trial of somebody else's model. Writes nothing.

    Raises:
        ValueError: the model cannot be explained (`pe.explain` says why), an unknown encoding or
            option, or lengths that are too short.
    """
    from pe.encodings.core.registry import part_classes
    from pe.pretrained.explain import explain
    from pe.pretrained.record import run_name
    from pe.runs.models import PretrainedSettings

    _refuse_strange_study(study)
    if not model:
        raise ValueError("model: which one? -p model PATH, a folder or a gguf file")
    trained = explain(model).training.tokens
    part_classes(pe)  # refuses unknown names
    options = dict(pe_options or {})
    if factor is not None and "factor" in options:
        raise ValueError("factor: it is also in pe_options; give it once")
    options |= _given(factor=factor)
    words = _words(lengths)
    if not all(word.isdigit() for word in words):
        raise ValueError(f"lengths: expected whole numbers with commas between, got {lengths!r}")
    if short := [word for word in words if int(word) <= target_tokens]:
        raise ValueError(
            f"lengths: {short[0]} leaves no context before the {target_tokens} tokens that are "
            "scored; use more, or fewer target_tokens"
        )
    path = Path(model).expanduser().resolve()
    settings = PretrainedSettings(
        model=path.stem if path.suffix == ".gguf" else path.name,
        pe=pe,
        options=options,
        corpus=corpus,
        lengths=sorted({int(word) for word in words}) or _lengths(trained, factor, target_tokens),
        windows=windows or (16 if _on_gpu() else 4),
        target_tokens=target_tokens,
        prompts=prompts,
        steps=steps,
        context_length=context_length or min(trained, 2048),
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    run = PretrainedRun(root() / study / run_name(settings))
    run.settings, run.path = settings, path
    return run


def _on_gpu() -> bool:
    from pe.devices import choose

    return choose().type == "cuda"


def _lengths(trained: int, factor: float | None, target_tokens: int) -> list[int]:
    """A quarter of the training length, and from it to what the factor reaches, by doubling.

    On a CPU at most 4,096 tokens: within the training length of most models, where the question is
    what the encoding costs short texts.
    """
    longest = int(trained * (factor or 4))
    if not _on_gpu():
        longest = min(longest, 4096)
    lengths = [longest]
    while lengths[0] // 2 > max(target_tokens, min(trained, longest) // 8):
        lengths.insert(0, lengths[0] // 2)
    return lengths


@_launcher
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
    _refuse_strange_study(study)
    if size == "auto":
        from pe import devices

        size = DEVICE_SIZES["cpu" if devices.choose().type == "cpu" else "cuda"]
    if size not in SIZES:
        raise unknown("size", size, ["auto", *SIZES])
    values = {"task": task, "task_options": task_options or {}} | SIZES[size]
    if seeds is not None:
        values["seeds"] = [_as(int, word, "seeds") for word in _words(seeds)]
    if learning_rates is not None:
        values["learning_rates"] = [
            _as(float, word, "learning_rates") for word in _words(learning_rates)
        ]
    values |= task_settings(
        values.pop("settings", Settings()),
        _given(steps=steps, width=width, layers=layers, heads=heads, batch_size=batch_size),
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


def _as(kind: type[Any], word: str, parameter: str) -> Any:
    try:
        return kind(word)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ValueError(
            f"{parameter}: expected {what} with commas between, got {word!r}"
        ) from None


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _refuse_strange_study(study: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", study):
        raise ValueError(
            f"study names a folder: use letters, digits, '.', '_' and '-', not {study!r}"
        )


def _others(overrides: Mapping[str, Any] | None, kind: str) -> dict[str, Any]:
    """Fields of the recipe that have no parameter."""
    for name in overrides or {}:
        if name in parameters(kind):
            raise ValueError(f"overrides: {name} is a parameter of this notebook; give it there")
    return dict(overrides or {})


# What a notebook says it is (its metadata: {"pe": {"run": "train"}}) and who names its run.
LAUNCHERS: dict[str, Callable[..., Folder]] = {
    "train": configure, "convert": configure_conversion, "study": configure_study,
    "speed": configure_speed, "pretrained": configure_pretrained, "tasks": configure_tasks,
}  # fmt: skip


def launch(kind: str, values: Mapping[str, Any], also: Iterable[str] = ()) -> Folder:
    """The folder that a notebook's parameters name, as papermill has them.

    Args:
        kind: the notebook's, a key of `LAUNCHERS`.
        also: other names that its ``parameters`` cell defines; they are its own business.

    Raises:
        ValueError: names what is not right.
    """
    others = {*also, *INJECTED_BY_PAPERMILL} - set(parameters(kind))
    return LAUNCHERS[kind](**{k: v for k, v in values.items() if k not in others})


def parameters(kind: str = "train") -> Mapping[str, inspect.Parameter]:
    """Parameters of a kind of notebook: names, types and defaults."""
    return inspect.signature(LAUNCHERS[kind]).parameters
