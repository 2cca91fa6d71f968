"""Tables of a study: runs grouped by what was trained, measured once, written as Markdown.

A *group* is all seeds of one configuration. Its measurements are means over those seeds, with the
sample standard deviation beside them when there are at least two. Tables, figures and the numbers
in the book's prose all come from `measure`, so they cannot disagree. Imports no torch.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pe._errors import unknown
from pe.training.recipe import NEW_FIELD_DEFAULTS

if TYPE_CHECKING:
    import pandas as pd


class RunLike(Protocol):
    """The part of `pe.runs.Run` that tables and figures read."""

    @property
    def name(self) -> str: ...
    @property
    def study(self) -> str: ...
    def read(self) -> dict[str, Any]: ...
    def metrics(self) -> pd.DataFrame: ...
    def evaluation(self) -> dict[str, Any] | None: ...


@dataclass(frozen=True)
class Group:
    """All seeds of one configuration, in order of seed."""

    pe: str
    label: str
    runs: tuple[RunLike, ...]


@dataclass(frozen=True)
class Measurement:
    """A mean over `n` seeds with its sample standard deviation, or a reason why there is none."""

    value: float | None
    spread: float | None = None
    n: int = 1
    reason: str | None = None


@dataclass(frozen=True)
class Quantity:
    """A column: what it is called, how a run's value is found, how it is written."""

    title: str
    find: Callable[[dict[str, Any]], float | None]
    write: Callable[[float], str]


def significant(value: float) -> str:
    """Three significant digits, never an exponent, thousands separated: ``1,234`` ``45.6``."""
    if not math.isfinite(value):
        return str(value)
    digits = 2 - math.floor(math.log10(abs(value))) if value else 2
    return f"{value:,.{max(digits, 0)}f}"


