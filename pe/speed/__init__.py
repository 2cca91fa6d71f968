"""Records of speed and memory, and what follows from them, for pages and `pe.figures.speed`.

record.py     a record: medians over rounds, ratios to NoPE
families.py   encodings that cost the same, other libraries' models, and names for all
tables.py     a record as Markdown

They are measured by the rig in benchmarks/speed of a checkout, which an installed pe does not have:
``pe speed`` and ``notebooks/speed.ipynb`` run it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "speed"
_PACKAGE = "pe_benchmarks_speed"


def rig(module: str) -> ModuleType:
    """A module of the rig, such as ``"measure"``.

    Raises:
        ValueError: this pe is not a checkout of the repository.
    """
    if _PACKAGE not in sys.modules:
        start = FOLDER / "__init__.py"
        if not start.exists():
            raise ValueError(
                f"speed is measured from a checkout of the repository; there is no {FOLDER}"
            )
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, start, submodule_search_locations=[str(FOLDER)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[_PACKAGE] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
    return importlib.import_module(f"{_PACKAGE}.{module}")
