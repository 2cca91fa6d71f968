"""Find what a run starts from: its own checkpoints, or the weights of another run, its parent.

A run that was stopped continues from its last checkpoint. Its text and the code of its encoding
must not have changed, and it cannot be asked to keep the weights of steps that it has passed.

A run with a parent starts from the parent's weights under its own encoding, with its own schedule
and a new optimizer. It continues the parent's stream of text where the parent stopped, so that no
window is read twice within a pass. This is exact if seed, batch size and context length are those
of the parent. With other sizes the windows differ, and the new run skips as many tokens as the
parent has read.

A branch (``start_state: all``) also takes over the optimizer. It is the same run with another end:
under the schedule ``wsd`` it equals, bit for bit, a shorter run from the beginning of its decay.

Weights are not stored in git, so a complete parent may have a record but no weights on this
machine. A study then trains the parent once more, in a folder beside its record (`retrained_copy`),
and the runs that start from this copy record it. This module imports no torch.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pe.recipes.recipe import NOT_IDENTITY, Recipe
from pe.runs import Run, RunError, root

if TYPE_CHECKING:
    from collections.abc import Callable

    from pe.data import TokenData

BRANCH_FIELDS = (
    *NOT_IDENTITY, "start_from", "start_step", "start_state", "steps", "schedule", "warmup_steps",
    "decay_steps", "learning_rate", "min_learning_rate",
)  # fmt: skip
"""Fields of a recipe in which a branch may differ from its parent."""
SAME_AS_PARENT = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "qk_norm", "embedding_std",
)  # fmt: skip
"""Fields of a recipe that a run has in common with the run it starts from."""
NEVER_DROPPED = ("joint_norm", "softmax_scale")
"""Fields of a recipe that a run must set, perhaps to another value, if its parent sets them."""
RETRAINED = ".parents"
"""The folder of a study in which complete runs are trained once more for their weights."""
SEARCHED = "searched"
"""The value of LongRoPE's ``long_factor`` in a recipe that asks for the factors which
`pe.search_longrope` finds for the parent. A study is planned before these are known."""
KEPT = "kept"
"""Folder of a run's checkpoints that are never pruned."""


@dataclass
class TrainState:
    """Counters of a checkpoint; everything else follows from the recipe and the step."""

    step: int = 0
    """Optimizer steps done."""
    tokens: int = 0
    """Tokens the run was trained on."""
    seconds: float = 0.0
    """Time of the steps."""
    resumes: int = 0
    data_fingerprint: str = ""
    tokenizer_fingerprint: str = ""
    """Empty in old checkpoints, which did not store it."""

    @property
    def data(self) -> dict[str, str]:
        """The fingerprints, in the form that `TokenData.difference` compares."""
        known = {"fingerprint": self.data_fingerprint}
        if self.tokenizer_fingerprint:
            known["tokenizer_fingerprint"] = self.tokenizer_fingerprint
        return known


def read_state(checkpoint: Path) -> TrainState:
    """Read the counters of a checkpoint.

    Raises:
        RunError: its state.json is missing or damaged.
    """
    path = checkpoint / "state.json"
    try:
        return TrainState(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}); delete {checkpoint}") from error


