"""The parts of the study notebook: the plan, the study as it runs, its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pe._errors import StudyFailed
from pe.notebooks.page import show
from pe.results import outcome as results
from pe.study.planned import StudyFolder
from pe.study.queue import run_study
from pe.study.show import live, memory_needed, text

if TYPE_CHECKING:
    from IPython.display import Markdown


def plan(study: StudyFolder) -> Markdown:
    """Show the runs, the state of each, how long the rest takes here, and how much memory."""
    table = text(study.plan, workers=study.workers, tablefmt="pipe")
    return show(f"{table}\n\n{memory_needed(study.plan)}")


def carry_out(
    study: StudyFolder, *, address: str | None = None, workers: int | None = None, retries: int = 1
) -> StudyFailed | None:
    """Run what is not done, with a live view. A failure is returned, so that results come first."""
    if study.dry_run:
        return None
    try:
        run_study(
            study.plan, address=address, workers=workers, retries=retries,
            on_progress=live(study.plan, study.workers),
        )  # fmt: skip
    except StudyFailed as error:
        return error
    return None


def outcome(study: StudyFolder) -> Markdown:
    """Show tables of all runs that are done: losses, perplexities, retrieval and extensions."""
    return show(results.text(study.plan))


def end(failure: StudyFailed | None) -> Markdown:
    """Raise the failure, if there was one."""
    if failure is not None:
        raise failure
    return show("Nothing failed.")
