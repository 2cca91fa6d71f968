"""The ledger of claims: book/tables/claims.yaml judged by the records of runs/.

| ```{claims} tally      how many claims have which verdict
| ```{claims} holds      the claims of a verdict, one after the other; "does-not-hold" and so on
| ```{claims} this-page  on methods/NAME.md: the claims about its encodings, both numbers
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import ClassVar

from book_directives import Made
from book_measured import of_page
from sphinx.application import Sphinx

from pe import claims
from pe._errors import unknown
from pe.claims import Judged, Verdict
from pe.results.markdown import pipe

LEDGER = Path("tables") / "claims.yaml"
_WORDS = {verdict.value.replace(" ", "-"): verdict for verdict in Verdict}


@functools.cache
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


def beside(found: list[Judged], encodings: list[str]) -> str:
    """The claims about some encodings as a table: their number, ours, the verdict. "" for none."""
    lines = [
        [
            one.claim.claim,
            "not checked" if one.claim.read == "memory" else one.claim.theirs,
            one.numbers or "–",
            one.verdict.value,
        ]
        for one in found
        if set(one.claim.encodings) & set(encodings)
    ]
    if not lines:
        return ""
    table = pipe(["what is claimed", "their number", "ours", "verdict"], lines, 4)
    return (
        "Claims beside our records. Set-ups differ, mostly in size: {doc}`the ledger <../claims>` "
        "has both, and how verdicts are reached.\n\n"
        f"````{{container}} pe-results wrap\n{table}\n````"
    )


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
        if part not in ("tally", "this-page") and part not in _WORDS:
            raise unknown("part", part, ["tally", "this-page", *_WORDS])
        found = judged(self.book.folder)
        if part == "this-page":
            folder, _, stem = self.env.docname.rpartition("/")
            names = of_page(stem) if folder == "methods" else []
            if text := beside(found, names):
                return text
            raise ValueError("no claim of the ledger is about an encoding of this page")
        if part == "tally":
            return tally(found)
        mine = [entry(one) for one in found if one.verdict == _WORDS[part]]
        return "\n\n".join(mine) if mine else "*None.*"


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("claims", Claims)
