"""Nothing is remembered from one call to the next."""

from __future__ import annotations

import torch

from pe.conformance.law import Measure, law
from pe.conformance.subject import Subject, attended, inputs, same_draw, tokens


@law
def memory(subject: Subject, measure: Measure) -> None:
    """Short, long, short: the third call gives what the first gave."""
    enc = subject.build()
    lengths = subject.lengths(1, subject.length // 2, subject.length, 4 * subject.length)
    short, long = lengths[min(1, len(lengths) - 1)], lengths[-1]
    near, far = torch.arange(short), torch.arange(long)
    first = attended(enc, inputs(short), near)
    embedded = enc.embed(inputs(short).x, near)
    held = {key: value.clone() for key, value in enc.state_dict(keep_vars=False).items()}
    held |= {key: value.clone() for key, value in enc.named_buffers()}
    attended(enc, inputs(long), far)
    enc.embed(inputs(long).x, far)
    measure.equal("attention", attended(enc, inputs(short), near), first)
    measure.equal("embeddings", enc.embed(inputs(short).x, near), embedded)
    now = dict(enc.state_dict()) | dict(enc.named_buffers())
    for key, value in held.items():
        measure.equal(key, now[key], value)
    model = subject.model()
    with torch.no_grad():
        results = []
        for length in (short, long, short):
            with same_draw():
                results.append(model(tokens(1, length), use_cache=False).logits)
    measure.equal("logits", results[2], results[0])