def whole(value: float) -> str:
    """A count: ``9,812``."""
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """``52 s``, ``3 min 05 s``, ``2 h 10 min``."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _training(key: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda record: (record["training"] or {}).get(key)


def _model(key: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda record: (record["model"] or {}).get(key)


QUANTITIES: dict[str, Quantity] = {
    "final_loss": Quantity("training loss", _training("final_loss"), "{:.3f}".format),
    "validation_loss": Quantity("validation loss", _training("validation_loss"), "{:.3f}".format),
    "tokens_per_second": Quantity("tokens/s", _training("tokens_per_second"), whole),
    "wall_time": Quantity("training time", _training("wall_seconds"), duration),
    "peak_memory": Quantity("peak memory, GiB", _training("peak_memory_gib"), "{:.2f}".format),
    "parameters": Quantity("parameters", _model("parameters"), whole),
    "encoding_parameters": Quantity("of the encoding", _model("encoding_parameters"), whole),
    "steps": Quantity("steps", _training("steps"), whole),
    "tokens": Quantity("tokens", _training("tokens"), whole),
}
"""Everything measured once a run. Perplexities are ``ppl@1x``, ``ppl@2x`` ... beside these."""

NOT_RECORDED, NOT_EVALUATED = "not recorded", "not evaluated"
# Fields that change neither the weights nor what a perplexity means.
_NO_DIFFERENCE = (
    "name", "checkpoint_every", "keep_steps", "keep_states", "log_every", "validate_every",
    "evaluation_lengths",
)  # fmt: skip
COLUMNS = ("final_loss", "validation_loss", "tokens_per_second", "peak_memory", "parameters")


def label(pe: str) -> str:
    """``"rope+alibi"`` -> ``"RoPE + ALiBi"``; loads torch, as the registry of encodings does."""
    from pe.encodings import about

    return about(pe).title


def _encoding_of(name: str) -> str:
    """``study/rope-s0-1a2b3c4d`` -> ``rope``."""
    return re.sub(r"-s\d+-[0-9a-f]{8}$", "", name.rstrip("/").rpartition("/")[2])


def _start_label(recipe: Mapping[str, Any]) -> str:
    """``NoPE``, or ``NoPE from RoPE, step 5,000`` for a run that started from another."""
    own = label(recipe["pe"])
    if not recipe.get("start_from"):
        return own
    step = recipe.get("start_step", 0)
    if recipe.get("start_state") == "all":  # a branch is a shorter run of the same kind
        return f"{own}, {step + recipe['steps']:,} steps"
    at = f", step {step:,}" if step else ""
    return f"{own} from {label(_encoding_of(recipe['start_from']))}{at}"


def groups(runs: Iterable[RunLike]) -> list[Group]:
    """Group runs that differ in nothing but their seed.

    Two configurations of one encoding get labels that tell them apart by the recipe fields in
    which they differ, for example ``RoPE (steps 100)``.
    """
    from pe.encodings import in_order

    found: dict[str, list[tuple[int, RunLike, dict[str, Any]]]] = {}
    for run in runs:
        recipe = dict(run.read()["recipe"])
        seed = recipe.pop("seed")
        recipe = {
            key: value
            for key, value in recipe.items()
            if key not in _NO_DIFFERENCE and value != NEW_FIELD_DEFAULTS.get(key)
        }
        if "start_from" in recipe:  # of another seed, another run of the same encoding
            recipe["start_from"] = _encoding_of(recipe["start_from"])
        found.setdefault(json.dumps(recipe, sort_keys=True), []).append((seed, run, recipe))
    result = []
    for members in found.values():
        recipe = members[0][2]
        name = _start_label(recipe)
        rivals = [r for r in (other[0][2] for other in found.values()) if _start_label(r) == name]
        differs = [k for k in recipe if any(r.get(k) != recipe[k] for r in rivals)]
        more = ", ".join(f"{key} {recipe[key]}" for key in differs)
        name += f" ({more})" if more else ""
        ordered = sorted(members, key=lambda member: (member[0], member[1].name))
        result.append(Group(recipe["pe"], name, tuple(run for _, run, _ in ordered)))
    order = in_order(group.pe for group in result)
    return sorted(result, key=lambda g: (order.index(g.pe), g.label))


def multiples(runs: Iterable[RunLike]) -> list[str]:
    """The evaluated lengths as multiples of the training length: ``["1x", "2x", ...]``."""
    found: set[float] = set()
    for run in runs:
        trained = run.read()["recipe"]["context_length"]
        found |= {length / trained for length in (run.evaluation() or {"lengths": []})["lengths"]}
    return [f"{multiple:g}x" for multiple in sorted(found)]


def measure(group: Group, quantity: str) -> Measurement:
    """Mean, spread and count of a quantity over a group's seeds.

    Args:
        group: from `groups`.
        quantity: a key of `QUANTITIES`, or ``ppl@Nx``: perplexity of the same target tokens
            behind a context of N times the training length.

    Raises:
        ValueError: an unknown quantity.
    """
    values: list[float] = []
    reason = None
    for run in group.runs:
        value, why = _value(run, quantity)
        reason = reason or why
        if value is not None:
            values.append(value)
    if reason or not values:  # a mean over some of the seeds would not be the same quantity
        return Measurement(None, n=len(group.runs), reason=reason or NOT_RECORDED)
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Measurement(statistics.fmean(values), spread, len(values))


def _value(run: RunLike, quantity: str) -> tuple[float | None, str | None]:
    record = run.read()
    if quantity in QUANTITIES:
        value = QUANTITIES[quantity].find(record)
        return value, None if value is not None else NOT_RECORDED
    if not quantity.startswith("ppl@"):
        raise unknown("quantity", quantity, [*QUANTITIES, "ppl@1x", "ppl@2x", "ppl@4x", "ppl@8x"])
    try:
        length = round(float(quantity[4:].removesuffix("x")) * record["recipe"]["context_length"])
    except ValueError:
        raise unknown("quantity", quantity, ["ppl@1x", "ppl@2x", "ppl@4x", "ppl@8x"]) from None
    entry = ((run.evaluation() or {}).get("perplexity") or {}).get(str(length))
    if entry is None:
        return None, NOT_EVALUATED
    return entry["value"], entry["reason"]


def write(measurement: Measurement, quantity: str) -> str:
    """A table cell: ``45.6``, ``45.6 ± 0.3``, or the reason why there is no value."""
    if measurement.value is None:
        return measurement.reason or NOT_RECORDED
    form = QUANTITIES[quantity].write if quantity in QUANTITIES else significant
    text = form(measurement.value)
    if measurement.spread is not None and quantity not in ("parameters", "steps", "tokens"):
        text += f" ± {form(measurement.spread)}"
    return text


def study_table(
    runs: Sequence[RunLike],
    columns: Sequence[str] | None = None,
    links: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """One row a configuration, as text ready to be shown.

    Args:
        runs: complete runs, any number of seeds.
        columns: quantities as `measure` names them; default: every evaluated multiple of the
            training length, then those of `COLUMNS` that any run has recorded.
        links: run name -> address of its page. The second column lists the seeds, each a link
            where there is a page.
    """
    import pandas as pd

    found = groups(runs)
    if columns is None:
        measured = [q for q in COLUMNS if any(measure(g, q).value is not None for g in found)]
        columns = [*(f"ppl@{m}" for m in multiples(runs)), *measured]
    heads = {quantity: title(quantity) for quantity in columns}
    first = next((quantity for quantity in columns if quantity.startswith("ppl@")), None)
    if first:
        heads[first] = f"perplexity at {heads[first]}"
    rows = []
    for group in found:
        row = {"encoding": group.label}
        row["seeds"] = ", ".join(_link(run, links or {}) for run in group.runs)
        for quantity in columns:
            cell = measure(group, quantity)
            # What was not recorded is a dash; what cannot be says why.
            missing = cell.value is None and cell.reason in (NOT_RECORDED, NOT_EVALUATED)
            row[heads[quantity]] = "–" if missing else write(cell, quantity)
        rows.append(row)
    return pd.DataFrame(rows)


def title(quantity: str) -> str:
    """A column's heading: ``ppl@4x`` -> ``4×``."""
    if quantity in QUANTITIES:
        return QUANTITIES[quantity].title
    return quantity.removeprefix("ppl@").replace("x", "×")


def _link(run: RunLike, links: Mapping[str, str]) -> str:
    seed = str(run.read()["seed"])
    return f"[{seed}]({links[run.name]})" if run.name in links else seed


def markdown(frame: pd.DataFrame) -> str:
    """A pipe table; the first two columns, which name a row, to the left, figures to the right."""
    heads = [str(column) for column in frame.columns]
    rule = [":--" if i < 2 else "--:" for i in range(len(heads))]
    body = [[str(cell).replace("|", "\\|") for cell in row] for row in frame.to_numpy()]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rule, *body))
