"""Studies: a matrix of runs with dependencies, carried out by Dask, one worker per device."""

from __future__ import annotations

from pe.study.plan import Planned, load_plan
from pe.study.queue import run_study

__all__ = ["Planned", "load_plan", "run_study"]
