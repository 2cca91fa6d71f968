"""pe: understand, train and compare positional encodings for transformers.

The names below are loaded when they are first used, so ``import pe`` costs next to nothing and
``import pe.encodings`` brings in torch and nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pe._version import __version__

_HOMES = {
    "list_encodings": "pe.encodings",
    "encoding": "pe.encodings",
    "attend": "pe.attention",
    "PEConfig": "pe.model",
    "PEModel": "pe.model",
    "PEForCausalLM": "pe.model",
    "Recipe": "pe.recipes.recipe",
    "RECIPES": "pe.recipes.named",
    "recipe": "pe.recipes.named",
    "convert": "pe.model.convert",
    "train": "pe.training.loop",
    "evaluate": "pe.evaluation.evaluate",
    "evaluate_start": "pe.evaluation.start",
    "search_longrope": "pe.evaluation.longrope.search",
    "sample": "pe.evaluation.sample",
    "configure": "pe.notebooks.parameters",
    "configure_conversion": "pe.notebooks.parameters",
    "configure_study": "pe.notebooks.parameters",
    "load_plan": "pe.study.plan",
    "run_study": "pe.study.queue",
    "extend": "pe.evaluation.extension",
    "runs": "pe.runs",
    "figures": "pe.figures",
    "tasks": "pe.tasks",
}

_MODULES = {"runs", "figures", "tasks"}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pe' has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from pe import figures, runs, tasks
    from pe.attention import attend
    from pe.encodings import encoding, list_encodings
    from pe.evaluation.evaluate import evaluate
    from pe.evaluation.extension import extend
    from pe.evaluation.longrope.search import search_longrope
    from pe.evaluation.sample import sample
    from pe.evaluation.start import evaluate_start
    from pe.model import PEConfig, PEForCausalLM, PEModel
    from pe.model.convert import convert
    from pe.notebooks.parameters import configure, configure_conversion, configure_study
    from pe.recipes.named import RECIPES, recipe
    from pe.recipes.recipe import Recipe
    from pe.study.plan import load_plan
    from pe.study.queue import run_study
    from pe.training.loop import train
