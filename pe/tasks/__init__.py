"""Synthetic tasks: what positional encodings were made for, one family of tasks per file.

>>> import pe
>>> task = pe.tasks.task("k_back", k=2)
>>> example = task.example(seed=0, index=0, length=5)
>>> task.text(example)
'9 8 49 6 3 -> _ _ 9 8 49'

Each task has a generator that is a pure function of (seed, index), a chance level, trivial
strategies with their scores, and lengths in and out of distribution. No torch is needed to make
examples.

`pe.tasks.load` lists what is on record; ``notebooks/tasks.ipynb`` trains and records.
"""

from __future__ import annotations

from pe.tasks.core.base import Batch, Example, Task
from pe.tasks.core.registry import About, about, names, register, task, task_class
from pe.tasks.core.scoring import IGNORE, Baseline, Score, score
from pe.tasks.measure.record import load

__all__ = [
    "IGNORE",
    "About",
    "Baseline",
    "Batch",
    "Example",
    "Score",
    "Task",
    "about",
    "load",
    "names",
    "register",
    "score",
    "task",
    "task_class",
]
