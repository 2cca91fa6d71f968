"""``python -m pe.tasks.study``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pe.tasks import study as studies


def main(
    name: Annotated[str, typer.Argument(help="a file of studies/tasks/, or a path")] = "core",
    mini: Annotated[bool, typer.Option(help="in miniature, for a CPU")] = False,
    dry_run: Annotated[bool, typer.Option(help="only say what it would take")] = False,
    part: Annotated[str, typer.Option(help="1/4: the first of four parts")] = "1/1",
) -> None:
    """Train every encoding of a study on every task of it."""
    try:
        number, _, parts = part.partition("/")
        if not (number.isdigit() and parts.isdigit()):
            raise ValueError(f"part: expected a part such as 1/4, got {part!r}")
        study = studies.load_study(name, mini)
        todo = studies.jobs(study, (int(number), int(parts)))
        print(studies.text(study, todo), flush=True)
        if not dry_run:
            for _ in studies.carry_out(todo):
                sys.stdout.flush()
    except ValueError as error:
        print(f"pe.tasks.study: {error}", file=sys.stderr)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)
