"""Built without memory and given some later, as large models are loaded (A8)."""

from __future__ import annotations

import torch

from pe.conformance.law import Broken, Measure, law
from pe.conformance.subject import SIZES, Subject, attended, inputs
from pe.encodings import encoding


@law
def meta(subject: Subject, measure: Measure) -> None:
    """Built on the meta device and then loaded, every constant is right."""
    here = subject.build()
    given = {"original_length": subject.length} | SIZES | subject.options
    with torch.device("meta"):
        enc = encoding(subject.spec, **given)
    stray = [name for name, t in enc.named_parameters() if not t.is_meta]
    stray += [name for name, t in enc.named_buffers() if not t.is_meta]
    if stray:
        raise Broken(f"not on the meta device: {', '.join(stray)}")
    enc.eval().to_empty(device="cpu")
    with torch.no_grad():  # memory that nobody wrote holds anything
        for parameter in enc.parameters():
            parameter.fill_(float("nan"))
    enc.reset_parameters(torch.Generator().manual_seed(0))
    for name, parameter in enc.named_parameters():
        if not parameter.isfinite().all():
            raise Broken(f"{name}: reset_parameters does not write all of it")
    enc.load_state_dict(here.state_dict())
    for name, buffer in here.named_buffers():
        measure.equal(name, enc.get_buffer(name), buffer)
    length = subject.lengths(1, 2 * subject.length)[-1]
    positions, case = torch.arange(length), inputs(length)
    measure.equal("attention", attended(enc, case, positions), attended(here, case, positions))
    measure.equal("embeddings", enc.embed(case.x, positions), here.embed(case.x, positions))
