"""Studies: a matrix of runs with dependencies, carried out by Dask, one worker a device."""

from __future__ import annotations

from pe.study.plan import Planned, load_plan
from pe.study.run import run_study

__all__ = ["Planned", "load_plan", "run_study"]
