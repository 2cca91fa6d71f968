"""Make a task from its name and options. Each file of `pe.tasks` registers its tasks here."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pe._errors import unknown
from pe._imported import imported
from pe.tasks.core.base import Task

T = TypeVar("T", bound=type[Task])


class About(NamedTuple):
    """Title, sources and options of a task."""

    title: str
    paper: str | None
    """arXiv number of its paper, such as ``2305.19466``."""
    source: str
    """Where the definition comes from: a repository and commit, or the text of the paper."""
    options: dict[str, Any]
    """Name and default of each option."""


_REGISTRY: dict[str, type[Task]] = {}
_ABOUT: dict[str, About] = {}


def register(name: str, *, title: str, source: str, paper: str | None = None) -> Callable[[T], T]:
    """Return a class decorator that registers a `Task` under ``name``.

    Args:
        title: the name in tables and figures. paper, source: see `About`.

    Raises:
        ValueError: another task has this name.
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


@functools.cache
def _discover() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parents[1])]):
        if not module.ispkg:
            importlib.import_module(f"pe.tasks.{module.name}")


def names() -> list[str]:
    """Return the names of all tasks, sorted."""
    _discover()
    return sorted(_REGISTRY)


def task_class(name: str) -> type[Task]:
    """Return the class of a task, by its name or as ``module:Class``.

    Raises:
        ValueError: an unknown name (the message suggests the nearest known one), or a class that
            cannot be imported.
    """
    _discover()
    if ":" in name:
        return _imported(name)
    if name not in _REGISTRY:
        raise unknown("task", name, sorted(_REGISTRY))
    return _REGISTRY[name]


def _imported(name: str) -> type[Task]:
    cls = imported("task", name)
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise ValueError(f"{name!r} is not a subclass of pe.tasks.Task")
    own: type[Task] = cls
    registered = _ABOUT.get(own.name) if "name" in vars(own) else None
    if registered is None:
        own.name, own.called = name, f"option of the task {name!r}"
        registered = About(own.__name__, None, own.__module__, {})
    _ABOUT[name] = registered._replace(options=_options(own))
    return own


def about(name: str) -> About:
    """Return title, paper, source and options of a task.

    Raises:
        ValueError: an unknown name; the message suggests the nearest known one.
    """
    task_class(name)
    return _ABOUT[name]


def task(name: str, **options: Any) -> Task:
    """Make a task.

    Args:
        name: one of `names`, or ``module:Class``. options: those of the task, which `about` lists.

    Raises:
        ValueError: an unknown name or option (the message suggests the nearest known one), or a
            wrong value.
    """
    return task_class(name)(**options)
