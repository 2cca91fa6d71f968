"""Synthetic tasks that test what positional encodings are meant to do; one file per family.

>>> import pe
>>> task = pe.tasks.task("k_back", k=2)
>>> example = task.example(seed=0, index=0, length=5)
>>> task.text(example)
'9 8 49 6 3 -> _ _ 9 8 49'

Each task has a generator that is a pure function of (seed, index), a chance level, trivial
strategies with their scores, and lengths in and out of distribution. Making examples does not need
torch.

``notebooks/tasks.ipynb`` trains models on a task and records the results, and `pe.tasks.load`
returns all records as a table.
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
