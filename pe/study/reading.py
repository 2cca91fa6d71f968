"""Find, read and check the files of all kinds of studies.

There are three kinds, in studies/ (`pe.study.file`), studies/tasks (`pe.tasks.study`) and
studies/pretrained (`pe.pretrained.study`). A kind is a class whose fields are the keys of the file.
The part ``mini`` describes a miniature of the study: its keys replace those of the study, and its
records go into the folder STUDY-mini. Mistakes in a file raise a ValueError with one line for each,
which names the file and the place in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    model_validator,
)

from pe._errors import explain, unknown
from pe._files import read_yaml, shipped
from pe.runs.parameters import refuse_strange_study

FOLDER = shipped("studies")
Items = TypeVar("Items", bound=Sequence)


def _distinct(values: Items) -> Items:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is there twice; give it once")
    return values


def _folder_name(study: str) -> str:
    refuse_strange_study(study)
    return study


Distinct = AfterValidator(_distinct)
OneOrMore = BeforeValidator(lambda v: [v] if isinstance(v, (int, float, str)) else v)
FolderName = Annotated[str, AfterValidator(_folder_name)]


class YamlPart(BaseModel):
    """A mapping in the YAML of a study: its keys are the fields, and types are not converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    more_keys: ClassVar[Sequence[str]] = ()
    """Further keys that a class accepts and that are not fields."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, Mapping) else ():
            if key not in (known := [*cls.model_fields, *cls.more_keys]):
                raise unknown("key", key, known)
        return values


class AnyStudy(YamlPart):
    """The whole file of a study; the base class of all kinds."""

    below: ClassVar[str] = ""
    """The folder below studies/ that has the files of this kind."""
    title: str = ""
    mini: dict[str, Any] | None = None

    def miniature(self) -> Self:
        """Return the miniature of the study."""
        values = self.model_dump(exclude_unset=True)
        return type(self).model_validate(self.merged(values, values["mini"]) | {"mini": None})

    def merged(self, values: dict[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the study, with those of its part ``mini``."""
        return {**values, "study": f"{values['study']}-mini", **small}


Kind = TypeVar("Kind", bound=AnyStudy)


def study_file(study: str, below: str = "") -> Path:
    """Return the YAML file of a study.

    Args:
        study: a path, or the name of a file in ./studies or among the studies of the package.
        below: the folder below studies/.

    Raises:
        ValueError: there is no such file.
    """
    if not isinstance(study, str | Path):
        raise ValueError(f"study: expected a name or the path of a YAML file, got {study!r}")
    path = Path(study)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ValueError(f"study file {study!r} does not exist")
        return path
    folders = (FOLDER / below, Path("studies") / below)
    known = {p.stem: p for folder in folders for p in sorted(folder.glob("*.yaml"))}
    if study not in known:
        raise unknown("study", study, sorted(known))
    return known[study]


def read_study(kind: type[Kind], study: str, *, mini: bool = False) -> tuple[Path, Kind]:
    """Return the path of a study and its content; the miniature is checked in any case.

    Args:
        study: as `study_file` takes it. mini: return the miniature.

    Raises:
        ValueError: there is no such study, it has no miniature, or its file has mistakes.
    """
    path = study_file(study, kind.below)
    content = read_yaml(path)
    with mistakes_in(path):
        whole = kind.model_validate(content)
    if whole.mini is not None:
        with mistakes_in(f"{path}: mini"):
            small = whole.miniature()
    elif mini:
        raise ValueError(f"{path}: the study has no part 'mini'; leave --mini out, or add it")
    return path, small if mini else whole


@contextmanager
def mistakes_in(place: Path | str) -> Iterator[None]:
    """Put the name of a file, or of a place in it, before each line of a ValueError."""
    try:
        yield
    except ValueError as error:
        mistakes = explain(error, "key") if isinstance(error, ValidationError) else [str(error)]
        lines = "\n".join(mistakes).split("\n")
        raise ValueError("\n".join(f"{place}: {line}" for line in lines)) from error


class Mistakes(list[str]):
    """The mistakes in a plan, one line each, which are raised together."""

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Note a ValueError of this block with its place, and continue after the block."""
        try:
            yield
        except ValueError as error:
            self.append(f"{place}: {error}")

    def refuse(self) -> None:
        """Raise ValueError if there are any."""
        if self:
            raise ValueError("\n".join(self))
