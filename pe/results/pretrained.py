"""A model that somebody else trained, before and after a change of its encoding, by length.

The baseline is *cutting*: the untouched model reads no more than its training length. A loss is
compared with it on the same windows. A share of prompts has Wilson's 95% interval. Imports no
torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from pe.data.needles import even_depth
from pe.results import intervals
from pe.results.difference import Difference
from pe.results.intervals import Interval
from pe.results.measure import Cell, write
from pe.results.quantities import NOT_RECORDED

Record = Mapping[str, Any]
UNTOUCHED = "untouched"


def trained_length(record: Record) -> int:
    """Return the length that the model was trained at, in tokens."""
    return int(record["host"]["training_length"])


def lengths(record: Record) -> list[int]:
    """Return the lengths that were measured, in tokens."""
    return list(record["settings"]["lengths"])


def beyond(record: Record) -> list[int]:
    """Return the lengths beyond the training length, where cutting a text changes it."""
    return [n for n in lengths(record) if n > trained_length(record)]


def nll(record: Record, variant: str) -> list[float]:
    """Return the loss of the targets at each length, in nats per token; NaN where there is none."""
    cells = record["outcomes"][variant]["perplexity"]
    losses = [cells.get(str(n), {}).get("nll") for n in lengths(record)]
    return [math.nan if loss is None else loss for loss in losses]


def cut(record: Record) -> list[float]:
    """Return the untouched model's loss if it reads no more than its training length."""
    untouched = dict(zip(lengths(record), nll(record, UNTOUCHED), strict=True))
    return [untouched.get(_read(record, n), math.nan) for n in lengths(record)]


def _read(record: Record, length: int) -> int:
    """Return the longest measured length that is left of a text after cutting it."""
    return max((n for n in lengths(record) if n <= min(length, trained_length(record))), default=0)


def added(record: Record, variant: str) -> list[Difference | None]:
    """Return what a variant adds to the loss of the cut text at each length, over the same windows.

    None where a loss is missing, and of the untouched model where nothing is cut.
    """
    differences: list[Difference | None] = []
    base, own = (record["outcomes"][name]["perplexity"] for name in (UNTOUCHED, variant))
    for n in lengths(record):
        read = _read(record, n)
        both = [cells.get(str(at), {}).get("window_nll") for cells, at in ((own, n), (base, read))]
        if None in both or (variant == UNTOUCHED and n == read):
            differences.append(None)
            continue
        gaps = intervals.paired(*both)
        mean, p = intervals.mean_interval(gaps), intervals.p_of_mean(gaps)
        differences.append(Difference("validation_loss", mean.value, mean, p, "windows"))
    return differences


def tasks(record: Record) -> list[str]:
    """Return the retrieval tasks that the untouched model was asked."""
    return list((record["outcomes"][UNTOUCHED].get("needles") or {"tasks": {}})["tasks"])


def answers(record: Record, variant: str, task: str, length: int) -> str | None:
    """Return ``1`` for each prompt that was answered and ``0`` for each other, in order."""
    needles = record["outcomes"][variant].get("needles") or {"tasks": {}}
    prompts: str | None = needles["tasks"].get(task, {}).get(str(length), {}).get("prompts")
    return prompts or None


def found(record: Record, variant: str, task: str) -> list[Interval | None]:
    """Return the share of prompts answered at each length; None where there is none."""
    each = [answers(record, variant, task, n) for n in lengths(record)]
    return [intervals.wilson(a.count("1"), len(a)) if a else None for a in each]


def found_beyond(record: Record, variant: str, task: str) -> Interval | None:
    """Return the share of prompts answered, over all lengths beyond that of the training."""
    each = [answers(record, variant, task, n) for n in beyond(record)]
    if not each or None in each:
        return None
    together = "".join(a or "" for a in each)
    return intervals.wilson(together.count("1"), len(together))


def uncut(record: Record, length: int) -> list[bool]:
    """Return for each prompt whether its number lies in the last training length of the text."""
    count = record["settings"]["prompts"]
    first = 1 - trained_length(record) / length
    return [even_depth(index, count) >= first for index in range(count)]


def cut_found(record: Record, task: str) -> list[Interval | None]:
    """Return the share of prompts that the untouched model answers from the end of a cut text.

    It is calculated: the share at the longest length within the training length, times the share of
    prompts whose number lies in that last part. The tokens of question and answer are left out,
    which makes it a little too high. Its interval is that of the first factor; the second is known.
    """
    shares, near = found(record, UNTOUCHED, task), _near(record, task)
    return [
        one
        if n <= trained_length(record)
        else near and intervals.scaled(near, fmean(uncut(record, n)))
        for n, one in zip(lengths(record), shares, strict=True)
    ]


def cut_found_beyond(record: Record, task: str) -> Interval | None:
    """Return `cut_found` over all lengths beyond that of the training."""
    near = _near(record, task)
    inside = [flag for n in beyond(record) for flag in uncut(record, n)]
    return intervals.scaled(near, fmean(inside)) if near and inside else None


def _near(record: Record, task: str) -> Interval | None:
    """Return the share of prompts that the untouched model answers at its training length."""
    shares = dict(zip(lengths(record), found(record, UNTOUCHED, task), strict=True))
    return shares.get(_read(record, trained_length(record)))


def more_than_cut(record: Record, variant: str, task: str) -> list[Difference | None]:
    """Subtract `cut_found` from the share found, at each length beyond training and over all.

    The interval is Newcombe's, of two unrelated shares. None where a share is missing.
    """
    at = [n > trained_length(record) for n in lengths(record)]
    own = [x for x, far in zip(found(record, variant, task), at, strict=True) if far]
    base = [x for x, far in zip(cut_found(record, task), at, strict=True) if far]
    own.append(found_beyond(record, variant, task))
    base.append(cut_found_beyond(record, task))
    gaps = [intervals.newcombe(a, b) if a and b else None for a, b in zip(own, base, strict=True)]
    return [Difference(f"{task}@1x", x.value, x, None, "") if x else None for x in gaps]


def discordant(record: Record, variant: str, task: str) -> tuple[int, int] | None:
    """Count the prompts beyond the training length that only the variant or only cutting answers.

    None where an answer is missing, and unless the untouched model answers every prompt of its
    training length: otherwise it is not known which prompts it would answer in the cut text.
    """
    near = answers(record, UNTOUCHED, task, _read(record, trained_length(record)))
    if near is None or "0" in near:
        return None
    only = other = 0
    for n in beyond(record):
        own = answers(record, variant, task, n)
        if own is None:
            return None
        for right, there in zip(own, uncut(record, n), strict=True):
            only += right == "1" and not there
            other += right == "0" and there
    return only, other


def write_share(interval: Interval | None, between: str = " ") -> str:
    """Write ``73% (43–90)``, or a dash where there is none."""
    cell = Cell(interval.value, interval) if interval else Cell(None, reason=NOT_RECORDED)
    return write(cell, "needle@1x", between)
