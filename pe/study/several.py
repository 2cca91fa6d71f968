"""Several studies as one list of runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pe.study.plan import Planned, load_plan


def load_plans(names: Sequence[str], *, mini: bool = False) -> list[Planned]:
    """The runs of studies one after the other, each run once, where it is named first.

    Args:
        names: as `load_plan` takes them. ``NAME:0,1`` are the runs of seeds 0 and 1 only.

    Raises:
        ValueError: an unknown study, or seeds that it does not have.
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
