"""pe: understand, train and compare positional encodings for transformers.

The names below are loaded when they are first used, so ``import pe`` costs next to nothing and
``import pe.encodings`` brings in torch and nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pe._version import __version__

_NAMES = {
    "pe.encodings": ("list_encodings", "encoding"),
    "pe.attention": ("attend",),
    "pe.model": ("PEConfig", "PEModel", "PEForCausalLM"),
    "pe.model.convert": ("convert",),
    "pe.pretrained.adapt": ("adapt",),
    "pe.pretrained.explain": ("explain",),
    "pe.recipes": ("Recipe", "RECIPES", "recipe"),
    "pe.training.train": ("train",),
    "pe.evaluation.evaluate": ("evaluate",),
    "pe.evaluation.start": ("evaluate_start",),
    "pe.evaluation.longrope.search": ("search_longrope",),
    "pe.evaluation.sample": ("sample",),
    "pe.evaluation.extension": ("extend",),
    "pe.notebooks.parameters": ("configure", "configure_conversion", "configure_study"),
    "pe.study.plan": ("load_plan",),
    "pe.study.queue": ("run_study",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("runs", "figures", "tasks")

__all__ = ["__version__", *_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"pe.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'pe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


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
    from pe.pretrained.adapt import adapt
    from pe.pretrained.explain import explain
    from pe.recipes.named import RECIPES, recipe
    from pe.recipes.recipe import Recipe
    from pe.study.plan import load_plan
    from pe.study.queue import run_study
    from pe.training.train import train
