"""From a notebook's parameters to a run: one function a notebook, used by all who name its run.

The first code cell of ``notebooks/train.ipynb`` calls `configure`, that of ``convert.ipynb`` calls
`configure_conversion`, that of ``study.ipynb`` `configure_study`, that of ``speed.ipynb``
`configure_speed`, and so does the papermill engine before any kernel starts, so that both mean the
same folder and a mistake stops the command early.
The signature of the function is the only list of parameters: names, types, defaults and help of the
notebook's ``parameters`` cell are rendered from it (`parameters_cell`), and a test compares them.
Imports torch only where the recipe ``auto`` or an encoding needs it.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pe._errors import unknown
from pe.runs import Run, root
from pe.speed.record import SpeedRun
from pe.study.plan import StudyFolder, load_plan

if TYPE_CHECKING:
    from pe.training.recipe import Recipe

# papermill adds these names itself when it is asked to (--inject-paths).
INJECTED_BY_PAPERMILL = ("PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH")

_WORDS: dict[type, str] = {
    str: "text",
    int: "a whole number of 0 or more",
    float: "a number of 0 or more",
    bool: "True or False, 1 or 0",
    dict: "a dictionary",
}


class Parameter(NamedTuple):
    """One parameter of a notebook."""

    name: str
    type: type
    default: Any
    help: str


def configure(
    pe: Annotated[str, "positional encoding: nope, rope, yarn, pope ... or a sum, rope+alibi"]
    = "rope",
    recipe: Annotated[str, "demo, tiny, small, medium, large, paper (auto: as the machine allows)"]
    = "auto",
    study: Annotated[str, "folder below runs/ that holds the record"] = "local",
    seed: Annotated[int, "draws the initial weights and the order of the text"] = 0,
    steps: Annotated[int, "optimizer steps (0: as the recipe says)"] = 0,
    corpus: Annotated[str, "a corpus by name, or a path of text files (empty: as the recipe says)"]
    = "",
    context_length: Annotated[int, "tokens in a training window (0: as the recipe says)"] = 0,
    batch_size: Annotated[int, "windows in an optimizer step (0: as the recipe says)"] = 0,
    learning_rate: Annotated[float, "peak learning rate (0: as the recipe says)"] = 0.0,
    pe_options: Annotated[dict[str, Any] | None, 'options of the encoding: {"factor": 8.0}'] = None,
    overrides: Annotated[dict[str, Any] | None, 'any other recipe field: {"qk_norm": True}'] = None,
) -> Run:  # fmt: skip
    """Return the run that these parameters describe. Writes nothing.

    Its directory is ``runs.root() / study / recipe.run_name()``; its recipe is set.

    Raises:
        ValueError: an unknown encoding, recipe, corpus or field (the nearest is named), or a
            value of another type than its parameter's.
    """
    given_values = dict(locals())
    from pe.data.corpora import open_corpus
    from pe.data.tokenizer import plan_tokenizer
    from pe.training.recipes import recipe as named_recipe

    values = check_parameters(given_values)
    _refuse_strange_study(values["study"])
    fields = {k: values[k] for k in ("pe", "pe_options", "seed")}
    given = ("steps", "corpus", "context_length", "batch_size", "learning_rate")
    fields |= {k: values[k] for k in given if values[k]}
    _refuse_own(values["overrides"], parameters())
    base = named_recipe(values["recipe"])
    chosen = named_recipe(base.name, **(fields | values["overrides"]))
    _check_encoding(chosen)
    run = Run(root() / values["study"] / chosen.run_name(), recipe=chosen)
    if not run.exists():  # a record can be shown where its corpus is not at hand
        open_corpus(chosen.corpus)
        if chosen.tokenizer == "bpe":
            plan_tokenizer(chosen.tokenizer, chosen.vocab_size)
    return run


def configure_conversion(
    run: Annotated[str, "the run to start from: its name in the study, or STUDY/NAME"] = "",
    step: Annotated[int, "the step of that run whose weights are taken (0: its last)"] = 0,
    pe: Annotated[str, "the new encoding: nope drops the old one, yarn extends RoPE ..."] = "nope",
    study: Annotated[str, "folder below runs/ that holds the record"] = "local",
    steps: Annotated[int, "optimizer steps to train on (0: as many as that run had left)"] = 0,
    learning_rate: Annotated[float, "peak learning rate (0: a third of that run's)"] = 0.0,
    min_learning_rate: Annotated[float, "at the end of the cosine (0: a tenth of the peak)"] = 0.0,
    warmup_steps: Annotated[int, "steps to reach the peak (0: 3% of the steps)"] = 0,
    context_length: Annotated[int, "tokens in a training window (0: as that run)"] = 0,
    batch_size: Annotated[int, "windows in an optimizer step (0: as that run)"] = 0,
    joint_norm: Annotated[str, "RMSNorm over all heads of q, k or qk (empty: none new)"] = "",
    softmax_scale: Annotated[float, "factor of the logits (0: 1/sqrt(head_dim))"] = 0.0,
    pe_options: Annotated[dict[str, Any] | None, 'options of the encoding: {"factor": 4.0}'] = None,
    overrides: Annotated[dict[str, Any] | None, 'any other recipe field: {"weight_decay": 0.0}']
    = None,
) -> Run:  # fmt: skip
    """Return the run that goes on from another one under a new encoding. Writes nothing.

    Everything that is not given is as in the run it starts from: text, sizes, seed, evaluation.

    Raises:
        ValueError: as `configure`; or the encoding cannot follow the old one.
        RunError: there is no such run, or it has no weights of that step.
    """
    values = check_parameters(dict(locals()), kind="convert")
    from pe.encodings.core.change import changed_options
    from pe.training.recipe import Recipe
    from pe.training.start import parent_of, start_of

    _refuse_strange_study(values["study"])
    if not values["run"]:
        raise ValueError("run: which run shall be converted? -p run NAME, a folder of runs/STUDY/")
    _refuse_own(values["overrides"], parameters("convert"))
    folder = root() / values["study"]
    parent = parent_of(values["run"], folder)
    old = parent.recipe
    last = old.steps if values["step"] == 0 else values["step"]
    more = values["steps"] or old.steps - last
    if more <= 0:
        raise ValueError(f"steps: how many? {parent.name} is at its end after step {last}")
    peak = values["learning_rate"] or float(f"{old.learning_rate / 3:.6g}")
    length = values["context_length"] or old.context_length
    trained = None if length == old.context_length else old.context_length
    if parent.directory.parent == folder:
        start = parent.name
    else:
        below = parent.directory.parent.parent == root()
        start = f"{parent.study}/{parent.name}" if below else values["run"]
    fields = old.to_dict() | {
        "pe": values["pe"],
        "pe_options": changed_options(
            old.pe, old.pe_options, values["pe"], values["pe_options"], trained
        ),
        "joint_norm": values["joint_norm"] or old.joint_norm,
        "softmax_scale": values["softmax_scale"] or old.softmax_scale,
        "start_from": start,
        "start_step": last,
        "start_state": "weights",
        "steps": more,
        "learning_rate": peak,
        "min_learning_rate": values["min_learning_rate"] or float(f"{peak / 10:.6g}"),
        "warmup_steps": values["warmup_steps"] or round(0.03 * more),
        "schedule": "cosine",
        "decay_steps": 0,
        "context_length": length,
        "batch_size": values["batch_size"] or old.batch_size,
        "keep_steps": [],
        "keep_states": [],
    }
    chosen = Recipe.from_dict(fields | values["overrides"])
    _check_encoding(chosen)
    found = Run(folder / chosen.run_name(), recipe=chosen)
    if not found.exists():  # a record can be shown where the weights are not at hand
        start_of(chosen, folder)
    return found


def configure_study(
    study: Annotated[str, "a study by name (studies/NAME.yaml), or the path of a YAML file"] = "",
    mini: Annotated[bool, "the study in miniature, for a CPU (1 or 0)"] = False,
    dry_run: Annotated[bool, "only list the runs and what they would take (1 or 0)"] = False,
    address: Annotated[str, "a Dask scheduler or a scheduler file (empty: workers here)"] = "",
    workers: Annotated[int, "workers to start here (0: one a GPU)"] = 0,
    retries: Annotated[int, "how often a run that fails is tried again"] = 1,
) -> StudyFolder:  # fmt: skip
    """Return the folder and the plan of the study that these parameters describe. Writes nothing.

    Raises:
        ValueError: an unknown study (the nearest is named), or a file that is none.
    """
    values = check_parameters(dict(locals()), kind="study")
    if not values["study"]:
        raise ValueError("study: which one? -p study scaffold, or the path of a YAML file")
    if values["workers"] and values["address"]:
        raise ValueError("workers: those at the address are there already; give one of the two")
    plan = load_plan(values["study"], mini=values["mini"])
    _refuse_strange_study(plan[0].study)
    count = 1 if values["address"] else values["workers"] or None
    return StudyFolder(plan, dry_run=values["dry_run"], workers=count)


def configure_speed(
    name: Annotated[str, "folder below runs/speed/ (empty: after the machine and the recipe)"] = "",
    recipe: Annotated[str, "whose sizes the models have (auto: as the machine allows)"] = "auto",
    encodings: Annotated[str, "encodings, with commas: rope,fire,rope+alibi (empty: all)"] = "",
    lengths: Annotated[str, "tokens in a window, with commas (empty: as the machine allows)"] = "",
    modes: Annotated[str, "of train,prefill,small (empty: all three)"] = "",
    peers: Annotated[str, "other libraries: transformers/rope,... or none (empty: those installed)"]
    = "",
    tokens: Annotated[int, "tokens in a step (0: as the machine allows)"] = 0,
    repeats: Annotated[int, "how often each cell is timed (0: as the machine allows)"] = 0,
    minutes: Annotated[float, "nothing is begun after so many (0: no limit)"] = 0.0,
) -> SpeedRun:  # fmt: skip
    """Return the folder and settings of the speed run that these parameters describe.

    Writes nothing.

    Raises:
        ValueError: an unknown name (the nearest is named), or lengths that do not fit the tokens.
    """
    values = check_parameters(dict(locals()), kind="speed")
    from pe.speed import rig
    from pe.speed.record import default_name, speed_run

    words = {
        key: [word.strip() for word in values[key].split(",") if word.strip()]
        for key in ("encodings", "lengths", "modes", "peers")
    }
    if not all(word.isdigit() for word in words["lengths"]):
        raise ValueError(
            f"lengths: expected whole numbers with commas between, got {values['lengths']!r}"
        )
    chosen = rig("plan").settings(
        recipe=values["recipe"],
        tokens=values["tokens"],
        lengths=[int(word) for word in words["lengths"]],
        modes=words["modes"],
        encodings=words["encodings"],
        peers=() if words["peers"] == ["none"] else words["peers"] or None,
        repeats=values["repeats"],
    )
    if values["name"]:
        _refuse_strange_study(values["name"])
    run = speed_run(values["name"] or default_name(chosen.recipe))
    run.settings = chosen
    return run


def _refuse_strange_study(study: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", study):
        raise ValueError(
            f"study names a folder: use letters, digits, '.', '_' and '-', not {study!r}"
        )


def _refuse_own(overrides: Mapping[str, Any], own: Iterable[str]) -> None:
    for name in overrides:
        if name in own:
            raise ValueError(f"overrides: {name} has a parameter of its own; give it there")


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
LAUNCHERS: dict[str, Callable[..., Run]] = {
    "train": configure, "convert": configure_conversion, "study": configure_study,
    "speed": configure_speed,
}  # fmt: skip


@functools.cache
def parameters(kind: str = "train") -> Mapping[str, Parameter]:
    """Parameters of a kind of notebook, read from the signature of its launcher."""
    function = LAUNCHERS[kind]
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for name, argument in inspect.signature(function).parameters.items():
        kind_of, help_text = typing.get_args(hints[name])
        if argument.default is None:  # an option that is a dictionary
            found[name] = Parameter(name, dict, {}, help_text)
        else:
            found[name] = Parameter(name, kind_of, argument.default, help_text)
    return found


def parameters_cell(kind: str = "train") -> str:
    """Source of the notebook's ``parameters`` cell: ``name: type = default  # help`` a line."""
    lines = []
    for p in parameters(kind).values():
        default = f'"{p.default}"' if isinstance(p.default, str) else repr(p.default)
        lines.append(f"{p.name}: {p.type.__name__} = {default}  # {p.help}")
    return "\n".join(lines)


