"""Values with intervals, and tables, from the records of a task. Imports no torch.

All values are of the models at the encoding's best rate. Intervals are Student's 95% intervals over
seeds; for shares, tables cut them to 0 and 1. One seed has no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pe.results.intervals import Interval, mean_interval
from pe.results.markdown import pipe
from pe.results.quantities import label
from pe.runs.models import TaskAnswers, TaskModel, TaskRecord

SOLVED = 0.95
"""A seed solves a split if at least this share of its tokens is right."""
Quantity = Callable[[TaskAnswers], float | None]


def token(answers: TaskAnswers) -> float:
    """Return the share of right tokens."""
    return answers.tokens_right / answers.tokens


def exact(answers: TaskAnswers) -> float:
    """Return the share of examples in which every token is right."""
    return answers.examples_right / answers.examples


def loss(answers: TaskAnswers) -> float | None:
    """Return the mean cross-entropy in nats per token; None if it is not a number."""
    return answers.loss


def mean(values: Sequence[float | None]) -> Interval | None:
    """Return mean and interval; None if a value is missing or there is none.

    The interval of one seed, whose ``n`` is 1, is the value alone.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    return mean_interval(known) if len(known) > 1 else Interval(known[0], known[0], known[0], 1)


def at_rate(record: TaskRecord, rate: float | None = None) -> list[TaskModel]:
    """Return the models at a learning rate (default: the best), in order of seeds."""
    wanted = record.best_rate if rate is None else rate
    return [model for model in record.models if model.learning_rate == wanted]


def by_seed(record: TaskRecord, split: str, quantity: Quantity = token) -> list[float | None]:
    """Return a quantity of each seed at the best rate; None for a seed without a value."""
    answers = [model.splits[split] for model in at_rate(record)]
    return [None if one is None else quantity(one) for one in answers]


def solved(record: TaskRecord, split: str) -> int | None:
    """Return the number of seeds that solve a split; None if the encoding has no such positions."""
    shares = by_seed(record, split)
    return None if None in shares else sum(1 for s in shares if s is not None and s >= SOLVED)


def seeds_that_solve(record: TaskRecord, split: str) -> str:
    """Write ``8 of 8``, or a dash if the encoding has no such positions."""
    count = solved(record, split)
    return "–" if count is None else f"{count} of {len(record.seeds)}"


def floors(record: TaskRecord) -> dict[str, dict[str, float]]:
    """Return the token accuracy by split of guessing ("chance") and of each trivial strategy."""
    return {"chance": dict.fromkeys(splits(record), record.chance)} | record.baselines


def splits(record: TaskRecord) -> list[str]:
    """Return the splits with scores: "id" and those out of distribution."""
    return list(record.models[0].splits)


def title(split: str) -> str:
    """Return the name of a split in tables."""
    where, _, kind = split.partition("_")
    name = {"id": "in distribution", "ood": "out of distribution"}[where]
    return f"{name}, {kind}" if kind else name


def share(value: Interval | None) -> str:
    """Write mean and interval in percent: ``97.3 (95.1–99.5)``."""
    if value is None:
        return "no such positions"
    text = f"{100 * value.value:.1f}"
    if value.n == 1:
        return text
    low, high = (100 * min(1.0, max(0.0, end)) for end in (value.low, value.high))
    return f"{text} ({low:.1f}–{high:.1f})"


def nats(value: Interval | None) -> str:
    """Write mean and interval of a loss: ``0.123 (0.100–0.146)``."""
    if value is None:
        return "–"
    if value.n == 1:
        return f"{value.value:.3f}"
    return f"{value.value:.3f} ({max(0.0, value.low):.3f}–{value.high:.3f})"


def table(records: Sequence[TaskRecord]) -> str:
    """Return a row per encoding with its scores per split, then chance and trivial strategies."""
    return pipe(*rows(records)) if records else "*Nothing is recorded yet.*"


def rows(records: Sequence[TaskRecord]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of `table`, for one or more records of one experiment."""
    names = splits(records[0])
    several = len(records[0].seeds) > 1
    heads = ["encoding", "rate"]
    for split in names:
        heads += [f"accuracy {title(split)}, %", "exact match, %", "loss"]
        heads += ["seeds that solve it"] * several
    lines = []
    for record in records:
        line = [label(record.pe) + " (stopped)" * (record.status == "stopped")]
        line.append(f"{record.best_rate:g}")
        for split in names:
            line.append(share(mean(by_seed(record, split))))
            line.append(share(mean(by_seed(record, split, exact))))
            line.append(nats(mean(by_seed(record, split, loss))))
            line += [seeds_that_solve(record, split)] * several
        lines.append(line)
    for name, shares in floors(records[0]).items():
        line = [f"*{name}*", ""]
        for split in names:
            line += [f"{100 * shares[split]:.1f}", "", ""] + [""] * several
        lines.append(line)
    return heads, lines


def rates(records: Sequence[TaskRecord]) -> str:
    """Write a table of validation loss and accuracy at each rate, of the sweep if there was one."""
    heads = ["encoding", *(f"rate {rate:g}" for rate in records[0].learning_rates)]
    lines = []
    for record in records:
        line = [label(record.pe)]
        for rate in record.learning_rates:
            swept = record.sweep and record.sweep.validation[f"{rate:g}"]
            answers = swept or [model.validation for model in at_rate(record, rate)]
            value = mean([one.loss for one in answers])
            right = mean([token(one) for one in answers])
            text = f"{nats(value)}; {share(right)}%"
            line.append(f"**{text}**" if rate == record.best_rate else text)
        lines.append(line)
    return pipe(heads, lines)


def edge(record: TaskRecord) -> str:
    """Return ``lowest`` or ``highest`` if the best rate is at this end of those tried, else ""."""
    tried = record.learning_rates
    if len(tried) == 1:
        return ""
    return {min(tried): "lowest", max(tried): "highest"}.get(record.best_rate, "")


def edges(records: Sequence[TaskRecord]) -> str:
    """Write a sentence about encodings whose best rate is the lowest or the highest one tried."""
    there = [label(record.pe) for record in records if edge(record)]
    if not there:
        return ""
    return (
        f"The best rate of {', '.join(there)} is the lowest or the highest that was tried, so "
        "a rate outside of those may be better."
    )
