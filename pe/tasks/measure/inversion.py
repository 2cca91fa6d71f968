"""Position inversion and aliasing: do logits still distinguish positions and tokens?

For a random query, the logit of a key is a function s(d) of its distance d. Draw two distances that
are uniform in a context of some length, near < far. These functions measure how often

    position inversion   a key scores more at the farther distance:  s(far) > s(near)
    token inversion      the order of two keys' logits is not the same at near and at far
    position aliasing    the key has its logit s(near) at some farther distance, too
    token aliasing       another key has this logit at some farther distance

"RoPE Distinguishes Neither Positions Nor Tokens in Long Contexts, Provably" (arXiv:2605.15514):
both inversions go to 1/2, a coin flip, as the length grows; equal logits occur; a larger base helps
to distinguish tokens and harms positions. These definitions follow the abstract; we have not seen
those of the paper. Queries and keys are normal with unit variance in each channel and have the
correlation ``alignment``; without it no key would score more for being near. Two logits count as
equal if they differ by less than ``tolerance``. The default 2**-8 is the resolution of bfloat16
at 1.

Not only RoPE, but any encoding that acts on logits by position alone can be measured.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pe.encodings import Encoding

SEED, ALIGNMENT, TOLERANCE = 0, 0.5, 2**-8
INVERSION_SAMPLES, ALIASING_SAMPLES = 4000, 200
CHUNK = 2**22
"""The most numbers of rotated keys that are computed at a time."""


def logits_at(enc: Encoding, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
    """Return the logits of keys at distances from their queries.

    Args:
        enc: built for one head. q, k: (N, D), N pairs of a query and a key. distances: (M,) or
            (N, M).

    Returns:
        (N, M), in the dtype of q.

    Raises:
        ValueError: the encoding acts on embeddings, acts not by position alone, or has several
            heads.
    """
    name = enc.name or type(enc).__name__
    if enc.embeds or enc.content_dependent or enc.random or enc.state_size:
        raise ValueError(
            f"{name!r} does not act on logits by position alone, so the logits of single keys say "
            "nothing about it"
        )
    if enc.num_heads not in (None, 1):
        raise ValueError(f"{name!r} was built for {enc.num_heads} heads; expected 1")
    samples, places = len(q), distances.shape[-1]
    farthest = int(distances.max())
    q_positions = torch.full((samples, 1), farthest)
    k_positions = (farthest - distances).expand(samples, places)
    queries = q[:, None, None]
    keys = k[:, None, None].expand(-1, -1, places, -1)
    where = enc.prepare(q_positions, k_positions, q.dtype)
    bias = enc.bias(queries, keys, where.q_positions, where.k_positions)
    scale = enc.logit_scale(where.q_positions)
    rotated, turned = enc.rotate(queries, keys, where.q_positions, where.k_positions, where.tables)
    logits = (rotated * turned).sum(-1) / math.sqrt(q.shape[-1])
    if scale is not None:
        logits = logits * scale.to(logits.dtype)
    if bias is not None:
        logits = logits + bias[..., 0, :].to(q.dtype)
    return logits[:, 0]


def _pairs(head_dim: int, samples: int, alignment: float, keys: int) -> tuple[Tensor, ...]:
    """Return a query and several keys for each sample, (samples, head_dim) each."""
    if not -1 <= alignment <= 1:
        raise ValueError(f"alignment: expected a correlation, -1 to 1, got {alignment!r}")
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(keys + 1, samples, head_dim, generator=generator, dtype=torch.float64)
    query, rest = drawn[0], drawn[1:]
    return query, *(alignment * query + math.sqrt(1 - alignment**2) * rest)


def _two(length: int, samples: int) -> Tensor:
    """Return (samples, 2) different uniform distances below ``length``, the nearer one first."""
    if length < 2:
        raise ValueError(f"length: expected 2 or more, got {length!r}")
    generator = torch.Generator().manual_seed(SEED + 1)
    one = torch.randint(length, (samples,), generator=generator)
    apart = torch.randint(1, length, (samples,), generator=generator)
    return torch.stack((one, (one + apart) % length), dim=1).sort(dim=1).values


class Shares(NamedTuple):
    """Of keys, and of pairs of keys."""

    position: float
    token: float


def inversion(
    enc: Encoding,
    head_dim: int,
    length: int,
    alignment: float = ALIGNMENT,
    samples: int = INVERSION_SAMPLES,
) -> Shares:
    """Measure how often a key scores more at the farther distance, and two keys change their order.

    Args:
        enc: built for one head of ``head_dim`` channels. length: distances are below it.
            alignment: correlation of key and query.

    Raises:
        ValueError: an encoding that `logits_at` refuses, or an impossible length or correlation.
    """
    distances = _two(length, samples)
    q, k = _pairs(head_dim, samples, alignment, keys=1)
    near, far = logits_at(enc, q, k, distances).unbind(1)
    q, one, other = _pairs(head_dim, samples, alignment, keys=2)
    lead = logits_at(enc, q, one, distances) - logits_at(enc, q, other, distances)
    swapped = lead[:, 0] * lead[:, 1] < 0
    return Shares(float((far > near).double().mean()), float(swapped.double().mean()))


def aliasing(
    enc: Encoding,
    head_dim: int,
    length: int,
    alignment: float = ALIGNMENT,
    samples: int = ALIASING_SAMPLES,
    tolerance: float = TOLERANCE,
) -> Shares:
    """Measure how often the key itself, and another, has a key's logit at a farther distance.

    Arguments and errors are those of `inversion`.
    """
    near = _two(length, samples)[:, :1]
    q, k = _pairs(head_dim, samples, alignment, keys=1)
    position = _aliased(enc, q, k, k, near, length, tolerance)
    q, one, other = _pairs(head_dim, samples, alignment, keys=2)
    return Shares(position, _aliased(enc, q, one, other, near, length, tolerance))


def _aliased(
    enc: Encoding,
    q: Tensor,
    one: Tensor,
    other: Tensor,
    near: Tensor,
    length: int,
    tolerance: float,
) -> float:
    """Return how often the key ``other`` has, at a farther distance, the logit of ``one``."""
    wanted = logits_at(enc, q, one, near)
    met = torch.zeros(len(q), dtype=torch.bool)
    for far in torch.arange(1, length).split(max(1, CHUNK // q.numel())):
        same = (logits_at(enc, q, other, far) - wanted).abs() < tolerance
        met |= (same & (far > near)).any(dim=1)
    return float(met.double().mean())
