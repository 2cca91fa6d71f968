"""Read records of speed and memory, for the pages of the book and for `pe.figures.speed`.

record.py   a record: medians over rounds, ratios to NoPE
names.py    what is measured beside single encodings, and the titles of all systems
tables.py   a record as Markdown

The programs that measure are in benchmarks/speed of the repository, and not in an installed pe.
``pe speed`` and ``notebooks/speed.ipynb`` run them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def rig(module: str) -> ModuleType:
    """Return a module of benchmarks/speed, such as ``"measure"``.

    Raises:
        ValueError: this pe is not a checkout of the repository.
    """
    if not (ROOT / "benchmarks" / "speed").is_dir():
        raise ValueError(f"speed is measured from a checkout of the repository, and not in {ROOT}")
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(f"benchmarks.speed.{module}")
