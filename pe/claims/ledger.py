"""The file of the ledger and its types."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from pe._errors import explain
from pe._files import read_yaml

Paper = Annotated[str, StringConstraints(pattern=r"^\d{4}\.\d{4,5}$")]
Key = Annotated[str, StringConstraints(pattern=r"^(runs|tasks|numerics):[^/]+/.+\.[^.]+$")]
"""Address of a value: see `pe.claims.values`."""
Read = Literal["paper", "authors' records", "authors' README", "secondary source", "memory"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Condition(_Part):
    """A condition that is met if the claim holds.

    ``value``, divided by ``over`` if it is given, is at least or at most a number; or ``value`` is
    ``above`` another value.
    """

    say: str
    """The condition in words."""
    value: Key
    over: Key | None = None
    at_least: float | None = None
    at_most: float | None = None
    above: Key | None = None
    """Values are compared seed by seed. Fewer than two common seeds decide nothing."""

    @model_validator(mode="after")
    def _one_comparison(self) -> Condition:
        if sum(x is not None for x in (self.at_least, self.at_most, self.above)) != 1:
            raise ValueError("expected exactly one of at_least, at_most and above")
        if self.above is not None and self.over is not None:
            raise ValueError("over: goes with at_least or at_most, not with above")
        return self

    @property
    def keys(self) -> list[str]:
        """The addresses of all values that the condition compares."""
        return [key for key in (self.value, self.over, self.above) if key is not None]


class NotTestable(_Part):
    """Why this claim cannot be tested here."""

    why: str


class Claim(_Part):
    """One published claim."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    paper: Paper | None
    """Number on arXiv; null where the claim has no paper."""
    where: str
    """Table, figure or section; or the repository."""
    claim: str
    """What is claimed, in one sentence."""
    theirs: str
    """Their numbers."""
    setup: str
    """Their models, data and seeds."""
    read: Read
    """Where their number was read: in the paper, in records or a README that the authors published,
    or in a secondary source. A number from memory is not shown until somebody checks it."""
    ours: str = ""
    """Our set-up, where it is not the task's or study's own."""
    given: list[Condition] = []
    """Conditions without which the test says nothing, such as that a task is learned at all."""
    test: list[Condition] | NotTestable
    """Conditions that are met if the claim holds."""
    note: str = ""
    """What to keep in mind when reading the verdict."""
    about: list[str] = []
    """Encodings that the claim is about, on whose pages it stands; default: those whose values come
    first in a condition."""

    @property
    def encodings(self) -> list[str]:
        """The encodings that the claim is about."""
        if self.about or isinstance(self.test, NotTestable):
            return self.about
        subjects = [parts(condition.value)[2] for condition in self.test]
        names = [re.sub(r"-s\d+-[0-9a-f]{8}$", "", s.partition("@")[0]) for s in subjects]
        return list(dict.fromkeys(names))


def load(path: str | Path) -> list[Claim]:
    """Read the ledger.

    Raises:
        ValueError: names the file, the claim and what is not right in it; or two claims with the
            same id.
    """
    entries = read_yaml(Path(path))
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected a list of claims")
    claims: dict[str, Claim] = {}
    for number, entry in enumerate(entries, 1):
        name = entry.get("id", number) if isinstance(entry, dict) else number
        try:
            claim = Claim.model_validate(entry)
        except ValidationError as error:
            lines = "; ".join(explain(error, "field", Claim.model_fields))
            raise ValueError(f"{path}: claim {name}: {lines}") from None
        if claim.id in claims:
            raise ValueError(f"{path}: two claims are called {claim.id!r}")
        claims[claim.id] = claim
    return list(claims.values())


def parts(key: str) -> tuple[str, str, str, str]:
    """Split ``"runs:every/rope.ppl@2x"`` into ``("runs", "every", "rope", "ppl@2x")``."""
    match = re.fullmatch(r"(\w+):([^/]+)/(.+)\.([^.]+)", key)
    assert match is not None, "checked by Key"
    kind, place, subject, quantity = match.groups()
    return kind, place, subject, quantity
