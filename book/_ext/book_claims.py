"""The ledger of claims: book/tables/claims.yaml judged by the records of runs/.

| ```{claims} tally      how many claims have which verdict
| ```{claims} holds      the claims of a verdict, one after the other; "does-not-hold" and so on
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar

from book_directives import Made
from sphinx.application import Sphinx

from pe import claims
from pe._errors import unknown
from pe.claims import Judged, Verdict
from pe.results.markdown import pipe

LEDGER = Path("tables") / "claims.yaml"
_WORDS = {verdict.value.replace(" ", "-"): verdict for verdict in Verdict}


def judged(book: Path) -> list[Judged]:
    """All claims with their verdicts, in the ledger's order."""
    values = claims.Values(book.parent / "runs")
    return [claims.judge(claim, values) for claim in claims.load(book / LEDGER)]


def tally(found: list[Judged]) -> str:
    """Verdicts and how many claims have each."""
    count = Counter(one.verdict for one in found)
    rows = [[verdict.value, str(count[verdict])] for verdict in Verdict if count[verdict]]
    return pipe(["verdict", "claims"], [*rows, ["*all*", str(len(found))]])


def entry(one: Judged) -> str:
    """One claim: what they say, what we found, where it is on record."""
    c = one.claim
    paper = f"[arXiv:{c.paper}](https://arxiv.org/abs/{c.paper}), " if c.paper else ""
    theirs = f"{c.theirs}. {_sentence(c.setup)} (Read in: {c.read}.)"
    if c.read == "memory":  # not to be quoted before somebody has looked
        theirs = "their numbers have not been checked against the paper and are left out."
    lines = [f"**{c.claim}**", f"*{paper}{c.where}:* {theirs}"]
    if one.numbers:
        lines.append(f"*Ours:* {_sentence(one.numbers)} {_sentence(c.ours)}".rstrip())
    if one.why:
        lines.append(_sentence(one.why))
    if c.note:
        lines.append(c.note)
    if one.records:
        lines.append("Records: " + ", ".join(f"`{record}`" for record in one.records))
    return "\n\n".join(lines)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.)' else '.'}" if text else ""


class Claims(Made):
    """The tally, or the claims of one verdict."""

    classes: ClassVar[list[str]] = []

    def text(self) -> str:
        self.env.note_dependency(str(self.book.folder / LEDGER))
        for record in sorted((self.book.folder.parent / "runs").glob("*/*/*.json")):
            if record.name.startswith(("task-", "numerics")):
                self.env.note_dependency(str(record))
        part = self.arguments[0]
        if part != "tally" and part not in _WORDS:
            raise unknown("part", part, ["tally", *_WORDS])
        found = self.book.once("claims", lambda: judged(self.book.folder))
        if part == "tally":
            return tally(found)
        mine = [entry(one) for one in found if one.verdict == _WORDS[part]]
        return "\n\n".join(mine) if mine else "*None.*"


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("claims", Claims)
