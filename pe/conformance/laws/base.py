"""A method that extends by a factor is, at factor 1, the method that it extends."""

from __future__ import annotations

from typing import Any

import torch

from pe.conformance.law import Measure, NotPromised, law
from pe.conformance.subject import Subject, inputs, scores
from pe.encodings import FrequencyTransform
from pe.encodings.core.registry import options_of, part_classes, takes

NEUTRAL: dict[str, Any] = {"factor": 1.0, "alpha": 1.0}


@law
def base(subject: Subject, measure: Measure) -> None:
    """With factor 1 it equals the method it extends, up to the length L."""
    tried = 0
    given, positions = inputs(subject.length), torch.arange(subject.length)
    for name, part in subject.parts.items():
        if not issubclass(part, FrequencyTransform):
            continue
        extended = _without(subject, name)
        for option in (o for o in NEUTRAL if takes(part, o)):
            tried += 1
            # Its other options are left at their defaults: one may ask for something at factor 1.
            neutral = Subject(subject.spec, extended.options | {option: NEUTRAL[option]}).enc
            measure.close(f"{name} with {option}={NEUTRAL[option]}",
                          scores(neutral, given, positions),
                          scores(extended.enc, given, positions), 1e-6, 1e-6)  # fmt: skip
    if not tried:
        raise NotPromised("no part extends by a factor")


def _without(subject: Subject, name: str) -> Subject:
    """The same spec less one transform, and less the options that only it took."""
    kept = [n for n in subject.spec.split("+") if n.strip() != name]
    rotary = kept and any(takes(c, "transforms") for c in part_classes("+".join(kept)).values())
    if not rotary:
        kept.insert(0, "rope")  # which the transform had brought
    spec = "+".join(kept)
    known = {option for part in part_classes(spec).values() for option in options_of(part)}
    options = {key: value for key, value in subject.options.items() if key in known}
    return Subject(spec, options | {"original_length": subject.length})
