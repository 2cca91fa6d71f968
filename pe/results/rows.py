"""What came of a study: its rows in the order of the YAML, each quantity with its interval.

A row is one entry of ``runs:`` in studies/NAME.yaml with all its seeds. Quantities, beside those of
`pe.results.tables.measure`:

    needle@4x, passkey@4x      exact matches at 4 times the training length, the prompts of all
                               depths and seeds together, as a share with Wilson's interval
    tempered.ppl@4x, tempered.needle@4x ...   the same with the fitted temperature
    needle_reach@4x            how many tokens before the end a number may lie, to be found more
                               often than not at that depth and at all later ones
    c                          that temperature
    mfu, passes                of training

Other quantities of several seeds are means with Student's interval; one seed gives none. Those of
perplexity are taken of its logarithm, the loss: the mean is the geometric one, and no interval
reaches below zero. Imports no torch.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pe._errors import unknown
from pe.results.intervals import NO_DIFFERENCE, Interval, mean_interval, paired, verdict, wilson
from pe.results.tables import (
    NOT_EVALUATED,
    NOT_RECORDED,
    QUANTITIES,
    Group,
    RunLike,
    groups,
    label,
    multiples,
    significant,
    whole,
)
from pe.results.tables import measure as measure_group
from pe.study.plan import Planned, load_plan, study_file

_AT = re.compile(r"(tempered\.)?(ppl|needle|passkey)@(\d+(?:\.\d+)?)x")
_REACH = re.compile(r"(tempered\.)?(needle|passkey)_reach@(\d+(?:\.\d+)?)x")
_TASKS = ("needle", "passkey", "needle_reach", "passkey_reach")
OTHERS = ("c", "mfu", "passes")
TITLES = {"c": "c", "mfu": "MFU", "passes": "passes"}


@dataclass(frozen=True)
class Row:
    """One configuration of a study."""

    label: str
    """Its name in the YAML, or the encoding where there is no YAML."""
    title: str
    """As it is written for readers."""
    origin: str
    """The encoding that it was trained with first."""
    runs: tuple[RunLike, ...]

    @property
    def converted(self) -> bool:
        """Whether it started from a run with another encoding."""
        return bool(self.origin != self.runs[0].read()["pe"])


@dataclass(frozen=True)
class Cell:
    """A value of a row; ``interval`` is None for one seed, ``reason`` says why there is none."""

    value: float | None
    interval: Interval | None = None
    reason: str | None = None


def planned(study: str) -> bool:
    """Whether the study has a YAML, whose names its rows have."""
    try:
        study_file(study)
    except ValueError:
        return False
    return True


def rows(study: str, runs: Sequence[RunLike], plan: Sequence[Planned] | None = None) -> list[Row]:
    """Rows of a study in the YAML's order; runs that the YAML does not name come last."""
    if plan is None:
        plan = load_plan(study) if planned(study) else []
    by_name = {run.name: run for run in runs}
    found: dict[str, list[RunLike]] = {}
    for entry in plan:
        if entry.name in by_name:
            found.setdefault(entry.label, []).append(by_name.pop(entry.name))
    for group in groups(list(by_name.values())):
        name = group.pe if group.pe not in found else group.label
        found[name] = list(group.runs)
    return [_row(name, tuple(members)) for name, members in found.items()]


def _row(name: str, members: tuple[RunLike, ...]) -> Row:
    return Row(name, *named(members[0].read()["recipe"]), members)


def named(recipe: Mapping[str, Any]) -> tuple[str, str]:
    """A run's title for readers, and the encoding that it was trained with first."""
    origin, title = recipe["pe"], label(recipe["pe"])
    if recipe.get("start_from") and recipe.get("start_state") != "all":  # that is a branch
        parent = recipe["start_from"].rpartition("/")[2]
        origin = re.sub(r"-s\d+-[0-9a-f]{8}$", "", parent)
        change = "dropped" if recipe["pe"] == "nope" else f"as {title}"
        title = f"{label(origin)}, {change} at {recipe.get('start_step', 0):,}"
    elif recipe.get("start_from"):
        title += f", {recipe['start_step'] + recipe['steps']:,} steps"
    return title, origin


def measure(row: Row, quantity: str) -> Cell:
    """A quantity of a row.

    Raises:
        ValueError: an unknown quantity.
    """
    at = _AT.fullmatch(quantity)
    if at and at[2] != "ppl":
        return _retrieval(row, bool(at[1]), at[2], float(at[3]))
    values = []
    for run in row.runs:
        value, reason = _value(run, quantity, at)
        if value is None:  # a mean over some of the seeds would be another quantity
            return Cell(None, reason=reason)
        values.append(value)
    if at:
        return _of_logarithms(values)
    interval = mean_interval(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), interval)


