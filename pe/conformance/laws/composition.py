"""Together with another encoding: it adds up, or the refusal names both parts."""

from __future__ import annotations

import torch
from torch import Tensor

from pe.conformance.law import Broken, Measure, NotPromised, law
from pe.conformance.subject import Subject, inputs, scores, tokens
from pe.encodings import Encoding, list_encodings
from pe.encodings.composite import Composite

PARTNERS = ("rope", "alibi")


@law
def composition(subject: Subject, measure: Measure) -> None:
    """With RoPE and with ALiBi it adds up, or the refusal names both."""
    partners = [p for p in PARTNERS if p in list_encodings() and p not in subject.parts]
    if not partners:
        raise NotPromised("has both parts already")
    for partner in partners:
        spec = f"{subject.spec}+{partner}"
        try:
            whole = subject.build(spec)
        except ValueError as refusal:
            missing = [n for n in (*subject.spec.split("+"), partner) if n in str(refusal)]
            if partner not in missing or len(missing) < 2:
                raise Broken(f"{spec}: the refusal does not name both parts: {refusal}") from None
            continue
        length = subject.lengths(1, 12)[-1]
        given, positions = inputs(length), torch.arange(length)
        both = scores(whole, given, positions)
        if not both.isfinite().all():
            raise Broken(f"{spec}: logits are not finite")
        if not subject.enc.random:
            alone, other = subject.build(), subject.build(partner)
            whole.load_state_dict(_inside(alone), strict=False)
            both = scores(whole, given, positions)
            if other.rotates:
                bias = alone.bias(given.q, given.k, positions, positions, alone.key_state(given.x))
                factor = alone.logit_scale(positions)
                want = scores(other, given, positions)
                want = want if factor is None else want * factor[..., None]
            else:
                bias = other.bias(given.q, given.k, positions, positions)
                want = scores(alone, given, positions)
            want = want if bias is None else want + bias.tril()
            measure.close(spec, both, want, 1e-5, 1e-5)
        model = subject.model(spec)
        with torch.no_grad():
            if not model(tokens(2, length)).logits.isfinite().all():
                raise Broken(f"{spec}: a model's logits are not finite")


def _inside(alone: Encoding) -> dict[str, Tensor]:
    """Its learned numbers under the names that they have in a sum that begins with it."""
    state = alone.state_dict()
    return state if isinstance(alone, Composite) else {f"parts.0.{k}": v for k, v in state.items()}
