"""A bias that says what it is made of says the same both times."""

from __future__ import annotations

import torch

from pe.conformance.law import Measure, NotPromised, law
from pe.conformance.subject import Subject, inputs
from pe.encodings.core.forms import NONE, matrix


@law
def form(subject: Subject, measure: Measure) -> None:
    """What kernels make a bias of is the bias, up to what softmax forgets."""
    enc, length = subject.build(), subject.lengths(1, 15, 33, 140)[-1]
    if not enc.biased or not enc.has_form:
        raise NotPromised("it has no bias, or only a matrix")
    if enc.random:
        raise NotPromised("its tokens do not stand where they are counted")
    given, positions = inputs(length), torch.arange(length)
    state = enc.key_state(given.x)
    made = enc.bias_form(length, positions.device, state)
    if made.kind == NONE:
        raise NotPromised("it has no bias")
    want = enc.bias(given.q, given.k, positions, positions, state)
    assert want is not None
    got = matrix(made, length, given.q, given.k).expand_as(want)
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    got, want = (
        (x - x.diagonal(dim1=-2, dim2=-1)[..., None]).masked_fill(~seen, 0.0) for x in (got, want)
    )
    # FIRE is read between knots; what that may cost is shown in pe.encodings.core.forms.
    measure.close("bias", got, want, 2e-4, 1e-4)
