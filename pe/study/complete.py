"""Whether a run has all that a study asks of it."""

from __future__ import annotations

from pe.evaluation.covers import covers
from pe.runs import Run
from pe.training.start import folder_of, is_retrained_copy, source_changes


def complete(run: Run) -> bool:
    """Whether a run is trained and evaluated as its recipe asks.

    A parent that was retrained has to have all weights that are asked for, and nothing else. A run
    whose encoding has another source now is not complete; to train it says why (RunError).
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
