"""Laws about shapes, heads, the sequences of a batch, and sums of encodings."""

from typing import Any

import torch
from torch import Tensor

from pe.conformance.law import Broken, Measure, NotApplicable, law
from pe.conformance.subject import SIZES, Inputs, Subject, hooks, inputs, same_draw, scores, tokens
from pe.encodings import Encoding, FrequencyTransform, list_encodings
from pe.encodings.core.composite import Composite
from pe.encodings.core.options import takes
from pe.encodings.core.parts import part_classes, takes_option
from pe.encodings.core.registry import lookup


@law
def contract(subject: Subject, measure: Measure) -> None:
    """Hooks keep shapes and types, and the traits say what the hooks do."""
    enc, length = subject.enc, subject.lengths(1, 9)[-1]
    positions = torch.arange(length)
    heads = SIZES["num_heads"]
    for dtype in (torch.float32, torch.bfloat16):
        case = inputs(length).to(dtype)
        got = hooks(enc, case, positions)
        embedded, q, k = got["embeddings"], got["queries"], got["keys"]
        types = dict.fromkeys(got, dtype) | {"key state": torch.float32, "bias": torch.float32}
        for name in got.keys() - {"logit scale"}:
            if got[name].dtype != types[name]:
                raise Broken(f"{name} gives {got[name].dtype} for {dtype}, not {types[name]}")
        shapes = {
            "embeddings": case.x.shape, "queries": case.q.shape[:-1], "keys": case.k.shape[:-1],
            "key state": (2, heads, length),
        }  # fmt: skip
        for name in shapes.keys() & got.keys():
            shape, start = tuple(got[name].shape), tuple(shapes[name])
            if shape[: len(start)] != start:
                raise Broken(f"{name}: shape {shape}, expected {start} at its beginning")
        if q.shape[-1] != k.shape[-1]:
            raise Broken(f"rotate gives queries {q.shape[-1]} wide and keys {k.shape[-1]} wide")
        if "bias" in got:
            got["bias"].expand(2, heads, length, length)
        if "logit scale" in got:
            got["logit scale"].expand(2, heads, length)
    if not torch.equal(embedded, case.x) and not enc.embeds:
        raise Broken("embed changes the embeddings, and the trait `embeds` is False")
    moved = not (torch.equal(q, case.q) and torch.equal(k, case.k))
    if moved and not enc.rotates:
        raise Broken("rotate changes queries or keys, and the trait `rotates` is False: "
                     "the encoding would be combined with another one that rotates")  # fmt: skip


# mlfoundations/open_lm#4 rotated along heads; axes mixed up raise no error.
@law
def heads(subject: Subject, measure: Measure) -> None:
    """A head depends on itself alone; equal heads may be exchanged."""
    enc, keys = subject.enc, SIZES["num_kv_heads"]
    if enc.mixes_heads:
        raise NotApplicable("mixes heads")
    group = SIZES["num_heads"] // keys
    # As many tokens as heads, so that exchanged axes raise no error of shape.
    positions = torch.arange(*subject.lengths(1, SIZES["num_heads"])[-1:])
    case, other = inputs(len(positions)), inputs(len(positions), seed=40)
    here = scores(enc, case, positions)
    for g in range(keys):
        mine = slice(g * group, (g + 1) * group)
        mixed = case._replace(q=other.q.clone(), k=other.k.clone())
        mixed.q[:, mine], mixed.k[:, g] = case.q[:, mine], case.k[:, g]
        measure.close(f"key head {g}, others changed", scores(enc, mixed, positions)[:, mine],
                      here[:, mine], 1e-5, 1e-5)  # fmt: skip
    # If all heads with the content of the first give equal logits, heads may be exchanged.
    twins = case._replace(q=case.q[:, :1].expand_as(case.q), k=case.k[:, :1].expand_as(case.k))
    answers = scores(enc, twins, positions)
    if torch.allclose(answers, answers[:, :1].expand_as(answers), atol=1e-6):
        order = torch.arange(keys).flip(0)
        queries = torch.arange(SIZES["num_heads"]).view(keys, group)[order].flatten()
        moved = case._replace(q=case.q[:, queries], k=case.k[:, order])
        measure.close("heads exchanged", scores(enc, moved, positions), here[:, queries],
                      1e-5, 1e-5)  # fmt: skip


@law
def time(subject: Subject, measure: Measure) -> None:
    """The same content is rotated differently at different positions."""
    if not subject.enc.rotates:
        raise NotApplicable("does not rotate")
    positions = torch.arange(SIZES["num_heads"])
    case = inputs(len(positions))
    q = case.q[:, :, :1].expand_as(case.q)
    k = case.k[:, :, :1].expand_as(case.k)
    rotating = 0  # a schedule may leave some layers unrotated
    for enc in subject.layers():
        with same_draw():
            where = enc.prepare(positions, positions)
        rotated = enc.rotate(q, k, where.q_positions, where.k_positions, where.tables)
        if torch.equal(rotated[0], q) and torch.equal(rotated[1], k):
            continue
        rotating += 1
        for name, x in zip(("query", "key"), rotated, strict=True):
            if (x[:, :, 1:] - x[:, :, :1]).abs().amax(-1).min() < 1e-6:
                raise Broken(f"a {name} is rotated by the same angle at two positions")
    if not rotating:
        raise Broken("no layer rotates")


