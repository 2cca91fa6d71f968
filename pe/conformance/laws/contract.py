"""Shapes, types and traits: what each hook gives back is what the others rely on."""

from __future__ import annotations

import torch

from pe.conformance.law import Broken, Measure, law
from pe.conformance.subject import SIZES, Subject, inputs, same_draw


@law
def contract(subject: Subject, measure: Measure) -> None:
    """Hooks keep shapes and types, and the traits say what the hooks do."""
    enc, length = subject.enc, subject.lengths(1, 9)[-1]
    positions = torch.arange(length)
    for dtype in (torch.float32, torch.bfloat16):
        given = inputs(length).to(dtype)
        with same_draw():
            where = enc.prepare(positions, positions, dtype)
        embedded = enc.embed(given.x, where.q_positions)
        if embedded.shape != given.x.shape or embedded.dtype != dtype:
            raise Broken(f"embed gives {embedded.dtype} {tuple(embedded.shape)} for {dtype} "
                         f"{tuple(given.x.shape)}")  # fmt: skip
        q, k = enc.rotate(given.q, given.k, where.q_positions, where.k_positions, where.tables)
        if (q.dtype, k.dtype) != (dtype, dtype):
            raise Broken(f"rotate gives {q.dtype} and {k.dtype} for {dtype}")
        if q.shape[:-1] != given.q.shape[:-1] or k.shape[:-1] != given.k.shape[:-1]:
            raise Broken(f"rotate gives {tuple(q.shape)} and {tuple(k.shape)}")
        if q.shape[-1] != k.shape[-1]:
            raise Broken(f"rotate gives queries {q.shape[-1]} wide and keys {k.shape[-1]} wide")
        state = enc.key_state(given.x)
        if state is not None and (
            state.dtype != torch.float32 or state.shape[:3] != (2, SIZES["num_heads"], length)
        ):
            raise Broken(f"key_state gives {state.dtype} {tuple(state.shape)}, "
                         "expected float32 (B, H, T, S)")  # fmt: skip
        bias = enc.bias(given.q, given.k, where.q_positions, where.k_positions, state)
        if bias is not None:
            if bias.dtype != torch.float32:
                raise Broken(f"bias gives {bias.dtype} for {dtype}, expected float32")
            bias.expand(2, SIZES["num_heads"], length, length)
        factor = enc.logit_scale(where.q_positions)
        if factor is not None:
            factor.expand(2, SIZES["num_heads"], length)
    if not torch.equal(embedded, given.x) and not enc.embeds:
        raise Broken("embed changes the embeddings, and the trait `embeds` is False")
    moved = not (torch.equal(q, given.q) and torch.equal(k, given.k))
    if moved and not enc.rotates:
        raise Broken("rotate changes queries or keys, and the trait `rotates` is False: "
                     "the encoding would be combined with another one that rotates")  # fmt: skip
