"""Rows of runs, what is measured of them, and how two of them differ.

A row is one configuration with all its seeds: an entry of ``runs:`` in studies/NAME.yaml, or runs
that differ in nothing but their seed. Every table, figure and number of the guide comes from
`measure` and `difference`, by these rules:

* The value of several seeds is their mean, with Student's 95% interval. Perplexities are averaged
  as losses, in nats, so theirs is the geometric mean. One seed has no interval.
* A share of prompts has Wilson's 95% interval, also of one seed; over several seeds its interval
  is Student's where that is wider: seeds that agree by chance would otherwise look certain.
* Rows are compared on the seeds that they have in common (`comparable`), and two of them seed by
  seed: a seed is the initial weights and the order of the text. Two single runs are compared on
  the same windows, or on the same prompts.

Imports no torch but for titles.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pe.recipes.recipe import NEW_FIELD_DEFAULTS
from pe.results import intervals, quantities
from pe.results.intervals import Interval
from pe.results.quantities import GUESSING, NOT_EVALUATED, NOT_RECORDED, RunLike, label, signed
from pe.study.plan import Planned, load_plan, study_file

NO_DIFFERENCE = "no difference shown"
LEVEL = 0.05
"""A difference is shown where p is below."""
# Fields that change neither the weights nor what a perplexity means.
_NO_DIFFERENCE = (
    "name", "checkpoint_every", "keep_steps", "keep_states", "log_every", "validate_every",
    "keep_best", "activation_checkpointing", "fsdp", "evaluation_lengths",
)  # fmt: skip


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
    """In the order of their seeds."""

    @property
    def pe(self) -> str:
        """Its encoding."""
        return str(self.runs[0].read()["pe"])

    @property
    def converted(self) -> bool:
        """Whether it started from a run with another encoding."""
        return self.origin != self.pe

    @property
    def seeds(self) -> tuple[int, ...]:
        """A seed is the initial weights of a run and the order of its text."""
        return tuple(int(run.read()["seed"]) for run in self.runs)

    def of(self, seeds: Iterable[int]) -> Row:
        """The row with only these of its seeds."""
        by_seed = dict(zip(self.seeds, self.runs, strict=True))
        return replace(self, runs=tuple(by_seed[seed] for seed in seeds))

    def each(self) -> list[Row]:
        """One row per seed."""
        return [replace(self.of([seed]), title=f"{self.title}, seed {seed}") for seed in self.seeds]


@dataclass(frozen=True)
class Cell:
    """A value of a row, or the reason why there is none."""

    value: float | None
    interval: Interval | None = None
    reason: str = ""
    limit: int | None = None
    """Of a perplexity: the size of the vocabulary, above which it is worse than guessing."""


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
    members: dict[str, list[RunLike]] = {}
    for entry in plan:
        if entry.name in by_name:
            members.setdefault(entry.label, []).append(by_name.pop(entry.name))
    found = {name: _row(name, of) for name, of in members.items()}
    for row in grouped(list(by_name.values())):
        name = row.label if row.label not in found else row.title
        found[name] = replace(row, label=name)
    return _told_apart(list(found.values()))


def grouped(runs: Iterable[RunLike]) -> list[Row]:
    """Rows of runs that differ in nothing but their seed, in the registry's order."""
    from pe.encodings import in_order

    members: dict[str, list[RunLike]] = {}
    for run in runs:
        setting = json.dumps(_setting(run.read()["recipe"]), sort_keys=True)
        members.setdefault(setting, []).append(run)
    found = [_row(str(of[0].read()["pe"]), of) for of in members.values()]
    order = in_order(row.pe for row in found)
    return sorted(_told_apart(found), key=lambda row: (order.index(row.pe), row.title))