@law
def rows(subject: Subject, measure: Measure) -> None:
    """Positions (B, T) give each sequence what it gets alone."""
    enc, batch = subject.enc, SIZES["num_heads"]  # as many sequences as heads: axes may be mixed up
    if enc.random:
        raise NotApplicable("each sequence has its own draw")
    length = subject.lengths(1, 2, 9)[-1]
    positions = torch.stack([torch.arange(length) + 50 * b for b in range(batch)])
    if enc.max_positions is not None:
        positions = positions.clamp(max=enc.max_positions - 1)
    case = inputs(length, batch=batch)
    whole = scores(enc, case, positions)
    with same_draw():
        embedded = enc.embed(case.x, positions)
    for b in range(batch):
        alone, at = case.rows(slice(b, b + 1)), positions[b]
        here = slice(b, b + 1)
        measure.close(f"sequence {b}", whole[here], scores(enc, alone, at), 1e-5, 1e-5)
        measure.close(f"sequence {b}, embedded", embedded[here], enc.embed(alone.x, at), 1e-6, 1e-6)


NEUTRAL: dict[str, Any] = {"factor": 1.0, "alpha": 1.0}


@law
def base(subject: Subject, measure: Measure) -> None:
    """With factor 1 it equals the method it extends, up to the length L."""
    tried = 0
    case, positions = inputs(subject.length), torch.arange(subject.length)
    for name, part in subject.parts.items():
        if not issubclass(part, FrequencyTransform):
            continue
        extended = _without(subject, name)
        for option in (o for o in NEUTRAL if takes(part, o)):
            tried += 1
            # Other options keep their defaults, because one may have an effect at factor 1.
            neutral = Subject(subject.spec, extended.options | {option: NEUTRAL[option]}).enc
            measure.close(f"{name} with {option}={NEUTRAL[option]}",
                          scores(neutral, case, positions),
                          scores(extended.enc, case, positions), 1e-6, 1e-6)  # fmt: skip
    if not tried:
        raise NotApplicable("no part extends by a factor")


def _without(subject: Subject, name: str) -> Subject:
    """Return the subject without one transform and without the options that only it has."""
    kept = [n for n in subject.spec.split("+") if n.strip() != name]
    rotary = kept and any(takes(c, "transforms") for c in part_classes("+".join(kept)).values())
    if not rotary:
        kept.insert(0, "rope")  # which the transform had added
    spec = "+".join(kept)
    options = {key: v for key, v in subject.options.items() if takes_option(spec, key)}
    return Subject(spec, options | {"original_length": subject.length})


PARTNERS = ("rope", "alibi")


@law
def composition(subject: Subject, measure: Measure) -> None:
    """Added to RoPE and to ALiBi it gives the sum, or the refusal names both."""
    if subject.scheduled:
        raise NotApplicable("a schedule is added to layer by layer")
    partners = [p for p in PARTNERS if p in list_encodings() and p not in subject.parts]
    if not partners:
        raise NotApplicable("has both parts already")
    for partner in partners:
        spec = f"{subject.spec}+{partner}"
        # An option of both parts keeps its default, because it may mean something else in each.
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
        case, positions = inputs(length), torch.arange(length)
        both = scores(whole.enc, case, positions)
        if not both.isfinite().all():
            raise Broken(f"{spec}: logits are not finite")
        if not subject.enc.random:
            measure.close(spec, both, _added(alone.enc, other.enc, case, positions), 1e-5, 1e-5)
        with torch.no_grad():
            if not whole.model()(tokens(2, length)).logits.isfinite().all():
                raise Broken(f"{spec}: a model's logits are not finite")


def _added(alone: Encoding, other: Encoding, case: Inputs, positions: Tensor) -> Tensor:
    """Return the logits of a sum: those of the rotating part, with the other's bias and scale."""
    first, second = (other, alone) if other.rotates else (alone, other)
    bias = second.bias(case.q, case.k, positions, positions, second.key_state(case.x))
    factor = second.logit_scale(positions)
    logits = scores(first, case, positions)
    if factor is not None:  # the first part is RoPE then, which has no bias
        logits = logits * factor[..., None]
    return logits if bias is None else logits + bias.tril()


def _inside(alone: Encoding) -> dict[str, Tensor]:
    """Return the state of an encoding under the names that it has as first part of a sum."""
    state = alone.state_dict()
    return state if isinstance(alone, Composite) else {f"parts.0.{k}": v for k, v in state.items()}
