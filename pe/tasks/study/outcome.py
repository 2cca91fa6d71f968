"""Results of a study over tasks, from its records so far. Trains nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pe.results.markdown import pipe
from pe.results.quantities import label
from pe.runs.models import TaskRecord
from pe.tasks.core.base import Task
from pe.tasks.core.registry import about
from pe.tasks.measure import summary
from pe.tasks.measure.record import TaskRun
from pe.tasks.study import TaskStudy

NOT_RUN = "not run"
LEARNED = 0.95
"""A sweep has learned something if a loss is below this share of the loss of uniform guessing."""


@dataclass(frozen=True)
class Outcome:
    """One task of a study: its planned encodings and its records so far."""

    run: TaskRun
    task: Task
    planned: Sequence[str]
    """Encodings, in the order of the study."""
    records: Mapping[str, TaskRecord]
    """The complete records, by encoding."""

    @property
    def key(self) -> str:
        """``copy``, or ``copy@kind=repeat`` with options that differ from their defaults.

        Lengths are not shown.
        """
        more = ",".join(f"{name}={value}" for name, value in _changed(self.task).items())
        return f"{self.task.name}@{more}" if more else self.task.name

    @property
    def title(self) -> str:
        """``Copy``, or ``Copy (kind: repeat)``."""
        more = ", ".join(f"{name}: {value}" for name, value in _changed(self.task).items())
        title = about(self.task.name).title
        return f"{title} ({more})" if more else title

    @property
    def splits(self) -> list[str]:
        """The splits that have scores, "id" first."""
        return [split for split in self.task.splits if split != "train"]

    def one_answer(self) -> bool:
        """Return whether an example asks for one token, so that token and answer are the same."""
        example = self.task.example(0, 0, "id")
        return int((example.targets >= 0).sum()) == 1


def _changed(task: Task) -> dict[str, object]:
    defaults = about(task.name).options
    return {
        name: value
        for name, value in task.model_dump(mode="json").items()
        if not name.endswith("_lengths") and str(value) != str(defaults[name])
    }


def outcomes(study: TaskStudy, folder: Path) -> list[Outcome]:
    """Return all tasks of a study, in its order.

    Args:
        folder: the folder of runs that contains the folder of the study.

    Raises:
        RunError: a record is damaged.
    """
    made = []
    for one in study.tasks:
        experiment = study.experiment(one)
        run = TaskRun(folder / study.study / experiment.name(), experiment)
        planned = one.encodings or study.encodings
        there = {record.pe: record for record in run.encoded() if record.status == "complete"}
        records = {name: there[name] for name in planned if name in there}
        made.append(Outcome(run, experiment.make_task(), planned, records))
    return made


def progress(results: Sequence[Outcome]) -> str:
    """Return a sentence about how many pairs of a task and an encoding are recorded."""
    planned = sum(len(one.planned) for one in results)
    recorded = sum(len(one.records) for one in results)
    if recorded == planned:
        return f"All {planned} pairs of a task and an encoding are recorded."
    return (
        f"{recorded} of the {planned} planned pairs of a task and an encoding are recorded; the "
        f"others say *{NOT_RUN}*."
    )


def solvers(one: Outcome, split: str) -> str:
    """Return a sentence about the encodings with which all, some or no seeds solve a split."""
    count = {pe: summary.solved(record, split) for pe, record in one.records.items()}
    seeds = {pe: len(record.seeds) for pe, record in one.records.items()}
    all_, some, none, no = [], [], [], []
    for pe, solved in count.items():
        if solved is None:
            no.append(label(pe))
        elif solved == seeds[pe]:
            all_.append(label(pe))
        elif solved:
            some.append(f"{label(pe)} ({solved})")
        else:
            none.append(label(pe))
    parts = [
        f"{words} {', '.join(names)}"
        for words, names in (
            ("all seeds solve it with", all_), ("some seeds with", some), ("none with", none),
            ("there are no such positions for", no),
        )
        if names
    ]  # fmt: skip
    where = summary.title(split)
    return f"{where[0].upper()}{where[1:]}: {'; '.join(parts)}." if parts else ""


def unsolved(results: Sequence[Outcome]) -> str:
    """Write a sentence about tasks that no seed of any encoding solves, "" if there are none."""
    names = [
        one.title
        for one in results
        if one.records and not any(summary.solved(record, "id") for record in one.records.values())
    ]
    if not names:
        return ""
    listed = ", ".join(names)
    return f"**Not learned by any seed with any encoding on record**, in this time: {listed}."


def blind(record: TaskRecord) -> bool:
    """Return whether no model of a sweep beat uniform guessing, so that the rate is arbitrary."""
    if record.sweep is None:
        return False
    losses = [answers.loss for own in record.sweep.validation.values() for answers in own]
    least = min((loss for loss in losses if loss is not None), default=math.inf)
    return least > LEARNED * -math.log(record.chance)


def diverged(record: TaskRecord) -> list[int]:
    """Return the seeds whose loss was not a number at the end."""
    return [one.seed for one in summary.at_rate(record) if one.validation.loss is None]


def rate(record: TaskRecord) -> str:
    """Return the best rate, with a note if the sweep is undecided or the rate at an end."""
    words = [f"{end} tried"] if (end := summary.edge(record)) else []
    words += ["sweep undecided"] if blind(record) else []
    return f"{record.best_rate:g}" + (f" ({', '.join(words)})" if words else "")


def steps(record: TaskRecord) -> str:
    """Write how many steps were trained: all, or ``400 of 1,500`` if the training ended early."""
    total = record.settings["steps"]
    return f"{record.solved_after:,} of {total:,}" if record.solved_after else f"{total:,}"


def table(one: Outcome, links: Mapping[str, str]) -> str:
    """Write a row per encoding with its scores, then chance and the trivial strategies in italics.

    Args:
        links: for encodings, Markdown or HTML to show in place of the name.
    """
    single = one.one_answer()
    heads = ["encoding"]
    for split in one.splits:
        where = summary.title(split)
        heads += [f"seeds that solve it {where}", "right tokens, %"]
        heads += [] if single else ["whole answers, %"]
    heads += ["loss in distribution", "rate", "steps"]
    lines = []
    for pe in one.planned:
        record = one.records.get(pe)
        if record is None:
            lines.append([label(pe), NOT_RUN, *[""] * (len(heads) - 2)])
            continue
        line = [links.get(pe, label(pe))]
        for split in one.splits:
            line.append(summary.seeds_that_solve(record, split))
            line.append(summary.share(summary.mean(summary.by_seed(record, split))))
            if not single:
                whole = summary.mean(summary.by_seed(record, split, summary.exact))
                line.append("–" if whole is None else summary.share(whole))
        line.append(summary.nats(summary.mean(summary.by_seed(record, "id", summary.loss))))
        lines.append([*line, rate(record), steps(record)])
    first = next(iter(one.records.values()), None)
    for name, shares in summary.floors(first).items() if first else ():
        line = [f"*{name}*"]
        for split in one.splits:
            line += ["", f"{100 * shares[split]:.1f}"] + ([] if single else [""])
        lines.append([*line, *[""] * 3])
    return pipe(heads, lines)


def matrix(results: Sequence[Outcome], cell_links: Mapping[tuple[str, str], str]) -> str:
    """Write how many seeds solve each task in and out of distribution, encodings by tasks.

    Args:
        cell_links: for tasks and encodings, HTML in which ``{}`` is replaced by the cell's text.
    """
    planned = list(dict.fromkeys(pe for one in results for pe in one.planned))
    lines = []
    for pe in planned:
        line = [label(pe)]
        for one in results:
            record = one.records.get(pe)
            if pe not in one.planned:
                line.append("")
            elif record is None:
                line.append(NOT_RUN)
            else:
                counts = [summary.solved(record, split) for split in one.splits]
                words = ["–" if count is None else str(count) for count in counts]
                text = f"{words[0]} · {'/'.join(words[1:])}"
                line.append(cell_links.get((one.key, pe), "{}").format(text))
        lines.append(line)
    return pipe(["encoding", *(one.title for one in results)], lines)


def of_encodings(results: Sequence[Outcome], own: Sequence[str], beside: Sequence[str]) -> str:
    """Write whole answers and solving seeds in and out of distribution, tasks by encodings.

    Args:
        own: encodings that the table is about. Tasks with no record of them are left out.
        beside: encodings to compare them with.
    """
    shown = [*own, *(pe for pe in beside if pe not in own)]
    heads = ["task"]
    for pe in shown:
        heads += [f"{label(pe)}: whole answers in → out, %", "seeds that solve it"]
    lines = []
    for one in results:
        if not set(own) & one.records.keys():
            continue
        line = [one.title]
        for pe in shown:
            record = one.records.get(pe)
            if record is None:
                line += [NOT_RUN if pe in one.planned else "", ""]
                continue
            means = [
                summary.mean(summary.by_seed(record, split, summary.exact)) for split in one.splits
            ]
            shares = ["–" if value is None else f"{100 * value.value:.0f}" for value in means]
            counts = [summary.solved(record, split) for split in one.splits]
            solved = ["–" if count is None else str(count) for count in counts]
            line += [f"{shares[0]} → {'/'.join(shares[1:])}"]
            line += [f"{solved[0]} → {'/'.join(solved[1:])} of {len(record.seeds)}"]
        lines.append(line)
    return pipe(heads, lines) if lines else ""


DOUBTS = {
    "highest": "The rate is the highest of those tried; a higher one may be better",
    "lowest": "The rate is the lowest of those tried; a lower one may be better",
    "undecided": "No model of the sweep did better than uniform guessing, so the rate is arbitrary",
    "diverged": "The loss of a seed was not a number at the end",
    "trivial": "Not shown to be better than the best trivial strategy, in distribution",
}
"""What `doubts` says of results, in its order."""


def doubts(results: Sequence[Outcome]) -> str:
    """Return a list of doubtful results: rates at an end, divergence, no better than trivial."""
    doubtful: dict[str, dict[str, list[str]]] = {reason: {} for reason in DOUBTS}
    for one in results:
        for pe, record in one.records.items():
            reasons = ["undecided" if blind(record) else summary.edge(record)]
            reasons += ["diverged"] * bool(diverged(record))
            value = summary.mean(summary.by_seed(record, "id"))
            # A trivial strategy that solves the task, such as detecting a token, is no lower bound.
            trivial_shares = (shares["id"] for shares in record.baselines.values())
            best = max((share for share in trivial_shares if share < 1), default=0.0)
            reasons += ["trivial"] * (value is not None and value.low <= best)
            for reason in filter(None, reasons):
                doubtful[reason].setdefault(one.title, []).append(label(pe))
    lines = []
    for reason, by_task in doubtful.items():
        if by_task:
            listed = "; ".join(f"{task}: {', '.join(names)}" for task, names in by_task.items())
            count = sum(map(len, by_task.values()))
            lines.append(f"- **{DOUBTS[reason]}** ({count}): {listed}.")
    return "\n".join(lines)
