"""The formats of records, as pydantic models.

JSON is validated against these models when it is read and when it is written. The tables of fields
in the book are made from their docstrings (`fields`). A field that was added later has a default,
so that older records still load. A part of several files is described once, by its type or its
docstring.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pe.runs.models.evaluation import Evaluation
from pe.runs.models.extension import Extension, Search
from pe.runs.models.parts import Mode, Part, Record, Status, Tokens
from pe.runs.models.pretrained import PretrainedRecord, PretrainedSettings
from pe.runs.models.run import RunRecord, Session
from pe.runs.models.speed import SpeedRecord, SpeedSettings
from pe.runs.models.tasks import NumericsRecord, TaskAnswers, TaskModel, TaskRecord

MODELS: dict[str, type[Record]] = {
    "run": RunRecord, "evaluation": Evaluation, "extension": Extension, "longrope": Search,
    "speed": SpeedRecord, "pretrained": PretrainedRecord, "task": TaskRecord,
    "numerics": NumericsRecord,
}  # fmt: skip


def fields(name: str) -> list[tuple[str, str, str]]:
    """Return path, JSON type and meaning of every field of a file.

    The fields of a part are listed where it occurs first.

    Args:
        name: key of `MODELS`.
    """
    return list(_fields(MODELS[name], "", set()))


def _fields(part: type[Part], prefix: str, told: set[type]) -> Iterator[tuple[str, str, str]]:
    for name, field in part.model_fields.items():
        path, inner = prefix + (field.alias or name), _part_of(field.annotation)
        meaning = field.description or (inner and inner[0].__doc__) or ""
        yield path, _kind(field.annotation), " ".join(meaning.split())
        if inner and inner[0] not in told:
            told.add(inner[0])
            yield from _fields(inner[0], f"{path}{inner[1]}.", told)


def _part_of(kind: Any) -> tuple[type[Part], str] | None:
    """Return the part in a field and the path to it: ``.<tokens>`` in a mapping by length."""
    if isinstance(kind, type) and issubclass(kind, Part):
        return kind, ""
    steps = {list: "[]", dict: ".<tokens>" if get_args(kind)[:1] == (Tokens,) else ".<name>"}
    for inner in map(_part_of, get_args(kind)):
        if inner:
            return inner[0], steps.get(get_origin(kind), "") + inner[1]
    return None


def _kind(kind: Any) -> str:
    """Return the name of a type in JSON."""
    words: dict[Any, str] = {
        int: "integer", float: "number", str: "string", bool: "boolean", list: "array",
        dict: "object", type(None): "null",
    }  # fmt: skip
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_kind, get_args(kind)))
    return words.get(get_origin(kind) or kind, "object")
