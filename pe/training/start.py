"""Begin a run with the weights of another one, under its own encoding.

The new run has its own schedule and a fresh optimizer. In the text it goes on where its parent
stopped: steps of the data stream are counted on, so that no window comes twice within a pass. That
is exact where seed, batch and context are the parent's; with other sizes the stream is another one,
and is entered after as many tokens. No torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from pe.runs import Run, RunError, root
from pe.training.recipe import Recipe
from pe.training.steps import folder_of, kept_steps


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
    fingerprint: str
    """The text they were trained on."""

    def record(self) -> dict[str, Any]:
        """What run.json says about it."""
        return {
            "study": self.parent.study,
            "run": self.parent.name,
            "config_hash": self.parent.read()["config_hash"],
            "step": self.step,
            "tokens": self.tokens,
            "stream_step": self.stream_step,
        }


def parent_of(name: str, study: Path) -> Run:
    """The run that a recipe's ``start_from`` names; ``study`` is the folder of its own study.

    Raises:
        RunError: there is none.
    """
    for folder in (study, root(), Path.cwd()):
        found = Run(folder / name)
        if found.exists():
            return found
    raise RunError(
        f"start_from: there is no run {name!r} in {study.name}, as STUDY/RUN below "
        f"{root().name}/ or as a folder; train it first"
    )


def start_of(recipe: Recipe, study: Path) -> Start | None:
    """Where ``recipe`` begins; None if with weights of its own.

    Raises:
        RunError: the run it starts from, or the weights of that step, are not there.
    """
    if not recipe.start_from:
        return None
    parent = parent_of(recipe.start_from, study)
    record = parent.read()
    complete = record["status"] == "complete"
    step, last = recipe.start_step, record["training"]["steps"] if complete else 0
    found = folder_of(parent.directory / "checkpoints", step)
    if complete and step in (0, last):
        step, weights, fingerprint = last, parent.checkpoint, record["data"]["fingerprint"]
    elif step and found is not None:
        weights = found
        fingerprint = json.loads((found / "state.json").read_text())["data_fingerprint"]
    else:
        kept = [*kept_steps(parent.directory / "checkpoints"), *([last] if last else [])]
        listed = ", ".join(str(s) for s in kept) or "none"
        raise RunError(
            f"{parent.name} is {record['status']} and has no weights of step {step or 'its last'}; "
            f"steps it has: {listed}. Train it with keep_steps, in another study if it is complete"
        )
    if not (weights / "config.json").exists():
        raise RunError(
            f"{weights} is not on this machine (weights are not kept in git); train the run again "
            "to have it"
        )
    before = parent.recipe.batch_size * parent.recipe.context_length
    earlier = record.get("parent") or {"tokens": 0, "stream_step": 0}
    passed = (earlier["stream_step"] + step) * before
    return Start(
        parent,
        step,
        weights,
        earlier["tokens"] + step * before,
        -(-passed // (recipe.batch_size * recipe.context_length)),
        fingerprint,
    )
