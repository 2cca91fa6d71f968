"""A position that an encoding has nothing for is refused, before it becomes a number (E6)."""

from __future__ import annotations

import torch

from pe.conformance.law import Broken, Measure, NotPromised, law
from pe.conformance.subject import Subject, tokens


@law
def limit(subject: Subject, measure: Measure) -> None:
    """The last position works, and the first one too far raises ValueError."""
    end = subject.enc.max_positions
    if end is None:
        raise NotPromised("any position")
    model = subject.model()
    with torch.no_grad():
        logits = model(tokens(1, 1), position_ids=torch.tensor([end - 1]), use_cache=False).logits
        if not logits.isfinite().all():
            raise Broken(f"position {end - 1} gives logits that are not finite")
        try:
            model(tokens(1, 1), position_ids=torch.tensor([end]), use_cache=False)
        except ValueError:
            return
    raise Broken(f"position {end} is accepted")
