"""The planned runs of a study: what each of them needs, and whether it is done."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from pe.evaluation.covers import covers
from pe.recipes.recipe import Recipe
from pe.runs import Folder, Run, root
from pe.study.zero_shot import ZeroShot
from pe.training.start import RETRAINED, folder_of, is_retrained_copy, source_changes


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run of a study."""

    label: str
    """Its name in the YAML."""
    recipe: Recipe
    study: str
    parent: str | None = None
    """The `key` of the run that has to be done before, which may be a retrained one."""
    retrained: bool = False
    """Whether this is a complete run that is retrained for its weights (`pe.study.parents`)."""
    zero_shot: ZeroShot | None = None
    """If given, nothing is trained: the run that the recipe starts from is extended by other
    encodings and measured."""

    @functools.cached_property
    def name(self) -> str:
        """The name of its folder in that of the study: encoding, seed, hash."""
        if self.zero_shot:
            return f"extension of {self.recipe.start_from}"
        name = self.recipe.run_name()
        return f"{RETRAINED}/{name}" if self.retrained else name

    @property
    def key(self) -> str:
        """``STUDY/NAME``, which also distinguishes runs of several studies with one recipe."""
        return f"{self.study}/{self.name}"

    def run(self) -> Run:
        """Return the run with this recipe; for a zero-shot task, the run that it extends."""
        if self.zero_shot:
            return Run(root() / self.recipe.start_from)
        return Run(root() / self.study / self.name, recipe=self.recipe)

    def done(self) -> bool:
        """Return whether nothing is left to do: no training, evaluation or measurement."""
        if self.zero_shot:
            return not self.zero_shot.missing(self.run())
        return complete(self.run())

    def task(self, notebook: bool) -> dict[str, Any]:
        """Return the argument ``task`` of `pe.study.worker.execute`, as plain JSON values."""
        return {
            "directory": str(self.run().directory), "recipe": self.recipe.to_dict(),
            "study": self.study, "notebook": notebook,
            "zero_shot": self.zero_shot.to_dict() if self.zero_shot else None,
        }  # fmt: skip

    def past_its_start(self) -> bool:
        """Return whether the weights that it starts from are no longer needed."""
        if self.zero_shot:
            return self.done()
        return self.run().exists() and self.run().read()["status"] == "complete"


def complete(run: Run) -> bool:
    """Return whether a run is trained and evaluated as its recipe asks.

    For a retrained parent it is enough to have all the weights that other runs need. A run is not
    complete if the code of its encoding has changed; training it then raises RunError.
    """
    if not run.exists() or run.read()["status"] != "complete":
        return False
    if not is_retrained_copy(run):
        evaluation = run.evaluation()
        covered = evaluation is not None and covers(evaluation, run.recipe)
        return covered and not source_changes(run)
    kept = run.directory / "checkpoints"
    states = [folder_of(kept, step) for step in run.recipe.keep_states]
    return (
        (run.checkpoint / "config.json").exists()
        and all(folder_of(kept, step) is not None for step in run.recipe.keep_steps)
        and all(state is not None and (state / "optimizer.bin").exists() for state in states)
    )


class StudyFolder(Folder):
    """The folder of a study, which a notebook of the study locks and is written to.

    It has no record of its own; results are in the records of the runs.
    """

    depth = 1

    def __init__(
        self, plan: Sequence[Planned], *, dry_run: bool = False, workers: int | None = 1
    ) -> None:
        super().__init__(root() / plan[0].study)
        self.plan, self.dry_run, self._workers = list(plan), dry_run, workers
        self.notebook = "plan.ipynb" if dry_run else "study.ipynb"

    @property
    def workers(self) -> int:
        """The number of workers: the given one, or else one per GPU, or 1 without a GPU."""
        from pe.study.devices import workers_here

        return workers_here(self._workers)
