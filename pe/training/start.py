"""Begin a run with the weights of another one, under its own encoding.

The new run has its own schedule and a fresh optimizer. It continues the data stream where its
parent stopped, so that no window comes twice within a pass. That is exact where seed, batch and
context are the parent's; with other sizes the stream is another one, and is entered after as many
tokens.

A branch (``start_state: all``) takes the optimizer too and is the same run with another end: under
the schedule ``wsd`` it is, to the last bit, what a shorter run would have been from its decay on.

Weights are not in git, so a parent can have a complete record and no weights on this machine. A
study then trains it once more beside its record (`retrained_copy`), and what starts there says so.
Imports no torch.
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
    from pe.data import TokenData

# In these a branch may differ from its parent: where it begins and ends, and the rates between.
BRANCH_FIELDS = (
    *NOT_IDENTITY, "start_from", "start_step", "start_state", "steps", "schedule", "warmup_steps",
    "decay_steps", "learning_rate", "min_learning_rate",
)  # fmt: skip
RETRAINED = ".parents"
"""Folder of a study in which complete runs are trained once more for their weights."""
SEARCHED = "searched"
"""LongRoPE's ``long_factor`` in the recipe of a run that takes the factors which
`pe.search_longrope` found for the run it starts from: a study is planned before they are known."""
KEPT = "kept"
"""Folder below a run's checkpoints in which some stay for good."""


@dataclass
class TrainState:
    """Counters of a checkpoint: all else is a pure function of the recipe and the step."""

    step: int = 0
    """Optimizer steps done."""
    tokens: int = 0
    seconds: float = 0.0
    resumes: int = 0
    data_fingerprint: str = ""
    tokenizer_fingerprint: str = ""
    """Empty in checkpoints from before tokenizers were fingerprinted."""

    @property
    def data(self) -> dict[str, str]:
        """The fingerprints as `TokenData.difference` compares them."""
        known = {"fingerprint": self.data_fingerprint}
        if self.tokenizer_fingerprint:
            known["tokenizer_fingerprint"] = self.tokenizer_fingerprint
        return known


def read_state(checkpoint: Path) -> TrainState:
    """The counters of a checkpoint.

    Raises:
        RunError: its state.json is damaged.
    """
    path = checkpoint / "state.json"
    try:
        return TrainState(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}); delete {checkpoint}") from error


