"""Runs that began with a rotary model: their rotation dropped, kept, or scaled for longer texts.

| ```{dropping-table} dropping    a line per row of that study
| ```{kept-and-dropped} paper     its restarts in pairs, with and without the encoding
| ```{picture} dropping-reach     the same rows, drawn

The recipe of a run, and the recipes of the runs that it started from, say what was done to it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from book_directives import Made
from book_pictures import Figures
from book_studies import Studies

from pe.figures.reach import reach
from pe.results import quantities
from pe.results.difference import difference, same_targets
from pe.results.markdown import CROPPED, linked, pipe
from pe.results.measure import measure, write, write_cut
from pe.results.quantities import GUESSING, RunLike, label
from pe.results.rows import Row

KINDS = ("from the first step", "kept", "put on", "dropped")
OTHER = "¹"
STUDY = "dropping"
TURNED = "queries and keys"
THETA = 10_000.0
"""RoPE's base where a recipe gives none."""
COLUMNS = ("ppl@2x", "ppl@4x", "multikey@1x", "multikey@2x", "multikey@4x")


@dataclass(frozen=True)
class Treated:
    """A row, and what was done to the model that it began with."""

    row: Row
    kind: str
    """One of `KINDS`."""
    title: str
    theta: float | None
    """RoPE's base in the first model of its line; None if that did not rotate."""
    tokens: int
    """Tokens that its weights were trained on, under all encodings."""
    control: Row | None = None
    """The row of its base that kept its rotation and has the lowest validation loss."""

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe of the first seed."""
        found: dict[str, Any] = self.row.runs[0].read()["recipe"]
        return found


def treated(rows: Sequence[Row], known: Mapping[str, RunLike]) -> list[Treated]:
    """Return the rows, sorted by base, by what was done to the model, by norm and by rate.

    Args:
        known: by STUDY/NAME, all runs that these may have begun with.

    Raises:
        ValueError: a run that one of them began with is not among ``known``.
    """
    found = [_treated(row, known) for row in rows]

    def loss(one: Treated) -> float:
        return measure(one.row, "validation_loss").value or math.inf

    kept = sorted((one for one in found if one.kind == "kept"), key=loss)
    controls = {one.theta: one.row for one in reversed(kept)}
    usual = kept[0].row if kept else None  # a model that never rotated has no base
    found = [replace(one, control=controls.get(one.theta, usual)) for one in found]

    def place(one: Treated) -> tuple[Any, ...]:
        r = one.recipe
        return (
            one.theta or math.inf,
            KINDS.index(one.kind),
            r.get("joint_norm", ""),
            one.title,
            r["learning_rate"],
        )

    return sorted(found, key=place)


def _treated(row: Row, known: Mapping[str, RunLike]) -> Treated:
    line = [row.runs[0].read()]
    while parent := line[0].get("parent"):
        name = f"{parent['study']}/{parent['run']}"
        if name not in known:
            raise ValueError(f"{row.label} began with {name}, which is not recorded")
        line.insert(0, known[name].read())
    own, first = line[-1]["recipe"], line[0]["recipe"]
    tokens = line[-1]["training"]["tokens"] + (line[-1].get("parent") or {"tokens": 0})["tokens"]
    theta = None if first["pe"] == "nope" else first["pe_options"].get("theta", THETA)
    name = label(own["pe"])
    if len(line) == 1:
        return Treated(row, KINDS[0], f"{name} {KINDS[0]}", theta, tokens)
    if not own["steps"]:
        factor = own["pe_options"].get("factor", 1.0)
        return Treated(row, KINDS[2], f"kept, then {name} × {factor:g}", theta, tokens)
    kind = KINDS[1] if own["pe"] == line[-2]["recipe"]["pe"] else KINDS[3]
    return Treated(row, kind, kind, theta, tokens)


def table(found: Sequence[Treated], links: Mapping[str, str] | None = None) -> str:
    """Write a line per row. After the rows of a base comes its control with the text cut.

    Args:
        links: by a run's name, the address of its page.
    """
    titles = quantities.titles(["ppl@1x", *COLUMNS])
    heads = ["model", "θ", "peak rate", "norm", "tokens", "validation loss", titles[0]]
    lines = []
    for i, one in enumerate(found):
        page, r = (links or {}).get(one.row.runs[0].name), one.recipe
        lines.append([
            linked(one.title, page) + _mark(one),
            _theta(one.theta),
            f"{r['learning_rate']:g}" if r["steps"] else "–",
            r.get("joint_norm") or "–",
            f"{one.tokens / 1e6:,.0f} M",
            *(_cell(one.row, name) for name in ("validation_loss", "ppl@1x")),
            _against(one),
            *(_cell(one.row, name) for name in COLUMNS),
        ])  # fmt: skip
        last = i + 1 == len(found) or found[i + 1].theta != one.theta
        if last and one.control is not None and one.theta is not None:
            texts = [write_cut(one.control, name) for name in ("ppl@1x", *COLUMNS)]
            lines.append([
                f"kept, {CROPPED}", _theta(one.theta), *["–"] * 4, texts[0], "–", *texts[1:]
            ])  # fmt: skip
    text = pipe([*heads, "against kept", *titles[1:]], lines)
    if any(_mark(one) for one in found):
        text += (
            f"\n\n{OTHER} Evaluated up to another length and therefore on other windows than the "
            "kept model: perplexities of the two are not of the same text."
        )
    return text


def pairs(rows: Sequence[Row], known: Mapping[str, RunLike]) -> str:
    """Write a table of runs that restarted from one step with one rate and number of steps.

    Each line is compared with the kept run above it, which is its control.

    Args:
        known: as in `treated`.
    """
    groups: dict[tuple[Any, ...], list[Treated]] = {}
    for one in (_treated(row, known) for row in rows):
        if one.kind in ("kept", "dropped"):
            groups.setdefault(_restart(one.recipe), []).append(one)
    columns = ["ppl@1x", *COLUMNS]
    titles = quantities.titles(columns)
    lines = []
    for group in groups.values():
        group.sort(key=lambda one: KINDS.index(one.kind))
        control = group[0].row if group[0].kind == "kept" else None
        for one in group:
            r, parent = one.recipe, one.row.runs[0].read()["parent"]
            first = known[f"{parent['study']}/{parent['run']}"].read()["pe"]
            lines.append([
                f"{label(first)}, {one.kind}",
                quantities.whole(r["start_step"]),
                quantities.whole(r["steps"]),
                f"{r['learning_rate']:g}",
                _cell(one.row, "ppl@1x"),
                _against(replace(one, control=control)),
                *(_cell(one.row, name) for name in COLUMNS),
            ])  # fmt: skip
    if not lines:
        return "No restarted run is recorded yet."
    heads = ["model", "after step", "steps", "peak rate", titles[0], "against kept", *titles[1:]]
    return pipe(heads, lines, 1)


def _restart(r: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the settings that a dropped run shares with its control."""
    return r["start_from"], r["start_step"], r["steps"], r["learning_rate"]