def checkpoints(directory: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    folders = [p for p in directory.glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    return sorted((p for p in folders if (p / "state.json").exists()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the step that a checkpoint's name has."""
    return int(checkpoint.name.removeprefix("step-"))


def kept_steps(directory: Path) -> list[int]:
    """Return the steps whose checkpoints are never pruned."""
    return [step_of(path) for path in checkpoints(directory / KEPT)]


def folder_of(directory: Path, step: int) -> Path | None:
    """Return the folder of the checkpoint of this step, or None if there is none."""
    for folder in (directory / KEPT, directory):
        path = folder / f"step-{step:06d}"
        if path in checkpoints(folder):
            return path
    return None


def steps_gone(run: Run) -> dict[str, list[int]]:
    """Return the steps whose weights ``run`` is asked to keep, but which it has passed already.

    A step that the recorded recipe keeps does not count, even if its weights are on another
    machine. Nor does a step that the `retrained_copy` keeps.

    Returns:
        The steps by field, ``keep_steps`` or ``keep_states``; a field without any is absent.
    """
    if not run.exists() or not (run.recipe.keep_steps or run.recipe.keep_states):
        return {}
    record, folder, copy = run.read(), run.directory / "checkpoints", retrained_copy(run)
    complete, passed = record["status"] == "complete", _passed(run, record)
    recorded = [record["recipe"], *([copy.read()["recipe"]] if copy.exists() else [])]
    gone = {}
    for field in ("keep_steps", "keep_states"):
        fields = ("keep_states",) if field == "keep_states" else ("keep_steps", "keep_states")
        kept = {step for old in recorded for name in fields for step in old.get(name, ())}
        if complete and field == "keep_steps":
            kept.add(passed)  # its last weights
        missing = [
            step
            for step in sorted(set(getattr(run.recipe, field)) - kept)
            if step <= passed and not _is_saved(folder, step, field)
        ]
        if missing:
            gone[field] = missing
    return gone


def _passed(run: Run, record: Mapping[str, Any]) -> int:
    """Return the last step whose result the run will not compute again."""
    if record["status"] == "complete":
        return int(record["training"]["steps"])
    saved = checkpoints(run.directory / "checkpoints")
    return step_of(saved[-1]) if saved else 0


def _is_saved(directory: Path, step: int, field: str) -> bool:
    """Return whether there is a checkpoint of ``step`` with what ``field`` keeps."""
    path = folder_of(directory, step)
    return path is not None and (field == "keep_steps" or (path / "optimizer.bin").exists())


def check_kept(run: Run) -> None:
    """Refuse a run that is asked to keep weights which it has passed already.

    Raises:
        RunError: there are such steps (`steps_gone`), or ``keep_best`` was not set from the start.
    """
    if run.recipe.keep_best and run.exists():
        record = run.read()
        passed = _passed(run, record)
        if passed and not record["recipe"].get("keep_best"):
            raise RunError(
                f"keep_best: {run.directory} has passed step {passed} and did not compare its "
                f"weights until then; train a new run in another study, such as '{run.study}-2', "
                "or leave keep_best out"
            )
    for field, steps in steps_gone(run).items():
        listed, several = ", ".join(map(str, steps)), len(steps) > 1
        raise RunError(
            f"{field}: {run.directory} has passed step{'s' * several} {listed} and did not keep "
            f"{'them' if several else 'it'}; train a new run in another study, such as "
            f"'{run.study}-2', or set {field} to later steps"
        )


def text_for(recipe: Recipe, on_progress: Callable[[str], None] | None = None) -> TokenData:
    """Prepare the corpus of a recipe (`pe.data.prepare`)."""
    from pe.data import prepare

    return prepare(
        recipe.corpus, recipe.vocab_size, recipe.tokenizer, separator=recipe.separator,
        on_progress=on_progress,
    )  # fmt: skip


def check_text(data: TokenData, recorded: Mapping[str, Any], who: str, advice: str) -> None:
    """Refuse text that differs from what a run was trained on, or was tokenised differently.

    Args:
        recorded: fingerprints of the text of the training, as in `TokenData.summary`.
        who: the run or checkpoint, for the message. advice: what to do, for the message.

    Raises:
        RunError: ``data`` has another text or another tokenizer.
    """
    difference = data.difference(recorded)
    if difference:
        raise RunError(
            f"{who} was trained on other data than {data.corpus!r} is now ({difference}); {advice}"
        )


def source_changes(run: Run) -> list[str]:
    """Return the modules of the encoding whose code has changed since ``run`` was trained.

    The list is empty for an old record without hashes.
    """
    record = run.record
    if not record.sources:
        return []
    from pe.encodings.core.source import source_hashes

    old, new = record.sources, source_hashes(record.pe)
    changed = {module for module, value in old.items() if value not in new.values()}
    return sorted(changed | {module for module, value in new.items() if value not in old.values()})


def check_source(run: Run) -> None:
    """Refuse to resume, evaluate or show a run if the code of its encoding has changed.

    A run that has no weights yet starts from the beginning, with the present code.

    Raises:
        RunError: the code has changed since the training.
    """
    record = run.record
    if record.status != "complete" and not checkpoints(run.directory / "checkpoints"):
        return
    changed = source_changes(run)
    if changed:
        code = record.code
        back = f", or go back to commit {code.commit[:7]}" if code.commit and not code.dirty else ""
        raise RunError(
            f"{run.directory} was trained with another source of {record.pe} ({', '.join(changed)} "
            f"changed since); train with the present source in another study, such as "
            f"'{record.study}-2'{back}"
        )


class Start(NamedTuple):
    """The weights from which a run starts, and where it enters the stream of text."""

    parent: Run
    step: int
    """The step of the parent after which the weights were saved."""
    weights: Path
    """Folder of the weights, in Hugging Face format."""
    tokens: int
    """Tokens on which the weights were trained, in the parent and in its own parents."""
    stream_step: int
    """The step of the stream of text that is the first step of the new run."""
    data: Mapping[str, Any]
    """Fingerprints of the text and the tokenizer that the weights were trained on."""
    whole: bool = False
    """Whether the run is a branch, which takes over optimizer and random states as well."""
    retrained: Run | None = None
    """The run that has the weights, if the parent had to be trained once more."""

    @property
    def draws_step(self) -> int:
        """What is added to a step's number to seed its random numbers; 0 unless it is a branch."""
        return self.step if self.whole else 0

    def record(self) -> dict[str, Any]:
        """Return the entry ``parent`` of run.json."""
        record = {
            "study": self.parent.study,
            "run": self.parent.name,
            "config_hash": self.parent.read()["config_hash"],
            "step": self.step,
            "tokens": self.tokens,
            "stream_step": self.stream_step,
        }
        if self.retrained is not None:
            record["retrained"] = retraining(self.retrained)
        return record


def retrained_copy(parent: Run) -> Run:
    """Return the run in which ``parent`` is trained once more if its weights are lost.

    The folder of ``parent`` itself stays as it is.
    """
    return Run(parent.directory.parent / RETRAINED / parent.name)


def retraining(second: Run) -> dict[str, Any]:
    """Return the entry ``retrained`` in the record of a run that starts from ``second``."""
    record = second.read()
    return {
        "finished": record["finished"],
        "commit": record["code"]["commit"],
        "hardware": record["hardware"]["name"],
        "validation_loss": (record["training"] or {}).get("validation_loss"),
    }


def is_retrained_copy(run: Run) -> bool:
    """Return whether this is the second training of a run, made by `retrained_copy`."""
    return run.directory.parent.name == RETRAINED


def parent_missing_weights(recipe: Recipe, study: Path) -> Run | None:
    """Return the parent of ``recipe`` if it is complete and its weights are lost, or else None."""
    parent = recorded_parent(recipe, study)
    if parent is None or parent.read()["status"] != "complete" or has_weights(parent, recipe):
        return None
    return parent


def recorded_parent(recipe: Recipe, study: Path) -> Run | None:
    """Return the run that ``recipe`` starts from; None if it names none, or none that exists."""
    if not recipe.start_from:
        return None
    try:
        return parent_of(recipe.start_from, study)
    except RunError:
        return None  # the parent was never trained


def has_weights(parent: Run, recipe: Recipe) -> bool:
    """Return whether the folder of ``parent`` has the weights that ``recipe`` starts from."""
    try:
        _weights(parent, recipe)
    except RunError:
        return False
    return True


def parent_of(name: str, study: Path) -> Run:
    """Return the run that a recipe's ``start_from`` names.

    Args:
        name: a run of the study, STUDY/RUN, or a path.
        study: the folder of the recipe's study.

    Raises:
        RunError: there is no such run.
    """
    study = study.parent if study.name == RETRAINED else study
    for folder in (study, root(), Path.cwd()):
        run = Run(folder / name)
        if run.exists():
            return run
    raise RunError(
        f"start_from: there is no run {name!r} in {study.name}, as STUDY/RUN below "
        f"{root().name}/ or as a folder; train it first"
    )


def takes_searched_factors(recipe: Recipe) -> bool:
    """Return whether the recipe takes LongRoPE's factors from a search."""
    return bool(recipe.pe_options.get("long_factor") == SEARCHED)


def with_searched_factors(recipe: Recipe, parent: Run) -> Recipe:
    """Return ``recipe`` with the factors that a search found for ``parent``, if it asks for them.

    Raises:
        RunError: the parent has no recorded search for this factor of extension.
        ValueError: the recipe does not say which factor of extension it wants.
    """
    if not takes_searched_factors(recipe):
        return recipe
    factor = recipe.pe_options.get("factor")
    if factor is None:
        raise ValueError(
            f"long_factor {SEARCHED!r}: give the option factor too, for which the search was done"
        )
    search = parent.part("longrope", f"-{factor:g}x")
    if search is None or search["best"] is None:
        raise RunError(
            f"long_factor: {parent.directory} has no longrope-{factor:g}x.json; search first, by "
            f"pe.search_longrope(run, {factor:g}) or the zero_shot part of a study"
        )
    options = recipe.pe_options | {"long_factor": search["best"]["factors"]}
    return dataclasses.replace(recipe, pe_options=options)


def check_sizes(recipe: Recipe, parent: Recipe) -> None:
    """Refuse a recipe whose model has other sizes than that of ``parent``, which it starts from.

    Raises:
        ValueError: a field of `SAME_AS_PARENT` differs, or one of `NEVER_DROPPED` is left out.
    """
    for name in SAME_AS_PARENT:
        size, wanted = getattr(parent, name), getattr(recipe, name)
        if size != wanted:
            raise ValueError(
                f"{name}: {parent.run_name()} has {size} and this recipe {wanted}; a run that "
                f"starts from another one must have its sizes, so set {name} to {size}"
            )
    for name in NEVER_DROPPED:
        value = getattr(parent, name)
        if value and not getattr(recipe, name):
            raise ValueError(
                f"{name}: {parent.run_name()} has {value!r}, which a run that starts from it "
                f"keeps; set {name} to {value!r}, or to another value"
            )


def start_of(recipe: Recipe, study: Path) -> Start | None:
    """Return where ``recipe`` starts; None if it starts from newly drawn weights.

    Raises:
        RunError: the parent, or its weights of the step that is asked for, do not exist.
        ValueError: its sizes differ from the parent's, or it is a branch and differs from its
            parent in more than `BRANCH_FIELDS`.
    """
    if not recipe.start_from:
        return None
    parent = parent_of(recipe.start_from, study)
    check_sizes(recipe, parent.recipe)
    record, whole = parent.read(), recipe.start_state == "all"
    if whole:
        _check_branch(recipe, parent)
        check_source(parent)
    copy = retrained_copy(parent)
    retrained = copy if copy.exists() and not has_weights(parent, recipe) else None
    step, weights, data = _weights(retrained or parent, recipe)
    tokens_per_step = parent.recipe.batch_size * parent.recipe.context_length
    earlier = record.get("parent") or {"tokens": 0, "stream_step": 0}
    read = (earlier["stream_step"] + step) * tokens_per_step  # of the stream of text
    return Start(
        parent=parent,
        step=step,
        weights=weights,
        tokens=earlier["tokens"] + step * tokens_per_step,
        stream_step=-(-read // (recipe.batch_size * recipe.context_length)),  # rounded up
        data=data,
        whole=whole,
        retrained=retrained,
    )


def _weights(parent: Run, recipe: Recipe) -> tuple[int, Path, Mapping[str, Any]]:
    """Return step, folder and text fingerprints of the weights that ``recipe`` starts from.

    Raises:
        RunError: ``parent`` does not have them on this machine.
    """
    record = parent.read()
    complete, whole = record["status"] == "complete", recipe.start_state == "all"
    step, last = recipe.start_step, record["training"]["steps"] if complete else 0
    kept = folder_of(parent.directory / "checkpoints", step)
    if complete and step in (0, last) and not whole:
        step, weights, data = last, parent.checkpoint, record["data"]
    elif step and kept is not None:
        weights, data = kept, read_state(kept).data
    else:
        steps = [*kept_steps(parent.directory / "checkpoints"), *([last] if last else [])]
        listed = ", ".join(map(str, steps)) or "none"
        raise RunError(
            f"{parent.name} is {record['status']} and has no weights of "
            f"{f'step {step}' if step else 'its last step'}; "
            f"steps it has: {listed}. Train it with keep_steps, in another study if it is complete"
        )
    if not (weights / "config.json").exists():
        raise RunError(
            f"{weights} is not on this machine (weights are not stored in git); train the run "
            "again to have it"
        )
    if whole and not (weights / "optimizer.bin").exists():
        raise RunError(
            f"{weights} holds weights but no optimizer, so it cannot be branched from; train "
            f"{parent.name} with keep_states, in another study if it is complete"
        )
    return step, weights, data


def _check_branch(recipe: Recipe, parent: Run) -> None:
    """Raise ValueError if a branch differs from its parent in more than `BRANCH_FIELDS`."""
    new, old = recipe.to_dict(), parent.recipe.to_dict()
    if old["start_state"] == "all":
        raise ValueError(
            f"start_from: {parent.name} is itself a branch; branch from {old['start_from']}"
        )
    for name, value in new.items():
        if name not in BRANCH_FIELDS and value != old[name]:
            raise ValueError(
                f"{name}: {parent.name} has {old[name]!r} and this branch of it {value!r}; a "
                "branch may differ only in steps and rates"
            )
