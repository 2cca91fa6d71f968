"""The study that study.ipynb carries out."""

from __future__ import annotations

from pe.notebooks.parameters.common import Count, Switch, Whole, launcher, refuse_strange_study
from pe.study.plan import load_plan
from pe.study.planned import StudyFolder


@launcher
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
    refuse_strange_study(plan[0].study)
    return StudyFolder(plan, dry_run=dry_run, workers=1 if address else workers)
