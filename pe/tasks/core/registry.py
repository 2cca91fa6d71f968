"""From a name and options to a task. Every file of `pe.tasks` registers the tasks it defines."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pe._errors import unknown
from pe.tasks.core.base import Task

T = TypeVar("T", bound=type[Task])


class About(NamedTuple):
    """How a task is shown."""

    title: str
    paper: str | None
    """Number of its paper on arXiv."""
    source: str
    """Whose definition it is: a repository with its commit, or the paper's text."""
    options: dict[str, Any]
    """Name and default of each option."""


_REGISTRY: dict[str, type[Task]] = {}
_ABOUT: dict[str, About] = {}


def register(name: str, *, title: str, paper: str | None, source: str) -> Callable[[T], T]:
    """Class decorator: make a `Task` known by ``name``.

    Args:
        title: how tables and figures write it. paper: the number of its paper on arXiv, such as
            ``2305.19466``, if there is one. source: whose definition it is.

    Raises:
        ValueError: the name belongs to another task.
    """

    def add(cls: T) -> T:
        if name in _REGISTRY:
            raise ValueError(f"two tasks are called {name!r}: {_REGISTRY[name]} and {cls}")
        _REGISTRY[name] = cls
        cls.name = name
        cls.called = f"option of the task {name!r}"
        _ABOUT[name] = About(title, paper, source, _options(cls))
        return cls

    return add


def _options(cls: type[Task]) -> dict[str, Any]:
    return {name: field.get_default() for name, field in cls.model_fields.items()}


def _discover() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parents[1])]):
        if not module.ispkg:
            importlib.import_module(f"pe.tasks.{module.name}")


def names() -> list[str]:
    """Names of all tasks, sorted."""
    _discover()
    return sorted(_REGISTRY)


def task_class(name: str) -> type[Task]:
    """The class of a task. ValueError for an unknown name; the nearest is named."""
    _discover()
    if name not in _REGISTRY:
        raise unknown("task", name, sorted(_REGISTRY))
    return _REGISTRY[name]


def about(name: str) -> About:
    """Title, paper, source and options of a task. ValueError for an unknown name."""
    task_class(name)
    return _ABOUT[name]


def task(name: str, **options: Any) -> Task:
    """Make a task.

    Args:
        name: one of `names`. options: fields of its class; `about` lists them.

    Raises:
        ValueError: an unknown name or option (the nearest is named), or a wrong value.
    """
    return task_class(name)(**options)
