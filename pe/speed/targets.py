"""What was aimed at on one H100, and whether a record reaches it. Imports no torch at the top.

A training step of the 34 M model, 65,536 tokens, compiled, at 1,024 and at 16,384 tokens. With as
many tokens in every step, memory that grows linearly with the length is the same at both. An H200
has the H100's processors and faster memory, so its records are judged too, and named; those of
other cards, sizes or settings are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pe.speed.families import title
from pe.speed.plan import MAIN, library
from pe.speed.record import MISSING, TIME_UP, Speed

REACHED, NOT_REACHED, NOT_MEASURED = "reached", "not reached", "not measured"
SO_FAR = "reached where measured"
SAME_MEMORY = 1.25
"""A T × T tensor would make it sixteen times as much; blocks and batches make some difference."""
CARDS = ("H100", "H200")
SIZES = (290e6, 360e6)
"""What counts as a model of about 320 M parameters."""


class Verdict(NamedTuple):
    """Whether a target was reached, and by how much or by whom not."""

    word: str
    detail: str = ""

    def __str__(self) -> str:
        return self.word + (f": {self.detail}" if self.detail else "")


class Target(NamedTuple):
    """A goal for some systems at one or both lengths."""

    title: str
    goal: dict[int, str]
    """The goal in words, by length."""
    verdict: Callable[[Sequence[Speed], int], Verdict]


def all_targets() -> list[Target]:
    """The goals of the project, in the order in which it set them."""
    return [
        _rates("NoPE, RoPE and all that change its frequencies", {1024: 1.75e6, 16384: 0.70e6}),
        _ratios("alibi kerple_log kerple_power sandwich t5", 0.95, 0.90),
        _ratios("pope xpos fope", 0.92, 0.80),
        _ratios("fire fox", 0.92, 0.85),
        _ratios("cope", 0.50, 0.35),
        Target(
            "Memory grows linearly with the length, for every encoding",
            {16384: f"at most {SAME_MEMORY:g} of that at 1,024 tokens"},
            _memory,
        ),
        Target("RoPE with about 320 M parameters", {1024: "at least 50% MFU"}, _large),
    ]


def judged(speeds: Sequence[Speed]) -> Speed | None:
    """The newest record that the targets speak of."""
    fit = [
        s
        for s in speeds
        if _on_hopper(s)
        and s.settings["recipe"] == "tiny"
        and s.settings["tokens"] == 65_536
        and s.settings["compiled"]
        and not s.settings.get("deterministic")
    ]
    return max(fit, key=lambda s: s.record["sessions"][0]["created"], default=None)


def _on_hopper(speed: Speed) -> bool:
    return speed.on_gpu and any(card in speed.hardware["name"] for card in CARDS)


def _rates(name: str, goals: dict[int, float]) -> Target:
    def verdict(speeds: Sequence[Speed], length: int) -> Verdict:
        def value(speed: Speed, system: str) -> float | None:
            return speed.result(system, "train", length).tokens_per_second

        return _each(speeds, _plain(), length, value, goals[length], lambda x: f"{x / 1e6:.3f} M")

    words = {n: f"at least {x / 1e6:.2f} M tokens/s" for n, x in goals.items()}
    return Target(name, words, verdict)


def _ratios(names: str, *least: float) -> Target:
    systems = names.split()
    goals = dict(zip(MAIN, least, strict=True))

    def verdict(speeds: Sequence[Speed], length: int) -> Verdict:
        def value(speed: Speed, system: str) -> float | None:
            return speed.ratio(system, "train", length)

        return _each(speeds, systems, length, value, goals[length], "{:.3f}".format)

    words = {n: f"at least {x:.2f} of NoPE" for n, x in goals.items()}
    return Target(", ".join(title(system) for system in systems), words, verdict)


def _plain() -> list[str]:
    from pe.speed.families import FAMILIES
    from pe.speed.plan import same_graph_as_rope

    rotations = FAMILIES["rotation"].members
    return ["nope", "rope", *(s for s in rotations if same_graph_as_rope(s))]


def _each(
    speeds: Sequence[Speed],
    systems: Sequence[str],
    length: int,
    value: Callable[[Speed, str], float | None],
    goal: float,
    write: Callable[[float], str],
) -> Verdict:
    """The verdict over systems of which each has to reach the goal."""
    speed = judged(speeds)
    if speed is None:
        return Verdict(NOT_MEASURED)
    found = {system: value(speed, system) for system in systems}
    values = {system: x for system, x in found.items() if x is not None}
    missed = [f"{title(s)} {write(x)}" for s, x in values.items() if x < goal]
    absent = []
    for system in (s for s, x in found.items() if x is None):
        reason = speed.result(system, "train", length).reason
        if reason in (None, MISSING, TIME_UP):
            absent.append(title(system))
        else:  # it was tried, and could not be done
            missed.append(f"{title(system)} ({short(reason)})")
    tail = f"; not measured: {', '.join(absent)}" if absent else ""
    if missed:
        return Verdict(NOT_REACHED, ", ".join(missed) + tail)
    if not values:
        return Verdict(NOT_MEASURED)
    least = min(values, key=lambda s: values[s])
    word = SO_FAR if absent else REACHED
    return Verdict(word, f"least {write(values[least])} ({title(least)})" + tail)


def _memory(speeds: Sequence[Speed], length: int) -> Verdict:
    speed = judged(speeds)
    if speed is None:
        return Verdict(NOT_MEASURED)
    growth, missed = {}, []
    for system in (s for s in speed.systems("train") if not library(s)):
        short_one, long_one = (speed.result(system, "train", n) for n in MAIN)
        before, after = short_one["peak_memory_gib"], long_one["peak_memory_gib"]
        if before and after:
            growth[system] = after / before
        elif before and long_one.reason not in (MISSING, TIME_UP):
            missed.append(f"{title(system)} ({short(str(long_one.reason))})")
    missed += [f"{title(s)} {x:.1f}" for s, x in growth.items() if x > SAME_MEMORY]
    if missed:
        return Verdict(NOT_REACHED, ", ".join(missed))
    if not growth:
        return Verdict(NOT_MEASURED)
    most = max(growth, key=lambda s: growth[s])
    detail = f"most {growth[most]:.2f} ({title(most)}), of {len(growth)} measured"
    return Verdict(REACHED, detail)


def _large(speeds: Sequence[Speed], length: int) -> Verdict:
    best = None
    for speed in (s for s in speeds if _on_hopper(s)):
        result = speed.result("rope", "train", length)
        if result["mfu"] is not None and SIZES[0] <= result["parameters"] <= SIZES[1]:
            best = max(best or 0.0, result["mfu"])
    if best is None:
        return Verdict(NOT_MEASURED)
    return Verdict(REACHED if best >= 0.5 else NOT_REACHED, f"{best:.1%}")


def short(reason: str) -> str:
    """A reason for a narrow cell."""
    if reason in (MISSING, TIME_UP):
        return NOT_MEASURED
    for word in ("out of memory", "failed"):
        if reason.startswith(word):
            return word
    return "refused"
