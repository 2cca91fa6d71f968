"""Run the laws on an encoding, and report the results to its author."""

from __future__ import annotations

import textwrap
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pe.conformance.laws  # noqa: F401  defines them
from pe._errors import unknown
from pe.conformance.law import LAWS, Broken, Law, Measure, NotApplicable
from pe.conformance.subject import Subject

OK, FAILED, NOT_APPLICABLE = "ok", "FAILED", "not applicable"


class Finding(NamedTuple):
    """The result of one law."""

    law: Law
    result: str
    """`OK`, `FAILED` or `NOT_APPLICABLE`."""
    reason: str
    """Why the result is not `OK`; otherwise empty."""
    error: float
    """The largest error relative to its tolerance ``allowed``."""
    allowed: float
    seconds: float


class Report(NamedTuple):
    """The results of all laws for one encoding."""

    spec: str
    options: dict[str, Any]
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether all laws hold that the traits promise."""
        return all(finding.result != FAILED for finding in self.findings)

    def __str__(self) -> str:
        options = "".join(f" {key}={value!r}" for key, value in self.options.items())
        width = max(len(f.law.name) for f in self.findings)
        lines = [f"{self.spec}{options}", ""]
        for finding in self.findings:
            error = f"{finding.error:.1e} of {finding.allowed:.0e}" if finding.allowed else ""
            beside = finding.reason if finding.result == NOT_APPLICABLE else finding.law.sentence
            shown = f"{finding.law.name:<{width}}  {finding.result:<14}  {error:<16}  {beside}"
            lines.append(f"  {shown}".rstrip())
            if finding.result == FAILED:
                indent = " " * (width + 4)
                lines += textwrap.wrap(finding.reason, 96, initial_indent=indent,
                                       subsequent_indent=indent)  # fmt: skip
        count = {r: sum(f.result == r for f in self.findings) for r in (OK, FAILED, NOT_APPLICABLE)}
        seconds = sum(f.seconds for f in self.findings)
        lines += ["", ", ".join(f"{n} {r}" for r, n in count.items()) + f" ({seconds:.1f} s)"]
        return "\n".join(lines)


def hold(law: Law, subject: Subject) -> Finding:
    """Test one law on one encoding. An exception from the encoding is a finding, not an error."""
    measure, start = Measure(), time.perf_counter()
    result, reason = OK, ""
    try:
        law.test(subject, measure)
    except NotApplicable as promise:
        result, reason = NOT_APPLICABLE, str(promise)
    except Broken as broken:
        result, reason = FAILED, str(broken)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        result, reason = FAILED, f"{type(error).__name__} at {where}: {error}"
    seconds = time.perf_counter() - start
    return Finding(law, result, reason, measure.error, measure.allowed, seconds)


def check_laws(
    spec: str, options: dict[str, Any] | None = None, only: Iterable[str] = ()
) -> Report:
    """Run the laws on an encoding.

    Args:
        spec: a name, a sum of names, or ``module:Class``. options: options of the encoding.
        only: names of laws; by default all are tested.

    Raises:
        ValueError: the encoding cannot be built, or there is no law with this name.
    """
    chosen = list(only) or list(LAWS)
    for name in chosen:
        if name not in LAWS:
            raise unknown("law", name, LAWS)
    subject = Subject(spec, options)
    return Report(spec, subject.options, [hold(LAWS[name], subject) for name in chosen])
