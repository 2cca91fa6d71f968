"""The quantities of a run: where its record has each, and how each is written.

    ppl@4x                     perplexity of the same target tokens behind 4 training lengths
    passkey@4x, multikey@4x ...   share of the prompts of that length that are wholly right
    tempered.ppl@4x ...        the same with the fitted temperature
    c                          that temperature
    final_loss, mfu ...        a key of `QUANTITIES`: measured once per run

A perplexity above the size of the vocabulary is worse than that of uniform guessing. Its digits
mean nothing, so it is written as `GUESSING`. Only `label` imports torch.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pe._errors import unknown
from pe.training.progress import duration

if TYPE_CHECKING:
    import pandas as pd

NOT_RECORDED, NOT_EVALUATED = "not recorded", "not evaluated"
GUESSING, AT_BOUND = "worse than guessing", "at its bound"
TASKS = ("needle", "passkey", "multikey", "multivalue", "multiquery")
"""The first two are those of `pe.evaluation.retrieval`, the others those of `pe.data.needles`."""
TEMPERATURES = (-0.5, 1.5)
"""The range in which a temperature was searched for, in records that do not name theirs."""
_AT = re.compile(rf"(tempered\.)?(ppl|{'|'.join(TASKS)})@(\d+(?:\.\d+)?)x")


class RunLike(Protocol):
    """The part of `pe.runs.Run` that tables and figures read."""

    @property
    def name(self) -> str: ...
    @property
    def study(self) -> str: ...
    def read(self) -> dict[str, Any]: ...
    def metrics(self) -> pd.DataFrame: ...
    def evaluation(self) -> dict[str, Any] | None: ...


class At(NamedTuple):
    """A quantity that is measured at a multiple of the training length."""

    tempered: bool
    kind: str
    multiple: float

    def __str__(self) -> str:
        return f"{'tempered.' if self.tempered else ''}{self.kind}@{self.multiple:g}x"

    @property
    def is_share(self) -> bool:
        """Return whether it is a share of prompts, of which more is better."""
        return not self.is_perplexity

    @property
    def is_perplexity(self) -> bool:
        """Return whether it is a perplexity, which is averaged and compared in nats."""
        return self.kind == "ppl"


class Answers(NamedTuple):
    """A model's answers in one retrieval task at one length, by prompt or by depth."""

    depths: Sequence[float]
    """The share of the text before the number, or before the earliest number that is asked for."""
    samples: int
    """Prompts per depth."""
    right: Sequence[int] | None
    """Prompts per depth that are wholly right."""
    reason: str
    """The reason why there are none."""


@dataclass(frozen=True)
class Quantity:
    """A quantity measured once per run."""

    title: str
    find: Callable[[Mapping[str, Any]], float | None]
    """Finds the value in a run's record."""
    write: Callable[[float], str]
    more_is_better: bool | None = None
    """None where neither more nor less is better."""


def significant(value: float) -> str:
    """Write at least three significant digits, without an exponent: ``1,234``, ``45.6``."""
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.3g}")  # 9.996 is written as 10.0, with the digits of a ten
    digits = 2 - math.floor(math.log10(abs(rounded))) if value else 2
    return f"{value:,.{max(digits, 0)}f}"


def rounded(value: float) -> str:
    """Write three significant digits of a rate: ``1,630,000``."""
    return significant(float(f"{value:.3g}")) if value else "0"


def whole(value: float) -> str:
    """Write a count: ``9,812``."""
    return f"{value:,.0f}"


def signed(value: float, digits: int | None = None) -> str:
    """Write ``+12``, ``−4.1`` or ``0``: one decimal below ten, or as many as ``digits``."""
    if digits is None:
        digits = 1 if abs(value) < 9.95 else 0
    text = f"{abs(value):,.{digits}f}"
    if not text.strip("0.,"):
        return "0"
    return ("+" if value > 0 else "−") + text


def share(value: float) -> str:
    """Write ``64%``."""
    return f"{100 * value:.0f}%"


def perplexity(value: float | None, vocabulary: int) -> str:
    """Write three digits, `GUESSING` above the size of the vocabulary, or – for None."""
    if value is None:
        return "–"
    if value > vocabulary:
        return GUESSING
    return "1" if value == 1 else significant(value)