def _setting(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without its seed and what changes no result."""
    recipe = {
        key: value
        for key, value in recipe.items()
        if key not in (*_NO_DIFFERENCE, "seed")
        and not (key in NEW_FIELD_DEFAULTS and value == NEW_FIELD_DEFAULTS[key])
    }
    if recipe.get("start_from"):  # of another seed, another run of the same encoding
        recipe["start_from"] = _encoding_of(recipe["start_from"])
    return recipe


LONGEST_TITLE = 30
"""Characters of an encoding's title that a line of a table has room for."""


def _told_apart(found: Sequence[Row]) -> list[Row]:
    """The rows with titles that differ; where recipes do not tell two apart, their names do."""
    titles = titled([row.runs[0].read()["recipe"] for row in found])
    return [
        replace(
            row,
            title=short(row.pe, title, row.label)
            if titles.count(title) == 1
            else f"{title} ({row.label})",
        )
        for row, title in zip(found, titles, strict=True)
    ]


def short(pe: str, title: str, name: str) -> str:
    """The title of a row, or its name in the study where a schedule makes the title too long."""
    return name if len(label(pe)) > LONGEST_TITLE and len(name) < len(title) else title


def titled(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Titles for readers; equal ones get those recipe fields behind them in which they differ.

    ``RoPE (steps 100)``, ``RoPE (steps 500)`` and ``RoPE, trained on 4,096 tokens``.
    """
    titles, lengths = [named(r)[0] for r in recipes], [r["context_length"] for r in recipes]
    for i, length in enumerate(lengths):
        titles[i] += f", trained on {length:,} tokens" if length > min(lengths) else ""
    settings = [_setting(recipe) for recipe in recipes]
    settings = [setting | setting.pop("pe_options", {}) for setting in settings]
    result = []
    for title, own in zip(titles, settings, strict=True):
        rivals = [r for r, other in zip(settings, titles, strict=True) if other == title]
        differs = [k for k in own if any(r.get(k) != own[k] for r in rivals)]
        if "learning_rate" in differs and "min_learning_rate" in differs:
            differs.remove("min_learning_rate")  # it follows the other
        texts = [f"{own[k]:g}" if isinstance(own[k], float) else str(own[k]) for k in differs]
        more = ", ".join(map(" ".join, zip(differs, texts, strict=True)))
        result.append(f"{title} ({more})" if more else title)
    return result


def ceilings(found: Sequence[Row]) -> list[Row]:
    """Rows trained on longer windows than another row of that encoding, with as many tokens.

    At the longer length they say what more context is worth.
    """

    def tokens(row: Row) -> tuple[Any, ...]:
        r = row.runs[0].read()["recipe"]
        trained = r["steps"] * r["batch_size"] * r["context_length"]
        return r["pe"], r.get("corpus"), r["hidden_size"], r["num_hidden_layers"], trained

    by_tokens: dict[tuple[Any, ...], list[RunLike]] = {}
    for row in found:
        by_tokens.setdefault(tokens(row), []).extend(row.runs)
    length = quantities.trained_length
    return [row for row in found if length(row.runs) > length(by_tokens[tokens(row)])]


def _row(name: str, members: Sequence[RunLike]) -> Row:
    runs = sorted(members, key=lambda run: (run.read()["seed"], run.name))
    return Row(name, *named(runs[0].read()["recipe"]), tuple(runs))


def _encoding_of(name: str) -> str:
    """``study/rope-s0-1a2b3c4d`` -> ``rope``."""
    return re.sub(r"-s\d+-[0-9a-f]{8}$", "", name.rstrip("/").rpartition("/")[2])


def named(recipe: Mapping[str, Any]) -> tuple[str, str]:
    """A run's title for readers, and the encoding that it was trained with first."""
    origin, title = recipe["pe"], label(recipe["pe"])
    if recipe.get("start_from") and recipe.get("start_state") != "all":  # that is a branch
        origin = _encoding_of(recipe["start_from"])
        step = f"{recipe.get('start_step', 0):,}"
        change = f"dropped at {step}" if recipe["pe"] == "nope" else f"as {title} at {step}"
        change = f"trained on from {step}" if recipe["pe"] == origin else change
        title = f"{label(origin)}, {change}"
    elif recipe.get("start_from"):
        title += f", {recipe['start_step'] + recipe['steps']:,} steps"
    return title, origin


def common_seeds(found: Sequence[Row]) -> list[int]:
    """The seeds that all rows have."""
    return sorted(set.intersection(*(set(row.seeds) for row in found))) if found else []


def comparable(found: Sequence[Row]) -> list[Row]:
    """The rows on the seeds that all of them have; each seed a row where there is no such seed.

    A mean stands beside means of the same seeds only: seeds of one encoding differ by more than
    many encodings of one seed.
    """
    common = common_seeds(found)
    if common:
        return [row.of(common) for row in found]
    return [one for row in found for one in (row.each() if len(row.runs) > 1 else [row])]


def measure(row: Row, quantity: str) -> Cell:
    """A quantity of a row; see the module for what the value and the interval of a cell are.

    Raises:
        ValueError: an unknown quantity.
    """
    values: list[float] = []
    for run in row.runs:
        value, reason = quantities.value(run, quantity)
        if value is None:  # a mean over some of the seeds would be another quantity
            return Cell(None, reason=reason)
        values.append(value)
    where = quantities.at(quantity)
    if where and where.is_share:
        prompts = intervals.wilson(*_asked(row, quantity))
        return Cell(prompts.value, _over_seeds(values, prompts))
    if where and where.is_perplexity:
        limit = quantities.vocabulary(row.runs[0])
        if len(values) < 2:
            return Cell(values[0], limit=limit)
        nats = intervals.mean_interval([math.log(value) for value in values])
        low, high = max(nats.low, 0.0), min(nats.high, 700.0)  # no perplexity is below 1
        value = math.exp(nats.value)
        return Cell(value, Interval(value, math.exp(low), math.exp(high), nats.n), limit=limit)
    if len(set(values)) < 2:
        return Cell(values[0])
    return Cell(statistics.fmean(values), intervals.mean_interval(values))


def cut(row: Row, quantity: str) -> float | None:
    """What a row would have if it read the last training length of a text alone: costs nothing.

    A perplexity of the same targets is that at 1x. A share of prompts is that at 1x times the share
    of prompts whose numbers all lie in that last part: whose depth is at least 1 - 1/multiple. This
    leaves out the tokens of needles behind that depth, of question and answer, and so is a little
    too high.

    Returns:
        None below the training length, and where a value is missing.
    """
    where = quantities.at(quantity)
    if where is None or where.multiple < 1:
        return None
    near = measure(row, str(where._replace(multiple=1.0, tempered=False))).value
    if near is None or where.is_perplexity:
        return near
    asked = quantities.answers(row.runs[0], quantity)
    if asked is None:
        return None
    inside = [depth >= 1 - 1 / where.multiple for depth in asked.depths]
    return near * sum(inside) / len(inside)


def cut_base(found: Sequence[Row]) -> Row | None:
    """The row that `cut` is shown of: RoPE, or else the first; of the shortest training length."""
    shortest = quantities.trained_length(run for row in found for run in row.runs)
    own = [row for row in found if quantities.trained_length(row.runs) == shortest]
    return next((row for row in own if row.label == "rope"), own[0]) if own else None


def _asked(row: Row, quantity: str) -> tuple[int, int]:
    """Right answers and prompts of a share, of all depths and seeds together."""
    right = asked = 0
    for run in row.runs:
        found = quantities.answers(run, quantity)
        if found is None or found.right is None:
            raise ValueError(f"{quantity} is not recorded for {row.label}")
        right += sum(found.right)
        asked += len(found.right) * found.samples
    return right, asked


def _over_seeds(values: Sequence[float], prompts: Interval) -> Interval:
    """The interval of a share, or of a difference of shares: no narrower than over prompts."""
    if len(values) < 2:
        return prompts
    seeds = intervals.mean_interval(values)
    floor = -1.0 if prompts.low < 0 or seeds.value < 0 else 0.0
    low, high = max(floor, min(seeds.low, prompts.low)), min(1.0, max(seeds.high, prompts.high))
    return Interval(seeds.value, low, high, seeds.n)


def predicted(row: Row, quantity: str) -> Interval:
    """Where one more seed of the row would lie at 95%.

    Raises:
        ValueError: fewer than two seeds, or one without a value.
    """
    values = [_recorded(row, run, quantity) for run in row.runs]
    where = quantities.at(quantity)
    if where and where.is_perplexity:
        nats = intervals.prediction([math.log(value) for value in values])
        return Interval(math.exp(nats.value), math.exp(nats.low), math.exp(nats.high), nats.n)
    return intervals.prediction(values)


def order(found: Sequence[Row], quantity: str) -> str:
    """Titles of rows by ``quantity``, best first: ``PoPE < RoPE ≈ YaRN``.

    ``<`` says that a difference between the two is shown, ``≈`` that none is.

    Raises:
        ValueError: a row of a single seed, which ranks runs and not methods, or without a value.
    """
    if min(len(row.runs) for row in found) < 2:
        raise ValueError("rows of one seed each are not ranked")
    where = quantities.at(quantity)
    sign = -1 if where and where.is_share else 1
    # A row without a value goes anywhere: `difference` names it.
    ranked = sorted(found, key=lambda row: (sign * (measure(row, quantity).value or 0), row.title))
    text = ranked[0].title
    for one, other in itertools.pairwise(ranked):
        shown = difference(one, other, quantity).verdict != NO_DIFFERENCE
        text += (" < " if shown else " ≈ ") + other.title
    return text


@dataclass(frozen=True)
class Difference:
    """By how much one row differs from another on their common seeds.

    ``value`` and ``interval`` are in nats for perplexities, in shares for shares. ``p`` is that of
    the test, None where one seed leaves nothing to test. ``over`` says what was paired: "seeds",
    "windows", "prompts", or "" where prompts could not be matched.
    """

    quantity: str
    value: float
    interval: Interval | None
    p: float | None
    over: str
    guessing: bool = False
    """One of the two perplexities is above the size of the vocabulary."""

    @property
    def verdict(self) -> str:
        """``"lower"``, ``"higher"`` or `NO_DIFFERENCE`."""
        if self.p is None or self.p >= LEVEL:
            return NO_DIFFERENCE
        return "lower" if self.value < 0 else "higher"

    def text(self, gap: float) -> str:
        """A difference as it is written: ``−12`` (percent), ``+50`` (points) or ``−0.012``."""
        where = quantities.at(self.quantity)
        if where and where.is_perplexity:
            return signed(100 * math.expm1(min(gap, 700.0)))
        return signed(100 * gap) if where and where.is_share else signed(gap, 3)

    @property
    def unit(self) -> str:
        """What `text` leaves out."""
        where = quantities.at(self.quantity)
        if where and where.is_perplexity:
            return "%"
        return " points" if where and where.is_share else ""


def difference(first: Row, second: Row, quantity: str) -> Difference:
    """How ``first`` differs from ``second`` on the seeds that both have.

    Where they were trained on windows of different lengths, ``quantity`` is at a multiple of the
    shorter one.
    Over several seeds: the paired differences, of shares with an interval and a p no smaller than
    over prompts. Of one seed: perplexities over the same windows, shares over the same prompts by
    McNemar's exact test. Records of ``needle`` keep only how many prompts were right at each depth;
    where that does not say which, by Fisher's test, which takes the prompts for unrelated.

    Raises:
        ValueError: no seed in common, a quantity that is not recorded, or perplexities of other
            windows.
    """
    common = common_seeds([first, second])
    if not common:
        raise ValueError(f"{first.label} and {second.label} have no seed in common")
    one, other = first.of(common), second.of(common)
    where = quantities.at(quantity)
    shorter = quantities.trained_length([*one.runs, *other.runs])
    both = [(row, quantities.rescaled(quantity, row.runs[0], shorter)) for row in (one, other)]
    values = [[_recorded(row, run, name) for run in row.runs] for row, name in both]
    if where and where.is_share:
        return _of_shares(both, quantity, intervals.paired(*values))
    guessing, over = False, "seeds"
    if where and where.is_perplexity:
        if not same_targets([one, other]):
            raise ValueError(f"{quantity}: {one.label} and {other.label} have other windows")
        guessing = max(map(max, values)) > quantities.vocabulary(one.runs[0])
        values = [[math.log(value) for value in seeds] for seeds in values]
        if len(common) == 1:
            over = "windows"
            values = [quantities.windows(row.runs[0], name) for row, name in both]
    gaps = intervals.paired(*values)
    if len(gaps) < 2:
        return Difference(quantity, gaps[0], None, None, "")
    interval = intervals.mean_interval(gaps)
    p = intervals.p_of_mean(gaps)
    return Difference(quantity, interval.value, interval, p, over, guessing)


def same_targets(found: Sequence[Row]) -> bool:
    """Whether their perplexities are of the same tokens: of one text, with equal longest lengths.

    Windows are drawn from the documents that have room for the longest evaluated length.
    """
    settings = set()
    for run in (run for row in found for run in row.runs):
        evaluation, data = run.evaluation() or {"lengths": [0]}, run.read()["data"] or {}
        targets = evaluation.get("target_tokens"), evaluation.get("windows")
        settings.add((data.get("fingerprint"), max(evaluation["lengths"]), *targets))
    return len(settings) == 1


def _recorded(row: Row, run: RunLike, quantity: str) -> float:
    value, reason = quantities.value(run, quantity)
    if value is None:
        raise ValueError(f"{quantity} of {row.label} has no value: {reason}")
    return value


def _of_shares(both: Sequence[tuple[Row, str]], quantity: str, gaps: Sequence[float]) -> Difference:
    counts = [_asked(row, name) for row, name in both]
    prompts = intervals.newcombe(*(intervals.wilson(*found) for found in counts))
    discordant = _discordant(both)
    over = "prompts" if discordant else ""
    p = intervals.mcnemar(*discordant) if discordant else intervals.fisher(*counts)
    if len(gaps) < 2:
        return Difference(quantity, prompts.value, prompts, p, over)
    p = max(p, intervals.p_of_mean(gaps))
    found = _over_seeds(gaps, prompts)
    return Difference(quantity, found.value, replace(found, low=max(-1.0, found.low)), p, "seeds")


def _discordant(both: Sequence[tuple[Row, str]]) -> tuple[int, int] | None:
    """Prompts that only one of the two answered, over all seeds; None where counts do not say."""
    total = [0, 0]
    cells = [[quantities.answers(run, name) for run in row.runs] for row, name in both]
    for first, second in zip(*cells, strict=True):
        if first is None or second is None or first[:2] != second[:2]:
            return None  # they were asked other prompts
        found = intervals.discordant(first.right or (), second.right or (), first.samples)
        if found is None:
            return None
        total = [a + b for a, b in zip(total, found, strict=True)]
    return total[0], total[1]


def write(cell: Cell, quantity: str, between: str = " ") -> str:
    """A table's cell: ``22.4``, ``22.4 (21.9–23.0)``, ``64% (54–72)``, or why there is no value."""
    if cell.value is None:
        return "–" if cell.reason in (NOT_RECORDED, NOT_EVALUATED) else cell.reason or "–"
    text = quantities.write(cell.value, quantity, cell.limit)
    if cell.interval is None or text == GUESSING:
        return text
    ends = [
        f">{cell.limit:,}"
        if cell.limit and end > cell.limit
        else quantities.write(end, quantity, cell.limit).removesuffix("%")
        for end in (cell.interval.low, cell.interval.high)
    ]
    return text if ends[0] == ends[1] else f"{text}{between}({'–'.join(ends)})"


def write_difference(first: Row, second: Row, quantity: str) -> str:
    """Words for prose: ``lower by 12% (10 to 14%)``, or that no difference is shown.

    Raises:
        ValueError: one seed that leaves nothing to test, or a perplexity worse than guessing.
    """
    found = difference(first, second, quantity)
    if found.interval is None:
        raise ValueError(f"{quantity}: one seed of {first.label} says nothing of another")
    if found.guessing:
        raise ValueError(f"{quantity} of {first.label} or {second.label} is {GUESSING}")
    if found.verdict == NO_DIFFERENCE:
        return NO_DIFFERENCE
    where = quantities.at(quantity)
    if where and where.is_perplexity:  # a difference of losses is a ratio of perplexities
        ends = sorted(abs(math.expm1(x)) for x in (found.interval.low, found.interval.high))
        size, low, high = (f"{100 * x:.2g}" for x in (abs(math.expm1(found.value)), *ends))
        return f"{found.verdict} by {size}% ({low} to {high}%)"
    size = found.text(abs(found.value)).removeprefix("+")
    test = f" (paired prompts, {p_value(found.p)})" if found.over == "prompts" else ""
    return f"{found.verdict} by {size}{found.unit}{test}"


def p_value(p: float | None) -> str:
    """``p = 0.016``, ``p < 0.001``."""
    assert p is not None
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