def check_parameters(
    values: Mapping[str, Any], also: Iterable[str] = (), kind: str = "train"
) -> dict[str, Any]:
    """Complete ``values`` with the defaults, and check every name and type.

    Args:
        values: parameters by name, as papermill or a caller gives them. A text is accepted for a
            dictionary if it is one in JSON or YAML, a whole float for a whole number, and a
            number written as text for a number (YAML reads ``1e-4`` as text).
        also: other names the notebook's own cell defines, let through unchecked.
        kind: the notebook's, a key of `LAUNCHERS`.

    Raises:
        ValueError: one sentence on the first name or value that is not right.
    """
    known = parameters(kind)
    allowed = {*known, *also, *INJECTED_BY_PAPERMILL}
    for name in values:
        if name not in allowed:
            raise _unknown_parameter(name, list(dict.fromkeys([*known, *also])))
    checked = {name: p.default for name, p in known.items()}
    checked |= {name: _checked(known[name], v) for name, v in values.items() if name in known}
    return checked


def _unknown_parameter(name: str, names: list[str]) -> ValueError:
    from pe.training.recipe import Recipe

    if name in Recipe.__dataclass_fields__:
        return ValueError(
            f"unknown parameter {name!r}: it is a field of the recipe; "
            f"pass it as -y 'overrides: {{{name}: VALUE}}'"
        )
    return unknown("parameter", name, names)


def _checked(parameter: Parameter, value: Any) -> Any:
    """``value`` as the parameter's type, or ValueError."""
    kind, got = parameter.type, value
    if kind is dict and value is None:
        return {}
    if kind is dict and isinstance(value, str):
        value = _parsed(value)
    elif kind is float:
        value = _number(value)
    elif kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    elif kind is bool and value in (0, 1):
        value = bool(value)
    right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if right and kind in (int, float):
        right = math.isfinite(value) and value >= 0
    if right and kind is dict:
        right = all(isinstance(key, str) for key in value)
    if not right:
        hint = ""
        if kind is str:
            hint = f"; to pass it as text write -r {parameter.name} {got}"
        raise ValueError(f"{parameter.name}: expected {_WORDS[kind]}, got {got!r}{hint}")
    return value


def _parsed(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) if text.strip() else {}
    except yaml.YAMLError:
        return None


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
