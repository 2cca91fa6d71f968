"""Laws about causality, decoding with a cache, padding, and repeated calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pe.conformance.law import Measure, NotApplicable, law
from pe.conformance.subject import Subject, attended, inputs, same_draw, tokens

if TYPE_CHECKING:
    from pe.model import PEForCausalLM


@law
def future(subject: Subject, measure: Measure) -> None:
    """Changing a token changes no output before it."""
    length = subject.lengths(2, 12)[-1]
    changed = length // 2
    case, other = inputs(length), inputs(length, seed=40)
    for x, y, axis in zip(case, other, (2, 2, 2, 1), strict=True):
        y.narrow(axis, 0, changed).copy_(x.narrow(axis, 0, changed))
    positions = torch.arange(length)
    before = attended(subject.enc, case, positions)[:, :, :changed]
    after = attended(subject.enc, other, positions)[:, :, :changed]
    measure.close(f"outputs before token {changed}", after, before, 1e-6, 1e-6)


@law
def decode(subject: Subject, measure: Measure) -> None:
    """The last queries alone give the last outputs of all, at lengths around L."""
    n = subject.length
    for length in subject.lengths(n - 1, n, n + 1, 2 * n):
        case, positions = inputs(length), torch.arange(length)
        whole = attended(subject.enc, case, positions)
        for queries in (1, 3):
            step = attended(subject.enc, case.last(queries), positions, positions[-queries:])
            measure.close(f"{queries} of {length} tokens", step, whole[:, :, -queries:],
                          1e-5, 1e-5)  # fmt: skip


# huggingface/transformers#25104 (dynamic NTK), #33129 (LongRoPE), ml-explore/mlx-lm#1396.
@law
def cache(subject: Subject, measure: Measure) -> None:
    """Step by step through a cache equals all at once, at L-1, L, L+1, 2L."""
    if subject.enc.random:
        raise NotApplicable("positions are drawn in each call")
    n = subject.length
    lengths = subject.lengths(1, n - 1, n, n + 1, 2 * n)
    longest = lengths[-1]
    model, ids = subject.cached_model, tokens(2, longest)
    plans = [_single_steps(n, longest), [min(7, longest), *[1] * 3, longest], [longest - 1, 1]]
    with torch.no_grad():
        whole = {m: model(ids[:, :m], use_cache=False).logits for m in lengths}
        for plan in plans:
            steps = stepwise(model, ids, plan)
            for m in lengths:
                if not subject.enc.length_dependent:
                    measure.close(f"{m} tokens", steps[:, :m], whole[m], 2e-4, 1e-4)
                elif m in _ends(plan, longest):
                    measure.close(f"{m} tokens", steps[:, m - 1], whole[m][:, -1], 2e-4, 1e-4)


def _single_steps(n: int, longest: int) -> list[int]:
    """Single tokens at the beginning, around the length n and at the end, and chunks between."""
    ends = {*range(1, 27), *range(n - 2, n + 3), *range(longest - 2, longest + 1)}
    kept = sorted(end for end in ends if 0 < end <= longest)
    return [end - start for start, end in zip([0, *kept], kept, strict=False)]


def stepwise(
    model: PEForCausalLM, ids: Tensor, plan: list[int], mask: Tensor | None = None
) -> Tensor:
    """Return the logits of all tokens, which are fed to one cache in chunks of these sizes."""
    from transformers import DynamicCache

    held, logits, start = DynamicCache(), [], 0
    for end in _ends(plan, ids.shape[1]):
        seen = None if mask is None else mask[:, :end]
        out = model(ids[:, start:end], past_key_values=held, attention_mask=seen)
        logits.append(out.logits)
        start = end
    return torch.cat(logits, 1)


def _ends(plan: list[int], longest: int) -> list[int]:
    """Return the ends of the chunks. Chunks are cut off at the length ``longest``."""
    ends: list[int] = []
    for size in plan:
        end = min((ends[-1] if ends else 0) + size, longest)
        if size and (not ends or end > ends[-1]):
            ends.append(end)
    return ends


# unslothai/unsloth#3699 (whole), ml-explore/mlx-lm#1906 (decoding).
@law
def padding(subject: Subject, measure: Measure) -> None:
    """A left-padded sequence equals the sequence alone, also while decoding."""
    if subject.enc.random:
        raise NotApplicable("positions are drawn in each call")
    longest = subject.lengths(2, 2 * subject.length)[-1]
    short = min(9, longest - 1)
    mask = torch.ones(2, longest, dtype=torch.bool)
    mask[0, : longest - short] = False
    compare_with_alone(subject, measure, mask, prompt=longest - short // 2)


@torch.no_grad()
def compare_with_alone(subject: Subject, measure: Measure, mask: Tensor, prompt: int) -> None:
    """Compare sequences with hidden tokens, whole and decoded, with their visible tokens alone.

    Where logits depend on the length of the sequence, each length from ``prompt`` on is compared.
    """
    model, ids, length = subject.cached_model, tokens(*mask.shape), mask.shape[1]
    steps = stepwise(model, ids, [prompt] + [1] * (length - prompt), mask.long())
    grows = subject.enc.length_dependent
    for end in range(prompt, length + 1) if grows else sorted({prompt, length}):
        whole = model(ids[:, :end], attention_mask=mask[:, :end].long(), use_cache=False).logits
        for row, shown in enumerate(mask[:, :end]):
            alone = model(ids[row, :end][shown][None], use_cache=False).logits[0]
            measure.close(f"row {row}", whole[row, shown], alone, 2e-4, 1e-4)
            if not grows:
                measure.close(f"row {row}, decoded", steps[row, :end][shown], alone, 2e-4, 1e-4)
            elif shown[-1]:
                decoded = f"row {row}, decoded up to token {end}"
                measure.close(decoded, steps[row, end - 1], alone[-1], 2e-4, 1e-4)


@law
def memory(subject: Subject, measure: Measure) -> None:
    """A long call between two equal short ones changes nothing."""
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