def checkpoints(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    folders = [p for p in directory.glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    return sorted(p for p in folders if (p / "state.json").exists())


def kept_steps(directory: Path) -> list[int]:
    """Steps whose weights are kept for good."""
    return [int(path.name.removeprefix("step-")) for path in checkpoints(directory / KEPT)]


def folder_of(directory: Path, step: int) -> Path | None:
    """A checkpoint of this step, kept or among the last ones, or None."""
    for folder in (directory / KEPT, directory):
        path = folder / f"step-{step:06d}"
        if path in checkpoints(folder):
            return path
    return None


def check_text(data: TokenData, recorded: Mapping[str, Any], who: str, advice: str) -> None:
    """Refuse to go on with, or to judge by, another text or tokenizer than that of training.

    Args:
        recorded: the fingerprints of what ``who`` was trained on, as `TokenData.summary` gives
            them. advice: what to do, for the message.

    Raises:
        RunError: ``data`` is of another text, or of another tokenizer.
    """
    difference = data.difference(recorded)
    if difference:
        raise RunError(
            f"{who} was trained on other data than {data.corpus!r} is now ({difference}); {advice}"
        )


def source_changes(run: Run) -> list[str]:
    """Modules whose part in the encoding differs from what ``run`` was trained with.

    None of a run whose record is older than these hashes.
    """
    record = run.record
    if not record.sources:
        return []
    from pe.encodings.core.source import source_hashes

    old, new = record.sources, source_hashes(record.pe)
    changed = {module for module, value in old.items() if value not in new.values()}
    return sorted(changed | {module for module, value in new.items() if value not in old.values()})


def check_source(run: Run) -> None:
    """Refuse to go on with a run, to judge it or to show it, by another source of its encoding.

    A run without weights starts from the beginning, with the source that there is now.

    Raises:
        RunError: the source has changed since the training; the message says what, and how to
            train beside the old run.
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
            f"changed since); train the source of now beside it in another study, such as "
            f"'{record.study}-2'{back}"
        )


class Start(NamedTuple):
    """Where a run begins."""

    parent: Run
    step: int
    """Steps of the parent that lie behind its weights."""
    weights: Path
    """Folder of the weights, in Hugging Face format."""
    tokens: int
    """Tokens those weights were trained on, in the parent and before it."""
    stream_step: int
    """First step of the data stream that the new run takes."""
    data: Mapping[str, Any]
    """Fingerprints of the text and the tokenizer that they were trained on."""
    whole: bool = False
    """A branch: optimizer and random states are there and go on."""
    retrained: Run | None = None
    """Where the weights are, if the parent had to be trained once more."""

    @property
    def draws_step(self) -> int:
        """Steps by which the draws of the new run's steps are counted on."""
        return self.step if self.whole else 0

    def record(self) -> dict[str, Any]:
        """What run.json says about it."""
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
    """Where ``parent`` is trained once more when its weights are lost; its own folder stays."""
    return Run(parent.directory.parent / RETRAINED / parent.name)


def retraining(second: Run) -> dict[str, Any]:
    """What a record says about a second training whose weights it is made with."""
    record = second.read()
    return {
        "finished": record["finished"],
        "commit": record["code"]["commit"],
        "hardware": record["hardware"]["name"],
        "validation_loss": (record["training"] or {}).get("validation_loss"),
    }


def is_retrained_copy(run: Run) -> bool:
    """Whether this is the second training of a run that has its record elsewhere."""
    return run.directory.parent.name == RETRAINED


def parent_missing_weights(recipe: Recipe, study: Path) -> Run | None:
    """The complete run that ``recipe`` starts from, if its own folder lacks the weights for it."""
    if not recipe.start_from:
        return None
    try:
        parent = parent_of(recipe.start_from, study)
    except RunError:
        return None  # it was never trained
    complete = parent.read()["status"] == "complete"
    return parent if complete and not has_weights(parent, recipe) else None


def has_weights(parent: Run, recipe: Recipe) -> bool:
    """Whether the folder of ``parent`` has the weights that ``recipe`` starts with."""
    try:
        _weights(parent, recipe)
    except RunError:
        return False
    return True


def parent_of(name: str, study: Path) -> Run:
    """The run that a recipe's ``start_from`` names; ``study`` is the folder of the recipe's study.

    Raises:
        RunError: there is none.
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
    """Whether the recipe leaves LongRoPE's factors to a search."""
    return bool(recipe.pe_options.get("long_factor") == SEARCHED)


def with_searched_factors(recipe: Recipe, parent: Run) -> Recipe:
    """``recipe`` with the factors that were searched for on ``parent``, if it asks for them.

    Raises:
        RunError: no search of this factor is recorded.
        ValueError: there is no factor.
    """
    if not takes_searched_factors(recipe):
        return recipe
    factor = recipe.pe_options.get("factor")
    if factor is None:
        raise ValueError("long_factor: searched for by which factor? give factor as well")
    search = parent.part("longrope", f"-{factor:g}x")
    if search is None or search["best"] is None:
        raise RunError(
            f"long_factor: {parent.directory} has no longrope-{factor:g}x.json; search first, by "
            f"pe.search_longrope(run, {factor:g}) or the zero_shot part of a study"
        )
    options = recipe.pe_options | {"long_factor": search["best"]["factors"]}
    return dataclasses.replace(recipe, pe_options=options)


def start_of(recipe: Recipe, study: Path) -> Start | None:
    """Where ``recipe`` begins; None if with weights drawn for it.

    Raises:
        RunError: the run it starts from, or the weights of that step, are not there.
        ValueError: a branch that differs from its parent in more than its end.
    """
    if not recipe.start_from:
        return None
    parent = parent_of(recipe.start_from, study)
    record, whole = parent.read(), recipe.start_state == "all"
    if whole:
        _check_branch(recipe, parent)
        check_source(parent)
    copy = retrained_copy(parent)
    retrained = copy if copy.exists() and not has_weights(parent, recipe) else None
    step, weights, data = _weights(retrained or parent, recipe)
    before = parent.recipe.batch_size * parent.recipe.context_length
    earlier = record.get("parent") or {"tokens": 0, "stream_step": 0}
    passed = (earlier["stream_step"] + step) * before
    return Start(
        parent,
        step,
        weights,
        earlier["tokens"] + step * before,
        -(-passed // (recipe.batch_size * recipe.context_length)),
        data,
        whole,
        retrained,
    )


def _weights(parent: Run, recipe: Recipe) -> tuple[int, Path, Mapping[str, Any]]:
    """Step, folder and text of the weights that ``recipe`` asks of ``parent``; RunError if none."""
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
            f"{parent.name} is {record['status']} and has no weights of step {step or 'its last'}; "
            f"steps it has: {listed}. Train it with keep_steps, in another study if it is complete"
        )
    if not (weights / "config.json").exists():
        raise RunError(
            f"{weights} is not on this machine (weights are not kept in git); train the run again "
            "to have it"
        )
    if whole and not (weights / "optimizer.bin").exists():
        raise RunError(
            f"{weights} holds weights and no optimizer, so no branch can go on from it; train "
            f"{parent.name} with keep_states, in another study if it is complete"
        )
    return step, weights, data


def _check_branch(recipe: Recipe, parent: Run) -> None:
    new, old = recipe.to_dict(), parent.recipe.to_dict()
    if old["start_state"] == "all":
        raise ValueError(
            f"start_from: {parent.name} is itself a branch; branch from {old['start_from']}"
        )
    for name, value in new.items():
        if name not in BRANCH_FIELDS and value != old[name]:
            raise ValueError(
                f"{name}: {parent.name} has {old[name]!r} and this branch of it {value!r}; a "
                "branch differs in steps and rates alone"
            )