def _of_logarithms(values: Sequence[float]) -> Cell:
    if len(values) < 2:
        return Cell(values[0])
    nats = mean_interval([math.log(value) for value in values])
    low, high = max(nats.low, 0.0), min(nats.high, 700.0)  # no perplexity is below 1
    value = math.exp(nats.value)
    return Cell(value, Interval(value, math.exp(low), math.exp(high), nats.n))


def _value(run: RunLike, quantity: str, at: re.Match[str] | None) -> tuple[float | None, str]:
    if at:
        entry = _part(run, bool(at[1])).get("perplexity", {}).get(_tokens(run, float(at[3])))
        if entry is None:
            return None, NOT_EVALUATED
        return entry["value"], entry["reason"] or NOT_RECORDED
    reach = _REACH.fullmatch(quantity)
    if reach:
        tempered = bool(reach[1])
        return _reach(run, reach[2], float(reach[3]), tempered=tempered), NOT_EVALUATED
    if quantity == "c":
        fit = ((run.evaluation() or {}).get("tempered") or {}).get("fit")
        return (None, NOT_EVALUATED) if fit is None else (fit["value"], "")
    if quantity in ("mfu", "passes"):
        return (run.read()["training"] or {}).get(quantity), NOT_RECORDED
    if quantity not in QUANTITIES:
        raise unknown("quantity", quantity, [*QUANTITIES, *OTHERS, "ppl@4x", "needle@4x"])
    one = measure_group(Group("", "", (run,)), quantity)
    return one.value, one.reason or NOT_RECORDED


def _retrieval(row: Row, tempered: bool, task: str, multiple: float) -> Cell:
    right = asked = 0
    for run in row.runs:
        found = counts(run, task, multiple, tempered=tempered)
        if found is None:
            return Cell(None, reason=NOT_EVALUATED)
        if found["exact"] is None:
            return Cell(None, reason=found["reason"])
        right += sum(found["exact"])
        asked += len(found["exact"]) * _part(run, tempered)["retrieval"]["samples"]
    share = wilson(right, asked)
    return Cell(share.value, share)


def counts(
    run: RunLike, task: str, multiple: float, *, tempered: bool = False
) -> dict[str, Any] | None:
    """The recorded counts of a retrieval task at a multiple of the training length."""
    tasks = (_part(run, tempered).get("retrieval") or {}).get("tasks", {})
    found: dict[str, Any] | None = tasks.get(task, {}).get(_tokens(run, multiple))
    return found


def _reach(run: RunLike, task: str, multiple: float, *, tempered: bool) -> float | None:
    found = counts(run, task, multiple, tempered=tempered)
    if found is None or found["exact"] is None:
        return None
    asked = _part(run, tempered)["retrieval"]
    reach = 0.0
    for depth, right in reversed(list(zip(asked["depths"], found["exact"], strict=True))):
        if 2 * right <= asked["samples"]:
            break
        reach = (1 - depth) * int(_tokens(run, multiple))
    return reach


def _part(run: RunLike, tempered: bool) -> dict[str, Any]:
    evaluation = run.evaluation() or {}
    return (evaluation.get("tempered") or {}) if tempered else evaluation


def _tokens(run: RunLike, multiple: float) -> str:
    return str(round(multiple * run.read()["recipe"]["context_length"]))


def difference(first: Row, second: Row, quantity: str) -> tuple[str, Interval]:
    """How ``first`` differs from ``second``: a verdict, and the interval of the difference.

    Perplexities are compared as losses in nats, over the windows of one seed or over seeds, and
    other quantities over seeds. Seeds that only one of the rows has are left out.

    Raises:
        ValueError: there is nothing to pair.
    """
    at = _AT.fullmatch(quantity)
    ones, others = same_seeds(first, second)
    first, second = (replace(a, runs=tuple(one.runs[0] for one in found))
                     for a, found in ((first, ones), (second, others)))  # fmt: skip
    if at and at[2] == "ppl":
        losses = [[_window_nll(run, at) for run in row.runs] for row in (first, second)]
        if len(first.runs) == 1:
            found = paired(losses[0][0], losses[1][0])
        else:
            means = [[statistics.fmean(windows) for windows in seeds] for seeds in losses]
            found = paired(means[0], means[1])
        return verdict(found), found
    if at:
        one, other = measure(first, quantity).interval, measure(second, quantity).interval
        if one is None or other is None:
            raise ValueError(f"{quantity} is not recorded for {first.label} and {second.label}")
        gap = one.value - other.value
        return verdict(one, other), Interval(gap, one.low - other.high, one.high - other.low, one.n)
    pairs = [[_value(run, quantity, None)[0] for run in row.runs] for row in (first, second)]
    if None in pairs[0] + pairs[1]:
        raise ValueError(f"{quantity} is not recorded for {first.label} and {second.label}")
    found = paired(*pairs)  # type: ignore[arg-type]
    return verdict(found), found


def seed_of(run: RunLike) -> int:
    """The seed that a run was trained with: its initial weights and the order of its text."""
    found: int = run.read()["seed"]
    return found


