"""From a notebook's parameters to a run: one function per notebook, which everything calls.

The first code cell of ``notebooks/train.ipynb`` calls `configure`, that of ``convert.ipynb`` calls
`configure_conversion`, that of ``study.ipynb`` `configure_study`, that of ``speed.ipynb``
`configure_speed`, that of ``pretrained.ipynb`` `configure_pretrained`, that of ``tasks.ipynb``
`configure_tasks`, and so does the papermill engine before any kernel starts, so that both mean the
same folder and a mistake stops the command early.
The notebook's ``parameters`` cell has the names, types and defaults of the function, which a test
compares, and says what each means. None is the default that it names, so that 0 can be asked for.
Imports torch only where the recipe ``auto`` or an encoding needs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pe.notebooks.parameters.convert import configure_conversion
from pe.notebooks.parameters.pretrained import configure_pretrained
from pe.notebooks.parameters.speed import configure_speed
from pe.notebooks.parameters.study import configure_study
from pe.notebooks.parameters.tasks import configure_tasks
from pe.notebooks.parameters.train import configure
from pe.runs import Folder

# papermill adds these names itself when it is asked to (--inject-paths).
INJECTED_BY_PAPERMILL = ("PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH")

# What a notebook says it is (its metadata: {"pe": {"run": "train"}}) and who names its run.
LAUNCHERS: dict[str, Callable[..., Folder]] = {
    "train": configure, "convert": configure_conversion, "study": configure_study,
    "speed": configure_speed, "pretrained": configure_pretrained, "tasks": configure_tasks,
}  # fmt: skip


def launch(kind: str, values: Mapping[str, Any], also: Iterable[str] = ()) -> Folder:
    """The folder that a notebook's parameters name, as papermill has them.

    Args:
        kind: the notebook's, a key of `LAUNCHERS`.
        also: other names that its ``parameters`` cell defines; they are its own business.

    Raises:
        ValueError: names what is not right.
    """
    others = {*also, *INJECTED_BY_PAPERMILL} - set(parameters(kind))
    return LAUNCHERS[kind](**{k: v for k, v in values.items() if k not in others})


def parameters(kind: str = "train") -> Mapping[str, inspect.Parameter]:
    """Parameters of a kind of notebook: names, types and defaults."""
    return inspect.signature(LAUNCHERS[kind]).parameters
