"""From a notebook's parameters to a run: one function per notebook, used by all who name its run.

The first code cell of ``notebooks/train.ipynb`` calls `configure`, that of ``convert.ipynb`` calls
`configure_conversion`, that of ``study.ipynb`` `configure_study`, that of ``speed.ipynb``
`configure_speed`, and so does the papermill engine before any kernel starts, so that both mean the
same folder and a mistake stops the command early.
The signature of the function is the only list of parameters: names, types, bounds, defaults and
help of the notebook's ``parameters`` cell are rendered from it (`parameters_cell`), and a test
compares them. None means the default that the help names, so that 0 can be asked for.
Imports torch only where the recipe ``auto`` or an encoding needs it.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, ParamSpec, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, validate_call

from pe._errors import explain
from pe.runs import Folder, Run, root
from pe.speed.record import SpeedRun
from pe.study.plan import StudyFolder, load_plan

if TYPE_CHECKING:
    from pe.recipes.recipe import Recipe

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


def _switch(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"expected True or False, 1 or 0, got {value!r}")
    return bool(value)


def _mapping(value: Any) -> Any:
    """A text that is a dictionary in JSON or YAML."""
    import yaml

    try:
        return yaml.safe_load(value) or {} if isinstance(value, str) else value
    except yaml.YAMLError:
        return value


Whole = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Count = Annotated[int, BeforeValidator(_whole), Field(gt=0)]
Number = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0)]
Switch = Annotated[bool, BeforeValidator(_switch)]
Options = Annotated[dict[str, Any], BeforeValidator(_mapping)]


class Parameter(NamedTuple):
    """One parameter of a notebook."""

    name: str
    type: type
    default: Any
    help: str


P = ParamSpec("P")
F = TypeVar("F", bound=Folder)


def _launcher(function: Callable[P, F]) -> Callable[P, F]:
    """Check the arguments against the annotations, and the folder against what was planned."""
    names = list(inspect.signature(function).parameters)
    checked = validate_call(config=ConfigDict(strict=True, allow_inf_nan=False))(function)

    @functools.wraps(function)
    def launch(*arguments: P.args, **values: P.kwargs) -> F:
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
    pe: Annotated[str, "positional encoding: nope, rope, yarn, pope ... or a sum, rope+alibi"]
    = "rope",
    recipe: Annotated[str, "demo, tiny, small, medium, large, paper (auto: as the machine allows)"]
    = "auto",
    study: Annotated[str, "folder below runs/ that holds the record"] = "local",
    seed: Annotated[Whole, "draws the initial weights and the order of the text"] = 0,
    steps: Annotated[Count | None, "optimizer steps (None: as the recipe says)"] = None,
    corpus: Annotated[
        str | None, "a corpus by name, or a path of text files (None: as the recipe says)"
    ] = None,
    context_length: Annotated[
        Count | None, "tokens in a training window (None: as the recipe says)"
    ] = None,
    batch_size: Annotated[
        Count | None, "windows in an optimizer step (None: as the recipe says)"
    ] = None,
    learning_rate: Annotated[
        Positive | None, "peak learning rate (None: as the recipe says)"
    ] = None,
    pe_options: Annotated[Options | None, 'options of the encoding: {"factor": 8.0}'] = None,
    overrides: Annotated[Options | None, 'any other recipe field: {"qk_norm": True}'] = None,
) -> Run:  # fmt: skip
    """Return the run that these parameters describe. Writes nothing.

    Its directory is ``runs.root() / study / recipe.run_name()``; its recipe is set.

    Raises:
        ValueError: an unknown encoding, recipe, corpus or field (the nearest is named), or a
            value of another type than its parameter's.
    """
    from pe.data.corpora import open_corpus
    from pe.data.tokenizer import plan_tokenizer
    from pe.recipes.named import recipe as named_recipe
    from pe.training.start import check_source

    _refuse_strange_study(study)
    fields = {"pe": pe, "pe_options": pe_options or {}, "seed": seed}
    optional = {
        "steps": steps, "corpus": corpus, "context_length": context_length,
        "batch_size": batch_size, "learning_rate": learning_rate,
    }  # fmt: skip
    fields |= {name: value for name, value in optional.items() if value is not None}
    chosen = named_recipe(recipe, **(fields | _others(overrides, "train")))
    _check_encoding(chosen)
    run = Run(root() / study / chosen.run_name(), recipe=chosen)
    if not run.exists():  # a record can be shown where its corpus is not at hand
        open_corpus(chosen.corpus)
        if chosen.tokenizer == "bpe":
            plan_tokenizer(chosen.tokenizer, chosen.vocab_size)
    else:
        check_source(run)
    return run


@_launcher
def configure_conversion(
    run: Annotated[
        str | None, "the run to start from: its name in the study, or STUDY/NAME"
    ] = None,
    step: Annotated[
        Count | None, "the step of that run whose weights are taken (None: its last)"
    ] = None,
    pe: Annotated[str, "the new encoding: nope drops the old one, yarn extends RoPE ..."] = "nope",
    study: Annotated[str, "folder below runs/ that holds the record"] = "local",
    steps: Annotated[
        Count | None, "optimizer steps to train on (None: as many as that run had left)"
    ] = None,
    learning_rate: Annotated[
        Positive | None, "peak learning rate (None: a third of that run's)"
    ] = None,
    min_learning_rate: Annotated[
        Number | None, "at the end of the cosine (None: a tenth of the peak)"
    ] = None,
    warmup_steps: Annotated[
        Whole | None, "steps to reach the peak (None: 3% of the steps)"
    ] = None,
    context_length: Annotated[Count | None, "tokens in a training window (None: as that run)"]
    = None,
    batch_size: Annotated[Count | None, "windows in an optimizer step (None: as that run)"] = None,
    joint_norm: Annotated[
        str | None, "RMSNorm over all heads of q, k or qk (None: as that run)"
    ] = None,
    softmax_scale: Annotated[
        Number | None, "factor of the logits, 0 for 1/sqrt(head_dim) (None: as that run)"
    ] = None,
    pe_options: Annotated[Options | None, 'options of the encoding: {"factor": 4.0}'] = None,
    overrides: Annotated[Options | None, 'any other recipe field: {"weight_decay": 0.0}'] = None,
) -> Run:  # fmt: skip
    """Return the run that goes on from another one under a new encoding. Writes nothing.

    Everything that is not given is as in the run it starts from: text, sizes, seed, evaluation.

    Raises:
        ValueError: as `configure`; or the encoding cannot follow the old one.
        RunError: there is no such run, or it has no weights of that step.
    """
    from pe.encodings.core.change import changed_options
    from pe.recipes.recipe import Recipe
    from pe.training.start import check_source, parent_of, start_of

    def kept(value: Any, otherwise: Any) -> Any:
        return otherwise if value is None else value

    _refuse_strange_study(study)
    if not run:
        raise ValueError("run: which run shall be converted? -p run NAME, a folder of runs/STUDY/")
    others = _others(overrides, "convert")
    folder = root() / study
    parent = parent_of(run, folder)
    old = parent.recipe
    last = kept(step, old.steps)
    more = kept(steps, old.steps - last)
    if more <= 0:
        raise ValueError(f"steps: how many? {parent.name} is at its end after step {last}")
    peak = kept(learning_rate, float(f"{old.learning_rate / 3:.6g}"))
    length = kept(context_length, old.context_length)
    trained = None if length == old.context_length else old.context_length
    if parent.directory.parent == folder:
        start = parent.name
    else:
        below = parent.directory.parent.parent == root()
        start = f"{parent.study}/{parent.name}" if below else run
    fields = old.to_dict() | {
        "pe": pe,
        "pe_options": changed_options(old.pe, old.pe_options, pe, pe_options or {}, trained),
        "joint_norm": kept(joint_norm, old.joint_norm),
        "softmax_scale": kept(softmax_scale, old.softmax_scale),
        "start_from": start,
        "start_step": last,
        "start_state": "weights",
        "steps": more,
        "learning_rate": peak,
        "min_learning_rate": kept(min_learning_rate, float(f"{peak / 10:.6g}")),
        "warmup_steps": kept(warmup_steps, round(0.03 * more)),
        "schedule": "cosine",
        "decay_steps": 0,
        "context_length": length,
        "batch_size": kept(batch_size, old.batch_size),
        "keep_steps": [],
        "keep_states": [],
    }
    chosen = Recipe.from_dict(fields | others)
    _check_encoding(chosen)
    found = Run(folder / chosen.run_name(), recipe=chosen)
    if not found.exists():  # a record can be shown where the weights are not at hand
        start_of(chosen, folder)
    else:
        check_source(found)
    return found


@_launcher
def configure_study(
    study: Annotated[
        str | None, "a study by name (studies/NAME.yaml), or the path of a YAML file"
    ] = None,
    mini: Annotated[Switch, "the study in miniature, for a CPU (1 or 0)"] = False,
    dry_run: Annotated[Switch, "only list the runs and what they would take (1 or 0)"] = False,
    address: Annotated[
        str | None, "a Dask scheduler or a scheduler file (None: workers here)"
    ] = None,
    workers: Annotated[Count | None, "workers to start here (None: one per GPU)"] = None,
    retries: Annotated[Whole, "how often a run that fails is tried again"] = 1,
) -> StudyFolder:  # fmt: skip
    """Return the folder and the plan of the study that these parameters describe. Writes nothing.

    Raises:
        ValueError: an unknown study (the nearest is named), or a file that is none.
    """
    if not study:
        raise ValueError("study: which one? -p study scaffold, or the path of a YAML file")
    if workers and address:
        raise ValueError("workers: those at the address are there already; give one of the two")
    plan = load_plan(study, mini=mini)
    _refuse_strange_study(plan[0].study)
    return StudyFolder(plan, dry_run=dry_run, workers=1 if address else workers)


@_launcher
def configure_speed(
    name: Annotated[
        str | None, "folder below runs/speed/ (None: after the machine and the recipe)"
    ] = None,
    recipe: Annotated[str, "whose sizes the models have (auto: as the machine allows)"] = "auto",
    encodings: Annotated[
        str | None, "encodings, with commas: rope,fire,rope+alibi (None: all)"
    ] = None,
    lengths: Annotated[
        str | None, "tokens in a window, with commas (None: as the machine allows)"
    ] = None,
    modes: Annotated[str | None, "of train,prefill,small (None: all three)"] = None,
    peers: Annotated[
        str | None, "other libraries: transformers/rope,... or none (None: those installed)"
    ] = None,
    tokens: Annotated[Count | None, "tokens in a step (None: as the machine allows)"] = None,
    repeats: Annotated[
        Count | None, "how often each cell is timed (None: as the machine allows)"
    ] = None,
    minutes: Annotated[Positive | None, "nothing is begun after so many (None: no limit)"] = None,
) -> SpeedRun:  # fmt: skip
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
    )
    if name:
        _refuse_strange_study(name)
    run = speed_run(name or default_name(chosen.recipe))
    run.settings = chosen
    return run


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _refuse_strange_study(study: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", study):
        raise ValueError(
            f"study names a folder: use letters, digits, '.', '_' and '-', not {study!r}"
        )


def _others(overrides: Mapping[str, Any] | None, kind: str) -> dict[str, Any]:
    """Fields of the recipe that have no parameter."""
    for name in overrides or {}:
        if name in parameters(kind):
            raise ValueError(f"overrides: {name} has a parameter of its own; give it there")
    return dict(overrides or {})


def _check_encoding(recipe: Recipe) -> None:
    from pe.encodings import check

    check(
        recipe.pe,
        recipe.pe_options,
        original_length=recipe.context_length,
        head_dim=recipe.head_dim,
        num_heads=recipe.num_attention_heads,
        num_kv_heads=recipe.num_key_value_heads,
        hidden_size=recipe.hidden_size,
    )


# What a notebook says it is (its metadata: {"pe": {"run": "train"}}) and who names its run.
LAUNCHERS: dict[str, Callable[..., Folder]] = {
    "train": configure, "convert": configure_conversion, "study": configure_study,
    "speed": configure_speed,
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


@functools.cache
def parameters(kind: str = "train") -> Mapping[str, Parameter]:
    """Parameters of a kind of notebook, read from the signature of its launcher."""
    function = LAUNCHERS[kind]
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for name, argument in inspect.signature(function).parameters.items():
        help_text = next(m for m in hints[name].__metadata__ if isinstance(m, str))
        found[name] = Parameter(name, _plain(hints[name]), argument.default, help_text)
    return found


def _plain(hint: Any) -> type:
    """``int`` of ``Annotated[int, ...] | None``."""
    while typing.get_origin(hint) not in (None, dict):
        hint = typing.get_args(hint)[0]
    plain: type = typing.get_origin(hint) or hint
    return plain


def parameters_cell(kind: str = "train") -> str:
    """Source of the notebook's ``parameters`` cell: one ``name: type = default  # help`` each."""
    lines = []
    for p in parameters(kind).values():
        default = f'"{p.default}"' if isinstance(p.default, str) else repr(p.default)
        lines.append(f"{p.name}: {p.type.__name__} = {default}  # {p.help}")
    return "\n".join(lines)
