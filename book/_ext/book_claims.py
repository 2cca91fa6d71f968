"""The ledger of claims: book/tables/claims.yaml, judged by the records of runs/.

| ```{claims} tally          how many claims have each verdict
| ```{claims} holds          the claims with a verdict, one after the other (or does-not-hold ...)
| ```{claim-table} ID ID     these claims as a table: the verdict, the authors' result, ours
| ```{claim-table}           on methods/NAME.md: the claims about the encodings of the page
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from book_directives import Made
from book_measured import of_page

from pe import claims
from pe._errors import unknown
from pe.claims import Claim, Judged, Verdict
from pe.results.markdown import pipe

LEDGER = Path("tables") / "claims.yaml"
_WORDS = {verdict.value.replace(" ", "-"): verdict for verdict in Verdict}
OF_METHOD = "Claims beside our records; {doc}`/claims` says how the verdicts are computed."


def judged(book: Path) -> list[Judged]:
    """Judge all claims, in the order of the ledger."""
    values = claims.Values(book.parent / "runs")
    return [claims.judge(one, values) for one in claims.load(book / LEDGER)]


def selected(found: Sequence[Judged], names: Sequence[str]) -> list[Judged]:
    """Return the claims with these ids, in the order of the ids.

    Raises:
        ValueError: an id that no claim has.
    """
    by_id = {one.claim.id: one for one in found}
    for name in names:
        if name not in by_id:
            raise unknown("claim", name, list(by_id))
    return [by_id[name] for name in names]


def tally(found: list[Judged]) -> str:
    """Write a table of how many claims have each verdict."""
    count = Counter(one.verdict for one in found)
    rows = [[verdict.value, str(count[verdict])] for verdict in Verdict if count[verdict]]
    return pipe(["verdict", "claims"], [*rows, ["*all*", str(len(found))]])


def entry(one: Judged) -> str:
    """Write one claim: the authors' result, ours, and the records."""
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


def beside(found: list[Judged]) -> str:
    """Write claims as a table. The verdict is in the second column, which a phone shows."""
    rows = []
    for one in found:
        theirs = "not checked against the paper" if one.claim.read == "memory" else one.claim.theirs
        verdict = f"**{one.verdict.value}**"
        if one.verdict == Verdict.DEPENDS:
            verdict += f" ({one.why})"
        rows.append([one.claim.claim, verdict, f"{theirs}; {one.claim.setup}", one.numbers or "–"])
    return pipe(["claim", "verdict", "theirs", "ours"], rows, 4)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.)' else '.'}" if text else ""


def about_page(book: Path, stem: str, ledger: Sequence[Claim]) -> list[str]:
    """Return the ids of the claims about the encodings of a method page that have no other page."""
    own = {name for name in of_page(stem) if not (book / "methods" / f"{name}.md").exists()}
    return [claim.id for claim in ledger if (own | {stem}) & set(claim.encodings)]


class _OfLedger(Made):
    """A directive that shows claims of the ledger."""

    def judged(self) -> list[Judged]:
        """Return all claims with their verdicts, which are judged once per build."""
        return self.book.once("claims", lambda: judged(self.book.folder))


class Claims(_OfLedger):
    """The number of claims per verdict, or the claims with one verdict."""

    classes: ClassVar[list[str]] = []

    def text(self) -> str:
        part = self.arguments[0]
        if part != "tally" and part not in _WORDS:
            raise unknown("part", part, ["tally", *_WORDS])
        found = self.judged()
        if part == "tally":
            return tally(found)
        mine = [entry(one) for one in found if one.verdict == _WORDS[part]]
        return "\n\n".join(mine) if mine else "*None.*"


class ClaimTable(_OfLedger):
    """The claims with some ids, or those about the encodings of this page."""

    required_arguments, optional_arguments = 0, 1
    final_argument_whitespace = True
    classes: ClassVar[list[str]] = ["pe-results", "wrap"]

    def text(self) -> str:
        folder, _, stem = self.env.docname.rpartition("/")
        said = f"{OF_METHOD}\n\n" if folder == "methods" else ""
        found = self.judged()
        names = self.arguments[0].split() if self.arguments else []
        if not names and folder == "methods":
            names = about_page(self.book.folder, stem, [one.claim for one in found])
        if not names:
            raise ValueError("no claim of the ledger is about the encoding of this page")
        return said + beside(selected(found, names))
