"""Types and checks of the parameters of all notebooks."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, validate_call

from pe._errors import Explained, explain, with_notes
from pe.runs import Folder

PLANNED = "PE_RUN_DIR"
"""Environment variable of a kernel: the folder that follows from the command's parameters."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(value: Any) -> Any:
    """Read ``1e-4``, which YAML takes for text, as a number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _mapping(value: Any) -> Any:
    """Read a text as a dictionary in JSON or YAML."""
    import yaml

    try:
        return yaml.safe_load(value) or {} if isinstance(value, str) else value
    except yaml.YAMLError:
        return value


Words = Annotated[str, BeforeValidator(lambda v: str(v) if type(v) in (int, float) else v)]
Whole = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Count = Annotated[int, BeforeValidator(_whole), Field(gt=0)]
Number = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0)]
Switch = Annotated[bool, Field(strict=False)]
Options = Annotated[dict[str, Any], BeforeValidator(_mapping)]

P = ParamSpec("P")
F = TypeVar("F", bound=Folder)


def launcher(overrides: Iterable[str] = ()) -> Callable[[Callable[P, F]], Callable[P, F]]:
    """Return a decorator for the function of a notebook, which returns the folder of its record.

    The function then checks its arguments against their annotations, and its folder against that
    of the command. In a kernel, errors are shown in one line from then on (`in_one_line`).

    Args:
        overrides: names that belong in the parameter ``overrides``; the error for one that is
            given as a parameter says so.
    """
    fields = frozenset(overrides)

    def decorate(function: Callable[P, F]) -> Callable[P, F]:
        names = list(inspect.signature(function).parameters)
        checked = validate_call(config=ConfigDict(strict=True, allow_inf_nan=False))(function)

        @functools.wraps(function)
        def launch(*arguments: P.args, **values: P.kwargs) -> F:
            in_one_line()
            try:
                folder = checked(*arguments, **values)
            except ValidationError as error:
                raise ValueError(_explained(error, names, fields)) from None
            planned = os.environ.pop(PLANNED, None)
            if planned is not None and Path(planned).resolve() != folder.directory.resolve():
                raise ValueError(
                    f"the command named {planned}, and the cells of this notebook lead to "
                    f"{folder.directory}; give parameters on the command line (-p NAME VALUE) or "
                    "in the cell tagged 'parameters'"
                )
            return folder

        return launch

    return decorate


def _explained(error: ValidationError, names: list[str], overrides: Container[str]) -> str:
    """Describe all wrong parameters in one line."""
    lines = []
    for one, line in zip(error.errors(), explain(error, "parameter", names), strict=True):
        name = str(one["loc"][-1])
        if one["type"] == "unexpected_keyword_argument" and name in overrides:
            line = (
                f"unknown parameter {name!r}: it is one of the overrides; "
                f"pass it as -y 'overrides: {{{name}: VALUE}}'"
            )
        elif one["type"] == "string_type" and len(one["loc"]) == 1:
            line += f"; to pass it as text write -r {name} {one['input']}"
        lines.append(line)
    return "; ".join(lines)


def words_in(text: str | None) -> list[str]:
    """Split a text at its commas into words."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def whole_numbers_in(text: str | None, parameter: str) -> list[int]:
    """Split a text at its commas into whole numbers from 0 on.

    Raises:
        ValueError: a word is not such a number.
    """
    for word in words_in(text):
        if not word.isdecimal():
            raise ValueError(
                f"{parameter}: expected whole numbers with commas between, got {word!r}"
            )
    return [int(word) for word in words_in(text)]


def without_none(**values: Any) -> dict[str, Any]:
    """Return the values that are not None; None stands for a default."""
    return {name: value for name, value in values.items() if value is not None}


def refuse_strange_study(study: str, parameter: str = "study") -> None:
    """Raise ValueError unless ``study`` can be the name of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", study):
        raise ValueError(
            f"{parameter} names a folder: use letters, digits, '.', '_' and '-', not {study!r}"
        )


def other_fields(overrides: Mapping[str, Any] | None, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields in ``overrides``.

    Args:
        names: fields that have a parameter of their own, and so are not allowed here.

    Raises:
        ValueError: a field has a parameter of its own, or is the recipe's name.
    """
    for name in overrides or {}:
        if name in names:
            raise ValueError(
                f"{name} has a parameter of its own; give it there, not among the overrides"
            )
        if name == "name":
            raise ValueError("name: a changed recipe keeps its name; leave it out of the overrides")
    return dict(overrides or {})


EXPLAINED = (ValueError, OSError, Explained)
"""Exceptions for wrong input, unreadable files and a training that ended early.

Any other exception is a bug and is shown with its traceback.
"""


def in_one_line() -> None:
    """From now on, let this kernel show `EXPLAINED` exceptions without a traceback.

    The notes of an exception, one of which names the file of its traceback, follow its message.
    ``%tb`` shows the last traceback. Outside of IPython this does nothing.
    """
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.set_custom_exc(EXPLAINED, _show)


def _show(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    """Show an error without a traceback, as IPython's `set_custom_exc` calls it.

    IPython's own protocol for this is a method of the error, ``_render_traceback_``.
    """
    where = "" if getattr(error, "__notes__", ()) else " (%tb shows the traceback)"
    line = f"{kind.__name__}: {with_notes(error)}{where}"
    error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
    try:
        shell.showtraceback((kind, error, trace))
    finally:
        del error._render_traceback_  # type: ignore[attr-defined]