def same_seeds(first: Row, second: Row) -> tuple[list[Row], list[Row]]:
    """Rows of one run each, paired by seed.

    Raises:
        ValueError: the two have no seed in common.
    """
    runs = [{seed_of(run): run for run in row.runs} for row in (first, second)]
    common = sorted(runs[0].keys() & runs[1].keys())
    if not common:
        raise ValueError(f"{first.label} and {second.label} have no seed in common")
    return tuple(  # type: ignore[return-value]
        [replace(row, runs=(by_seed[seed],)) for seed in common]
        for row, by_seed in zip((first, second), runs, strict=True)
    )


def _window_nll(run: RunLike, at: re.Match[str]) -> list[float]:
    entry = _part(run, bool(at[1])).get("perplexity", {}).get(_tokens(run, float(at[3])))
    if not entry or entry["window_nll"] is None:
        raise ValueError(f"{run.name} has no losses by window at {at[3]}x")
    return list(entry["window_nll"])


def write(cell: Cell, quantity: str) -> str:
    """A table cell: ``22.4``, ``22.4 (21.9-23.0)``, ``64% (54-72)``, or why there is no value."""
    if cell.value is None:
        return "–" if cell.reason in (NOT_RECORDED, NOT_EVALUATED) else cell.reason or "–"
    at = _AT.fullmatch(quantity)
    if at and at[2] != "ppl":
        share = cell.interval
        assert share is not None
        return f"{100 * share.value:.0f}% ({100 * share.low:.0f}–{100 * share.high:.0f})"
    if at:
        ends = cell.interval and f" ({large(cell.interval.low)}–{large(cell.interval.high)})"
        return large(cell.value) + (ends or "")
    form: Callable[[float], str]
    if quantity == "mfu":
        form = "{:.1%}".format
    elif _REACH.fullmatch(quantity):
        form = whole
    elif quantity in ("c", "passes"):
        form = "{:.2f}".format
    else:
        form = QUANTITIES[quantity].write if quantity in QUANTITIES else significant
    text = form(cell.value)
    if cell.interval is None or cell.interval.half_width == 0.0:  # the same in all runs
        return text
    return f"{text} ± {form(cell.interval.half_width)}"


def large(value: float, start: float = 1e6) -> str:
    """Three significant digits, ``1.2·10⁹`` from ``start`` on."""
    if value < start:
        return "1" if value == 1 else significant(value)
    mantissa, exponent = f"{value:.1e}".split("e")
    power = "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(int(exponent)))
    return f"{mantissa}·10{power}"


def write_difference(first: Row, second: Row, quantity: str) -> str:
    """Words for prose: ``lower by 12% (10 to 14%)``, or that no difference is shown."""
    found, gap = difference(first, second, quantity)
    at = _AT.fullmatch(quantity)
    if found == NO_DIFFERENCE:
        return NO_DIFFERENCE
    if at and at[2] == "ppl":  # a difference of losses is a ratio of perplexities
        ends = sorted(abs(math.expm1(x)) for x in (gap.low, gap.high))
        size, low, high = (f"{100 * x:.2g}" for x in (abs(math.expm1(gap.value)), *ends))
        return f"{found} by {size}% ({low} to {high}%)"
    if at:
        return f"{found} by {100 * abs(gap.value):.0f} points"
    return f"{found} by {significant(abs(gap.value))}"


def expand(columns: Sequence[str], runs: Sequence[RunLike]) -> list[str]:
    """``needle`` -> ``needle@1x``, ``needle@2x`` ... for every evaluated length."""
    found: list[str] = []
    for column in columns:
        if column.rpartition(".")[2] in ("ppl", *_TASKS):
            found += [f"{column}@{multiple}" for multiple in multiples(runs)]
        else:
            found.append(column)
    return found


def title(quantity: str) -> str:
    """A column's heading."""
    if _AT.fullmatch(quantity):
        return quantity.rpartition("@")[2].replace("x", "×")
    reach = _REACH.fullmatch(quantity)
    if reach:
        return f"{reach[3]}×"
    return TITLES.get(quantity) or QUANTITIES[quantity].title


def table(found: Sequence[Row], columns: Sequence[str], links: dict[str, str]) -> str:
    """A Markdown pipe table of rows; a name leads to the page of its (first) run."""
    names = expand(columns, [run for row in found for run in row.runs])
    heads = ["run", *(title(name) for name in names)]
    several = any(len(row.runs) > 1 for row in found)
    if several:
        heads.insert(1, "n")
    lines = [heads, [":--", *["--:"] * (len(heads) - 1)]]
    for row in found:
        page = links.get(row.runs[0].name)
        cells = [f"[{row.title}]({page})" if page else row.title]
        if several:
            cells.append(str(len(row.runs)))
        lines.append([*cells, *(write(measure(row, name), name) for name in names)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
