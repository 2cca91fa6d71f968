"""A saved model is the same model, in float32 and in bfloat16 (A7)."""

from __future__ import annotations

import tempfile

import torch

from pe.conformance.law import Measure, law
from pe.conformance.subject import Subject, same_draw, tokens


@law
def saving(subject: Subject, measure: Measure) -> None:
    """save_pretrained and from_pretrained change no logit, also in bfloat16."""
    from transformers import AutoModelForCausalLM

    from pe._quiet import quiet_libraries

    model = subject.model()
    ids = tokens(2, subject.lengths(1, 2 * subject.length)[-1])
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), quiet_libraries():
        model.save_pretrained(folder)
        for dtype in (torch.float32, torch.bfloat16):
            again = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
            with same_draw():
                want = model.to(dtype)(ids, use_cache=False).logits
            with same_draw():
                measure.equal(f"logits, {dtype}", again(ids, use_cache=False).logits, want)
