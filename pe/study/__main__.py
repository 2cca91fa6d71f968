"""``python -m pe.study NAME``: carry a study out; ``--dry-run`` shows what it would run.

Several names are carried out as one list, in this order. ``NAME:0,1`` are the runs of seeds 0 and 1
only, so that ``scaffold-seeds:0,1 extend scaffold-seeds`` leaves the other seeds to the end.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from pe.study.plan import Planned, load_plan
from pe.study.run import StudyFailed, run_study, workers_here
from pe.study.show import live, text


def several(names: Sequence[str], *, mini: bool = False) -> list[Planned]:
    """The runs of studies one after the other, each run once, where it is named first.

    Raises:
        ValueError: a study that is none, or seeds that it does not have.
    """
    found: dict[tuple[str, str], Planned] = {}
    for given in names:
        name, _, seeds = given.rpartition(":")
        chosen = re.fullmatch(r"\d+(,\d+)*", seeds) if name else None
        plan = load_plan(name if chosen else given, mini=mini)
        if chosen:
            wanted = [int(seed) for seed in seeds.split(",")]
            known = sorted({planned.recipe.seed for planned in plan})
            if not set(wanted) <= set(known):
                raise ValueError(f"{given}: the seeds of {name} are {', '.join(map(str, known))}")
            plan = [planned for planned in plan if planned.recipe.seed in wanted]
        for planned in plan:
            found.setdefault((planned.study, planned.name), planned)
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: all runs are done; 1: some failed; 2: no such study; 130: stopped by Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m pe.study", description=__doc__)
    parser.add_argument(
        "study", nargs="+",
        help="a name (studies/NAME.yaml) or the path of a YAML file; NAME:0,1 for some seeds",
    )  # fmt: skip
    parser.add_argument("--mini", action="store_true", help="the study in miniature, for a CPU")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and what they cost")
    parser.add_argument("--address", help="a Dask scheduler or a scheduler file (default: start)")
    parser.add_argument("--workers", type=int, help="workers to start (default: one a GPU)")
    parser.add_argument("--retries", type=int, default=1, help="for a run that fails (default: 1)")
    parser.add_argument("--no-notebooks", action="store_true", help="leave no executed pages")
    given = parser.parse_args(arguments)
    try:
        plan = several(given.study, mini=given.mini)
        count = 1 if given.address else workers_here(given.workers)  # at an address: not known
        if given.dry_run:
            print(text(plan, workers=count))
            return 0
        run_study(
            plan, address=given.address, workers=given.workers, retries=given.retries,
            notebooks=not given.no_notebooks, show=live(plan, count),
        )  # fmt: skip
    except StudyFailed as error:
        print(f"{error}\n\n{text(plan)}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    print(text(plan))
    return 0


if __name__ == "__main__":
    sys.exit(main())
