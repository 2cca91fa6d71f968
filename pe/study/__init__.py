"""Studies: a matrix of runs with dependencies, carried out by Dask, one worker per device."""

from __future__ import annotations

from pe.study.plan import load_plan
from pe.study.planned import Planned
from pe.study.queue import run_study