def _mark(one: Treated) -> str:
    return "" if one.control is None or same_targets([one.row, one.control]) else OTHER


def _theta(theta: float | None) -> str:
    return "–" if theta is None else f"{theta:,.0f}"


def _cell(row: Row, name: str) -> str:
    """Write a value, and below it the value with the fitted temperature."""
    text = write(measure(row, name), name)
    if quantities.at(name) is None or name.endswith("@1x"):  # where a fit changes nothing
        return text
    fitted = write(measure(row, f"tempered.{name}"), f"tempered.{name}")
    return text if fitted == "–" else f"{text}<br>fitted: {fitted}"


def _against(one: Treated) -> str:
    """Write the ratio of perplexities at 1× to the control, with its interval."""
    if one.control is None or one.control.label == one.row.label:
        return "–" if one.control is None else "1"
    if not same_targets([one.row, one.control]):
        return "–"
    gap = difference(one.row, one.control, "ppl@1x")
    if gap.guessing or gap.interval is None:
        return GUESSING if gap.guessing else f"{math.exp(gap.value):.3f}"
    ends = "–".join(f"{math.exp(end):.3f}" for end in (gap.interval.low, gap.interval.high))
    return f"{math.exp(gap.value):.3f}<br>({ends})"


def figures_of(studies: Studies) -> Figures:
    """Return the figure STUDY-reach of the study of dropping."""
    if STUDY not in studies.runs:
        return {}
    rows = list(studies.rows(STUDY).values())
    found = treated(rows, {f"{run.study}/{run.name}": run for run in studies.complete()})
    control = next((one.control for one in found if one.control is not None), rows[0])
    named = [replace(one.row, title=_title(one)) for one in found]
    places = {one.row.label: "none" if one.row.pe == "nope" else TURNED for one in found}
    far = round(max(float(name[:-1]) for name in quantities.multiples(control.runs)))
    draw = functools.partial(reach, named, places, far, base=control.label)
    return {f"{STUDY}-reach": ([run for row in rows for run in row.runs], draw)}


def _title(one: Treated) -> str:
    """Say what was done, at which rate, and with which base if it is not `THETA`."""
    r = one.recipe
    text = f"{one.title}, {r['learning_rate']:g}" if one.kind in ("kept", "dropped") else one.title
    text += ", norm" if r.get("joint_norm") else ""
    return text if one.theta in (None, THETA) else f"{text}, θ = {one.theta / 1e6:g} M"


class DroppingTable(Made):
    """`table` of a study."""

    def text(self) -> str:
        study, studies = self.arguments[0], self.book.studies
        if study not in studies.runs:
            return f"No run of the study `{study}` is recorded yet."
        rows = list(studies.rows(study).values())
        known = {f"{run.study}/{run.name}": run for run in studies.complete()}
        return table(treated(rows, known), self.book.pages(rows))


class KeptAndDropped(Made):
    """`pairs` of a study."""

    def text(self) -> str:
        study, studies = self.arguments[0], self.book.studies
        rows = list(studies.recorded(study).values())
        return pairs(rows, {f"{run.study}/{run.name}": run for run in studies.complete()})
