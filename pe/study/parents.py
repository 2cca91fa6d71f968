"""Parents without weights: a study goes on where only the records of its runs are left.

Records are in git and weights are not. After a clone, or when the machine of a study was given
back, a complete parent has nothing to start from. It is then retrained from its recipe, in
``runs/<study>/.parents/<run>/``: neither evaluated nor shown, and its record is not touched. A run
that starts there records that (``parent.retrained``). Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pe.recipes.recipe import Recipe
from pe.runs import Run, root
from pe.study.plan import Planned
from pe.training.start import has_weights, parent_missing_weights, retrained_copy


def with_retrained_parents(plan: Sequence[Planned]) -> list[Planned]:
    """``plan``, and before a run the complete ones that must be retrained for it to start.

    Those are parents of runs that have yet to be trained, and their parents, of this
    study or another one. They are not validated: that is in their records.
    """
    needs = _Needs()
    for planned in plan:
        if not planned.past_its_start():
            needs.collect(planned.recipe, _folder(planned))
    labels = {planned.name: planned.label for planned in plan}
    here = {f"{planned.study}/{planned.name}": planned.name for planned in plan}
    listed: dict[str, Planned] = {}

    def add(planned: Planned) -> None:
        parent = (
            None
            if planned.past_its_start()
            else parent_missing_weights(planned.recipe, _folder(planned))
        )
        if parent is not None:
            recipe, label = needs.recipe(parent), labels.get(parent.name, parent.read()["pe"])
            second = Planned(f"{label}, retrained", recipe, parent.study, retrained=True)
            if second.name not in listed:
                add(second)
            planned = dataclasses.replace(planned, parent=second.name)
        elif planned.recipe.start_from in here:  # of another study that is carried out with this
            planned = dataclasses.replace(planned, parent=here[planned.recipe.start_from])
        listed[planned.name] = planned

    for planned in plan:
        add(planned)
    return list(listed.values())


class _Needs:
    """Which steps of which lost parents are asked for."""

    def __init__(self) -> None:
        self.steps: dict[Path, set[int]] = {}
        self.states: dict[Path, set[int]] = {}

    def collect(self, recipe: Recipe, folder: Path) -> None:
        parent = parent_missing_weights(recipe, folder)
        if parent is None:
            return
        kind = self.states if recipe.start_state == "all" else self.steps
        kind.setdefault(parent.directory, set()).add(recipe.start_step)
        if not has_weights(retrained_copy(parent), recipe):
            self.collect(parent.recipe, parent.directory.parent)

    def recipe(self, parent: Run) -> Recipe:
        """The parent's recorded recipe, keeping what is asked for: it has the same hash."""
        r = parent.recipe
        steps = {s for s in self.steps.get(parent.directory, ()) if 0 < s < r.steps}
        states = self.states.get(parent.directory, set())
        return dataclasses.replace(
            r,
            keep_steps=tuple(sorted({*r.keep_steps, *steps})),
            keep_states=tuple(sorted({*r.keep_states, *states})),
            validate_every=0,
        )


def _folder(planned: Planned) -> Path:
    return root() / planned.study
