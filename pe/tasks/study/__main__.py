"""``python -m pe.tasks.study``."""

from __future__ import annotations

import math
import os
import sys
import threading
from typing import Annotated

import typer

from pe._command import DryRun, Mini, Until, checked
from pe._errors import StudyFailed
from pe.tasks import study as studies
from pe.training.processes import stop_with_parent


def main(
    name: Annotated[str, typer.Argument(help="a file of studies/tasks/, or a path")] = "core",
    mini: Mini = False,
    dry_run: DryRun = False,
    until: Until = math.inf,
    processes: Annotated[int, typer.Option(min=1, help="processes, spread over the GPUs")] = 1,
    first: Annotated[int | None, typer.Option(min=0, hidden=True)] = None,  # index of a task
) -> None:
    """Train every encoding of a study on every task of it."""
    with checked("pe.tasks.study"):
        study = studies.load_study(name, mini)
        todo = studies.jobs(study, first or 0, check=first is None)
        if first is None:
            print(studies.text(study, todo), flush=True)
        else:
            print(f"this process begins at {todo[0].run.name}", flush=True)
            threading.Thread(target=stop_with_parent, args=(os.getppid(),), daemon=True).start()
        if dry_run:
            return
        if processes > 1:
            own = [name, *(["--mini"] if mini else []), "--until", str(until)]
            if failed := studies.spread(own, processes, len(study.tasks)):
                raise StudyFailed(f"{failed} processes failed")
            return
        for _ in studies.carry_out(todo, until=until):
            sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
