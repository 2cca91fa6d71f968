"""``python -m pe.tasks.study``."""

from __future__ import annotations

import math
import sys
from typing import Annotated

import typer

from pe.tasks import study as studies


def main(
    name: Annotated[str, typer.Argument(help="a file of studies/tasks/, or a path")] = "core",
    mini: Annotated[bool, typer.Option(help="in miniature, for a CPU")] = False,
    dry_run: Annotated[bool, typer.Option(help="only print how much is left")] = False,
    processes: Annotated[int, typer.Option(min=1, help="processes, spread over the GPUs")] = 1,
    first: Annotated[
        int, typer.Option(min=0, help="index of the task to begin with, from 0 on")
    ] = 0,
    until: Annotated[
        float, typer.Option(help="seconds; begin nothing that would end later")
    ] = math.inf,
) -> None:
    """Train every encoding of a study on every task of it."""
    try:
        if processes > 1 and first:
            raise ValueError(
                "--first has no effect with --processes, which begins at several tasks"
            )
        study = studies.load_study(name, mini)
        todo = studies.jobs(study, first)
        if processes == 1 and first:  # one of several processes; the first prints the table
            print(f"this process begins at {todo[0].run.name}", flush=True)
        else:
            print(studies.text(study, todo), flush=True)
        if dry_run:
            return
        if processes > 1:
            own = [name, *(["--mini"] if mini else []), "--until", str(until)]
            if failed := studies.spread(own, processes, len(study.tasks)):
                print(f"pe.tasks.study: {failed} processes failed", file=sys.stderr)
                raise typer.Exit(1)
            return
        for _ in studies.carry_out(todo, until=until):
            sys.stdout.flush()
    except ValueError as error:
        print(f"pe.tasks.study: {error}", file=sys.stderr)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)
