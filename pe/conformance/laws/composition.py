"""Together with another encoding: it adds up, or the refusal names both parts."""

from __future__ import annotations

import torch
from torch import Tensor

from pe.conformance.law import Broken, Measure, NotPromised, law
from pe.conformance.subject import Inputs, Subject, inputs, scores, tokens
from pe.encodings import Encoding, list_encodings
from pe.encodings.core.composite import Composite
from pe.encodings.core.registry import lookup, takes

PARTNERS = ("rope", "alibi")


@law
def composition(subject: Subject, measure: Measure) -> None:
    """With RoPE and with ALiBi it adds up, or the refusal names both."""
    partners = [p for p in PARTNERS if p in list_encodings() and p not in subject.parts]
    if not partners:
        raise NotPromised("has both parts already")
    for partner in partners:
        spec = f"{subject.spec}+{partner}"
        # An option that both take goes to both, and need not mean the same: left at its default.
        own = {k: v for k, v in subject.options.items() if not takes(lookup(partner), k)}
        alone, other = Subject(subject.spec, own), Subject(partner)
        try:
            whole = Subject(spec, own)
        except ValueError as refusal:
            named = [n for n in (*subject.spec.split("+"), partner) if n in str(refusal)]
            if partner not in named or len(named) < 2:
                raise Broken(f"{spec}: the refusal does not name both parts: {refusal}") from None
            continue
        whole.enc.load_state_dict(_inside(alone.enc), strict=False)
        length = subject.lengths(1, 12)[-1]
        given, positions = inputs(length), torch.arange(length)
        both = scores(whole.enc, given, positions)
        if not both.isfinite().all():
            raise Broken(f"{spec}: logits are not finite")
        if not subject.enc.random:
            measure.close(spec, both, _added(alone.enc, other.enc, given, positions), 1e-5, 1e-5)
        with torch.no_grad():
            if not whole.model()(tokens(2, length)).logits.isfinite().all():
                raise Broken(f"{spec}: a model's logits are not finite")


def _added(alone: Encoding, other: Encoding, given: Inputs, positions: Tensor) -> Tensor:
    """Logits of the sum, by hand: those of the part that rotates, with the other's hooks on top."""
    first, second = (other, alone) if other.rotates else (alone, other)
    bias = second.bias(given.q, given.k, positions, positions, second.key_state(given.x))
    factor = second.logit_scale(positions)
    logits = scores(first, given, positions)
    if factor is not None:  # RoPE, the first, has no term that must not be multiplied
        logits = logits * factor[..., None]
    return logits if bias is None else logits + bias.tril()


def _inside(alone: Encoding) -> dict[str, Tensor]:
    """Its learned numbers under the names that they have in a sum that begins with it."""
    state = alone.state_dict()
    return state if isinstance(alone, Composite) else {f"parts.0.{k}": v for k, v in state.items()}
