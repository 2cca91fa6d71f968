"""Estimate how long runs take, so that none begins that would not end in time. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Hashable

from pe.recipes.recipe import Recipe
from pe.runs.provenance import hardware
from pe.study.planned import Planned


class Deadline:
    """The time by which runs have to end, in seconds from now on; infinity is no limit.

    Raises:
        ValueError: ``seconds`` is negative, NaN or no number.
    """

    def __init__(self, seconds: float) -> None:
        if not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"until: expected seconds, 0 or more, got {seconds!r}")
        self.seconds, self.begun = seconds, time.monotonic()

    def passed(self) -> float:
        """Return the seconds since it was set."""
        return time.monotonic() - self.begun

    def allows(self, expected: float) -> bool:
        """Return whether something that takes ``expected`` seconds would end in time."""
        return self.passed() + expected < self.seconds


class Slowest:
    """The most seconds that anything of a kind has taken so far."""

    def __init__(self) -> None:
        self._known: dict[Hashable, float] = {}

    def learn(self, seconds: float, *kinds: Hashable) -> None:
        """Note how many seconds something took that is of all these kinds."""
        for kind in kinds:
            self._known[kind] = max(self._known.get(kind, 0.0), seconds)

    def of(self, *kinds: Hashable) -> float:
        """Return the seconds of the first of these kinds that has been noted; 0 if none has."""
        return next((self._known[kind] for kind in kinds if kind in self._known), 0.0)


def _sizes(recipe: Recipe) -> tuple[Hashable, ...]:
    """Return what the time of a training step depends on, except the encoding."""
    window = recipe.batch_size, recipe.context_length
    return recipe.hidden_size, recipe.num_hidden_layers, *window


def _judged(planned: Planned) -> tuple[Hashable, ...]:
    """Return what the time outside of training depends on."""
    r, cells = planned.recipe, len(planned.zero_shot.cells()) if planned.zero_shot else 0
    started = bool(r.start_from and r.steps)  # then the initial weights are evaluated as well
    return cells, started, r.evaluation_lengths, r.retrieval_samples, r.retrieval_tasks


class Pace:
    """How long runs take: seconds per training step, and seconds for everything else.

    The estimate is the slowest earlier run of the same kind. For training this is a run with the
    same encoding and sizes, or else with the same sizes, or else any run, in proportion to its
    tokens. For the rest it is a run with the same evaluation, or else any run. At first nothing is
    known, the estimate is 0, and every run may begin. N GPUs count as N times as fast as one, which
    overestimates the time on fewer GPUs than were measured.
    """

    def __init__(self) -> None:
        self._steps, self._rest = Slowest(), Slowest()

    def learn(self, planned: Planned, seconds: float, training: float, gpus: int = 1) -> None:
        """Note the seconds of a run, in all and in its training steps.

        Args:
            gpus: number of GPUs that trained it together.
        """
        r = planned.recipe
        if training and not planned.zero_shot:
            step = gpus * training / r.steps
            self._steps.learn(step, (r.pe, *_sizes(r)), _sizes(r))
            self._steps.learn(step / (r.batch_size * r.context_length), "tokens")
        kinds = [_judged(planned), *([] if planned.zero_shot else ["any"])]
        self._rest.learn(seconds - training, *kinds)

    def learn_record(self, planned: Planned) -> None:
        """Note the times in the record of a run that is done, if it ran on such a machine."""
        run = planned.run()
        if not run.exists():
            return
        if planned.zero_shot:
            cells = (run.part("extension") or {"cells": {}})["cells"].values()
            seconds = [c["seconds"] for c in cells if c["hardware"] == hardware()["name"]]
            if len(seconds) >= len(planned.zero_shot.cells()):
                self.learn(planned, sum(seconds), 0.0)
            return
        record, evaluation = run.record, run.evaluation()
        if record.training and evaluation and record.hardware.name == hardware()["name"]:
            training, count = record.training.wall_seconds or 0.0, record.hardware.count
            self.learn(planned, training + evaluation["seconds"], training, count)

    def expected(self, planned: Planned, gpus: int = 1) -> float:
        """Return the estimated seconds of a run; a trained run only has to be evaluated."""
        r, judged = planned.recipe, _judged(planned)
        if planned.zero_shot:
            cells = len(planned.zero_shot.cells())
            return self._rest.of(judged) or cells * self._rest.of("any")
        unknown = self._steps.of("tokens") * r.batch_size * r.context_length
        step = self._steps.of((r.pe, *_sizes(r)), _sizes(r)) or unknown
        left = 0 if planned.past_its_start() else r.steps
        return self._rest.of(judged, "any") + step * left / gpus