def label(pe: str) -> str:
    """Return ``"RoPE + ALiBi"`` for ``"rope+alibi"``. The registry of encodings imports torch."""
    from pe.encodings import about

    return about(pe).title


def _of(part: str, key: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda record: (record[part] or {}).get(key)


_THREE, _TWO = "{:.3f}".format, "{:.2f}".format
QUANTITIES: dict[str, Quantity] = {
    "final_loss": Quantity("training loss", _of("training", "final_loss"), _THREE, False),
    "validation_loss": Quantity(
        "validation loss", _of("training", "validation_loss"), _THREE, False
    ),
    "unseen_loss": Quantity("unseen windows", _of("training", "unseen_loss"), _THREE, False),
    "tokens_per_second": Quantity("tokens/s", _of("training", "tokens_per_second"), rounded, True),
    "wall_time": Quantity("training time", _of("training", "wall_seconds"), duration, False),
    "peak_memory": Quantity("peak memory, GiB", _of("training", "peak_memory_gib"), _TWO, False),
    "parameters": Quantity("parameters", _of("model", "parameters"), whole),
    "encoding_parameters": Quantity("of the encoding", _of("model", "encoding_parameters"), whole),
    "steps": Quantity("steps", _of("training", "steps"), whole),
    "tokens": Quantity("tokens", _of("training", "tokens"), whole),
    "mfu": Quantity("MFU", _of("training", "mfu"), "{:.1%}".format, True),
    "passes": Quantity("passes", _of("training", "passes"), _TWO),
    "learning_rate": Quantity("peak rate", _of("recipe", "learning_rate"), "{:g}".format),
    "encoding_rate": Quantity("own parameters", _of("recipe", "encoding_rate"), "× {:g}".format),
}
COLUMNS = ("final_loss", "validation_loss", "tokens_per_second", "peak_memory", "parameters")
"""A table shows these beside perplexities by default."""


def at(quantity: str) -> At | None:
    """Parse ``tempered.ppl@4x``; None for a quantity without a length.

    Raises:
        ValueError: an unknown quantity.
    """
    match = _AT.fullmatch(quantity)
    if match:
        return At(bool(match[1]), match[2], float(match[3]))
    if quantity != "c" and quantity not in QUANTITIES:
        raise unknown("quantity", quantity, [*QUANTITIES, "c", "ppl@4x", "needle@4x"])
    return None


def value(run: RunLike, quantity: str) -> tuple[float | None, str]:
    """Return a run's value, or None and the reason why there is none.

    Raises:
        ValueError: an unknown quantity.
    """
    where = at(quantity)
    if where is None:
        if quantity == "c":
            return _temperature(run)
        return QUANTITIES[quantity].find(run.read()), NOT_RECORDED
    if where.is_perplexity:
        cell = part(run, where.tempered).get("perplexity", {}).get(tokens(run, where.multiple))
        return (None, NOT_EVALUATED) if cell is None else (cell["value"], cell["reason"] or "")
    recorded = answers(run, quantity)
    if recorded is None or recorded.right is None:
        return None, NOT_EVALUATED if recorded is None else recorded.reason
    return sum(recorded.right) / (len(recorded.right) * recorded.samples), ""


def _temperature(run: RunLike) -> tuple[float | None, str]:
    """Return the fitted c, unless the search ended at a bound: that is no fit."""
    tempered = part(run, tempered=True)
    fit = tempered.get("fit")
    if fit is None:
        return None, tempered.get("reason") or NOT_EVALUATED
    low, high = TEMPERATURES
    room = min(fit["value"] - low, high - fit["value"])
    if fit.get("at_bound") or room < 0.02 * (high - low):
        return None, AT_BOUND
    return fit["value"], ""


def part(run: RunLike, tempered: bool) -> dict[str, Any]:
    """Return the evaluation of the model as trained, or with the fitted temperature."""
    evaluation = run.evaluation() or {}
    return (evaluation.get("tempered") or {}) if tempered else evaluation


def tokens(run: RunLike, multiple: float) -> str:
    """Return the key of a length in a run's record."""
    return str(round(multiple * run.read()["recipe"]["context_length"]))


def trained_length(runs: Iterable[RunLike]) -> int:
    """Return the shortest training length of these runs, in tokens; 0 without runs."""
    return min((run.read()["recipe"]["context_length"] for run in runs), default=0)


def rescaled(quantity: str, run: RunLike, length: int) -> str:
    """Convert multiples of ``length`` tokens to multiples of the run's training length."""
    where = at(quantity)
    own = run.read()["recipe"]["context_length"]
    return str(where._replace(multiple=where.multiple * length / own)) if where else quantity


def vocabulary(run: RunLike) -> int:
    """Return the size of the vocabulary. A perplexity above it is worse than guessing."""
    return int(run.read()["recipe"]["vocab_size"])


def answers(run: RunLike, quantity: str) -> Answers | None:
    """Return the recorded answers in a retrieval task at a multiple of the training length."""
    where = at(quantity)
    assert where is not None
    length = tokens(run, where.multiple)
    for name in ("needles", "retrieval"):
        retrieval = part(run, where.tempered).get(name) or {"tasks": {}}
        cell = retrieval["tasks"].get(where.kind, {}).get(length)
        if cell and name == "needles":
            right = None if cell["prompts"] is None else [int(hit) for hit in cell["prompts"]]
            depths = _earliest(where.kind, retrieval["seed"], retrieval["count"])
            return Answers(depths, 1, right, cell["reason"] or "")
        if cell:
            return Answers(
                retrieval["depths"], retrieval["samples"], cell["exact"], cell["reason"] or ""
            )
    return None


@functools.cache
def _earliest(task: str, seed: int, count: int) -> list[float]:
    from pe.data.needles import NEEDLE_TASKS

    return NEEDLE_TASKS[task].earliest(seed, count)


def windows(run: RunLike, quantity: str) -> list[float]:
    """Return the loss of each window in nats, for a perplexity.

    Raises:
        ValueError: they are not recorded.
    """
    losses = recorded_windows(run, quantity)
    if losses is None:
        raise ValueError(f"{run.name} has no losses by window for {quantity}")
    return losses


def recorded_windows(run: RunLike, quantity: str) -> list[float] | None:
    """Return the loss of each window in nats, for a perplexity; None if it is not recorded."""
    where = at(quantity)
    assert where is not None
    cell = part(run, where.tempered).get("perplexity", {}).get(tokens(run, where.multiple))
    return list(cell["window_nll"]) if cell and cell["window_nll"] is not None else None


def multiples(runs: Iterable[RunLike]) -> list[str]:
    """Return the evaluated lengths as multiples of the training length: ``["1x", "2x", ...]``."""
    numbers: set[float] = set()
    for run in runs:
        trained = run.read()["recipe"]["context_length"]
        numbers |= {length / trained for length in (run.evaluation() or {"lengths": []})["lengths"]}
    return [f"{multiple:g}x" for multiple in sorted(numbers)]


def expand(columns: Sequence[str], runs: Sequence[RunLike]) -> list[str]:
    """Return ``needle@1x``, ``needle@2x`` ... for ``needle``, one for every evaluated length."""
    names, expanded = multiples(runs), []
    for column in columns:
        by_length = [f"{column}@{name}" for name in names if _AT.fullmatch(f"{column}@{name}")]
        expanded += by_length or [column]
    return expanded


def title(quantity: str) -> str:
    """Return a column's heading: ``4×`` for ``ppl@4x``."""
    where = at(quantity)
    if where:
        return f"{where.multiple:g}×"
    return quantity if quantity == "c" else QUANTITIES[quantity].title


def titles(names: Sequence[str], length: int | None = None) -> list[str]:
    """Return headings: ``4×``, ``multikey 4×`` beside another task, ``4,096`` with the length."""
    places = [at(name) for name in names]
    several = len({(place.tempered, place.kind) for place in places if place}) > 1
    headings = []
    for name, place in zip(names, places, strict=True):
        text = whole(place.multiple * length) if place and length else title(name)
        if place and several:
            kind = "perplexity" if place.is_perplexity else place.kind
            text = f"{'fitted ' if place.tempered else ''}{kind} {text}"
        headings.append(text)
    return headings


def write(number: float, quantity: str, limit: int | None = None) -> str:
    """Write one value of a quantity. ``limit`` is the vocabulary's size, for perplexities."""
    where = at(quantity)
    if where is None:
        return _TWO(number) if quantity == "c" else QUANTITIES[quantity].write(number)
    if where.is_share:
        return share(number)
    assert limit is not None
    return perplexity(number, limit)
