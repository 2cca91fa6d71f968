"""Judge claims by the records. These are the verdicts:

    not testable here     the ledger says why
    not measured yet      a condition needs a value that no record has
    not decided           a difference could be due to chance, or a precondition of the test is
                          not met
    holds                 all conditions are met
    does not hold         no condition is met
    depends               some conditions are met; the verdict names them

A difference counts if zero lies outside the 95% interval of the paired differences over seeds;
perplexities are compared in nats. Shares that are computed without training are compared by
Newcombe's interval of their difference. One seed is enough for a bound, and the verdict then says
that it is one seed; it is not enough for a comparison. Small models of different experiments, which
may differ in steps or sizes, are not compared.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pe.claims.ledger import Claim, Condition, NotTestable
from pe.claims.values import Value, Values
from pe.results.intervals import Interval, mean_interval, newcombe, paired, wilson


class Verdict(StrEnum):
    """The words for the outcome of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    DEPENDS = "depends"
    UNDECIDED = "not decided"
    NOT_MEASURED = "not measured yet"
    NOT_TESTABLE = "not testable here"


class Judged(NamedTuple):
    """A claim with its verdict."""

    claim: Claim
    verdict: Verdict
    why: str
    """Which conditions are met, or what is missing."""
    numbers: str
    """Our numbers, in words."""
    records: list[str]
    """Folders below the folder of runs."""


class _Outcome(NamedTuple):
    """A condition that was judged."""

    met: bool | None
    """None where the difference could be chance."""
    numbers: str
    values: list[Value]


def judge(claim: Claim, values: Values) -> Judged:
    """Look up what the claim needs and compare.

    Raises:
        RunError: a record is damaged. ValueError: an address that no record can have.
    """
    if isinstance(claim.test, NotTestable):
        return Judged(claim, Verdict.NOT_TESTABLE, claim.test.why, "", [])
    conditions = [*claim.given, *claim.test]
    looked_up = {key: values(key) for condition in conditions for key in condition.keys}
    there = {key: value for key, value in looked_up.items() if value is not None}
    missing = [key for key in looked_up if key not in there]
    if missing:
        return Judged(claim, Verdict.NOT_MEASURED, f"no record of {', '.join(missing)}", "", [])
    judged = [(condition, _judge(condition, there)) for condition in conditions]
    given, outcomes = judged[: len(claim.given)], judged[len(claim.given) :]
    used = [value for _, outcome in judged for value in outcome.values]
    numbers = "; ".join(dict.fromkeys(f"{c.say}: {o.numbers}" for c, o in judged))
    if any(len(value.by_seed) == 1 and value.samples is None for value in used):
        numbers += " (one seed)"
    verdict, why = _sum_up(outcomes)
    lacking = [condition.say for condition, outcome in given if not outcome.met]
    if lacking:
        verdict, why = Verdict.UNDECIDED, f"a precondition is not met: {'; '.join(lacking)}"
    return Judged(claim, verdict, why, numbers, list(dict.fromkeys(v.where for v in used)))


def _sum_up(outcomes: list[tuple[Condition, _Outcome]]) -> tuple[Verdict, str]:
    open_ = [c.say for c, o in outcomes if o.met is None]
    if open_:
        return Verdict.UNDECIDED, f"could be chance: {'; '.join(open_)}"
    met, unmet = ([c.say for c, o in outcomes if o.met is state] for state in (True, False))
    if not unmet:
        return Verdict.HOLDS, ""
    if not met:
        return Verdict.FAILS, ""
    return Verdict.DEPENDS, f"met: {'; '.join(met)}. Not met: {'; '.join(unmet)}"


def _judge(condition: Condition, there: dict[str, Value]) -> _Outcome:
    value = there[condition.value]
    if condition.above is not None:
        value, other = _paired(value, there[condition.above])
        numbers = f"{_text(value.mean)} against {_text(other.mean)}"
        if condition.value.startswith("tasks:") and value.where != other.where:
            return _Outcome(None, f"{numbers}, of different experiments", [value, other])
        return _Outcome(_above(value, other), numbers, [value, other])
    mean, used, numbers = value.mean, [value], _text(value.mean)
    if condition.over is not None:
        value, below = _paired(value, there[condition.over])
        mean, used = value.mean / below.mean, [value, below]
        numbers = f"{_text(value.mean)} / {_text(below.mean)} = {_text(mean)}"
    if condition.at_least is not None:
        return _Outcome(mean >= condition.at_least, numbers, used)
    assert condition.at_most is not None
    return _Outcome(mean <= condition.at_most, numbers, used)


def _paired(value: Value, other: Value) -> tuple[Value, Value]:
    """Return both on the seeds that they share, if any: one seed differs from the next."""
    seeds = value.by_seed.keys() & other.by_seed.keys()
    return (value.of(seeds), other.of(seeds)) if seeds else (value, other)


def _above(value: Value, other: Value) -> bool | None:
    """Return whether a value is larger, seed by seed; None where that could be chance."""
    if value.samples is not None and other.samples is not None:
        interval = newcombe(_share(value.mean, value.samples), _share(other.mean, other.samples))
    else:
        seeds = sorted(value.by_seed.keys() & other.by_seed.keys())
        if len(seeds) < 2:
            return None
        one, two = ([x.scale(x.by_seed[s]) for s in seeds] for x in (value, other))
        interval = mean_interval(paired(one, two))
    if interval.low > 0:
        return True
    return False if interval.high < 0 else None


def _share(mean: float, samples: int) -> Interval:
    return wilson(round(mean * samples), samples)


def _text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
