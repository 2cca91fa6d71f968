"""Retrain parents whose weights are lost, so that a study continues from records alone.

Records are in git and weights are not. So after a clone a complete parent has no weights from which
other runs could start. It is then trained once more from its recipe, in
``runs/<study>/.parents/<run>/``. This copy is not evaluated and not shown in tables, and the record
of the parent stays as it is. A run that starts from the copy records this (``parent.retrained``).
Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe.recipes.recipe import Recipe
from pe.runs import root
from pe.study.planned import Planned
from pe.training.start import (
    check_kept,
    parent_missing_weights,
    steps_gone,
    takes_searched_factors,
)


def with_retrained_parents(plan: Sequence[Planned]) -> list[Planned]:
    """Return ``plan`` with the parents that must be retrained, each before the runs that need it.

    These are the parents of runs that have yet to be trained, and parents of such parents, in this
    study or another one. They are trained without validation, which is in their records.

    Raises:
        RunError: a run is to keep steps that it has passed already.
    """
    retrained: dict[str, Planned] = {}
    labels = {planned.key: planned.label for planned in plan}

    def parent_of(recipe: Recipe, study: Path) -> str | None:
        """Plan the retrained run that keeps the weights which ``recipe`` needs; return its key.

        None if the weights are not lost.
        """
        parent = parent_missing_weights(recipe, study)
        if parent is None:
            return None
        name = labels.get(f"{parent.study}/{parent.name}", parent.read()["pe"])
        label = f"{name}, retrained"
        kept = dataclasses.replace(parent.recipe, validate_every=0)
        second = Planned(label, kept, parent.study, retrained=True)
        kept = retrained.get(second.key, second).recipe
        field = "keep_states" if recipe.start_state == "all" else "keep_steps"
        if field == "keep_states" or 0 < recipe.start_step < kept.steps:
            steps: Any = tuple(sorted({*getattr(kept, field), recipe.start_step}))
            kept = dataclasses.replace(kept, **{field: steps})
        second = dataclasses.replace(second, recipe=kept)
        if not second.done():
            second = dataclasses.replace(second, parent=parent_of(kept, parent.directory.parent))
        retrained[second.key] = second
        return second.key

    started = {}
    for planned in plan:
        if not planned.past_its_start():
            started[planned.key] = parent_of(planned.recipe, root() / planned.study)
    listed: dict[str, Planned] = {}

    def add(planned: Planned) -> None:
        if planned.parent in retrained:
            add(retrained[planned.parent])
        listed[planned.key] = planned

    for planned in plan:
        parent = planned.parent
        if planned.recipe.start_from in labels:  # a run of another study of this plan
            parent = planned.recipe.start_from
        parent = started.get(planned.key) or parent
        if takes_searched_factors(planned.recipe):  # the search waits for the weights
            parent = planned.parent
        planned = _without_retrained_steps(dataclasses.replace(planned, parent=parent), plan)
        if not planned.zero_shot:
            check_kept(planned.run())
        add(planned)
    return list(listed.values())


def _without_retrained_steps(planned: Planned, plan: Sequence[Planned]) -> Planned:
    """Leave out of a complete run's recipe the steps whose weights its retrained copy provides."""
    if planned.zero_shot or not planned.past_its_start():
        return planned
    starts = {
        other.recipe.start_step
        for other in plan
        if other.recipe.start_from == planned.key
        or (other.study == planned.study and other.recipe.start_from == planned.name)
    }
    recipe = planned.recipe
    for field, steps in steps_gone(planned.run()).items():
        unkept = starts & set(steps)
        kept = tuple(step for step in getattr(recipe, field) if step not in unkept)
        recipe = dataclasses.replace(recipe, **{field: kept})  # type: ignore[arg-type]
    return dataclasses.replace(planned, recipe=recipe)
