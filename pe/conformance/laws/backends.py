"""Every fast path computes what the dense float32 definition does, forward and backward (C9)."""

from __future__ import annotations

import torch

from pe.attention import BACKENDS
from pe.conformance.law import Measure, law
from pe.conformance.subject import Inputs, Subject, attended, inputs, learned


@law
def backends(subject: Subject, measure: Measure) -> None:
    """Each attention backend equals the dense one, forward and backward."""
    enc, length = subject.build(), subject.lengths(1, 15, 33)[-1]
    positions = torch.arange(length)
    own = learned(enc)
    for queries in (length, min(3, length)):
        results = []
        for backend in ("dense", *(name for name in BACKENDS if name != "dense")):
            given = Inputs(*(x.requires_grad_() for x in inputs(length)))
            out = attended(enc, given.last(queries), positions, positions[-queries:], backend)
            wanted = {"queries": given.q, "keys": given.k, "values": given.v, "input": given.x}
            direction = torch.linspace(-1, 1, out.numel()).view(out.shape)
            slopes = torch.autograd.grad(
                (out * direction).sum(), [*wanted.values(), *own.values()], allow_unused=True
            )
            results.append((backend, out, dict(zip((*wanted, *own), slopes, strict=True))))
        (_, want, gradients), *others = results
        for backend, out, found in others:
            measure.close(backend, out, want, 2e-5, 1e-4)
            for name, gradient in gradients.items():
                if gradient is not None:
                    got = found[name]
                    got = torch.zeros_like(gradient) if got is None else got
                    measure.close(f"{backend}, gradient of {name}", got, gradient, 2e-4, 1e-3)
