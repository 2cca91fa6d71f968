"""Self-Extend: rotates near keys as RoPE does and far keys by positions counted in groups.

    z(m, n) = q_m^T R(D(m, n)) k_n / sqrt(d)
    D(m, n) = m - n                                              if m - n < w
              floor(m / G) - floor(n / G) + w - floor(w / G)     otherwise

z is the logit of query m and key n, R(r) the rotation of RoPE (arXiv:2104.09864) by r positions, w
the neighbour window and G the size of a group.

Jin et al. 2024 (arXiv:2401.01325). The authors published two forms. This is the first, with
floor(w / G). The second has w / G, which is the same if G divides w. Groups begin at position 0, so
the logits of far keys depend on both positions and not on their difference alone.

Self-Extend learns nothing and is applied to a trained rotary model. A model trained on L tokens
reads up to (L - w + floor(w / G)) G tokens without a distance that training did not have.

Queries and keys are rotated by RoPE, and the bias is the grouped logit minus RoPE's, 0 inside the
window. Nothing may therefore scale the logits in between. A large bias is computed in blocks of
query rows. Kernels without gradients need no bias: `pe.attention.near_far` attends to near and far
keys separately and joins the results. Keys are cached once, before rotation.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from pe.encodings.core.checks import UNSET, at_least
from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.query_rows import by_query_rows
from pe.encodings.core.registry import Variant, register
from pe.encodings.rope import RoPE

HELD = 3
"""Approximate count of numbers that a block holds per head, query and key."""
SHARE = 4
"""The default window is the training length divided by this, rounded down to whole groups. The
authors use 1,024 of 4,096 tokens for Llama 2."""


def window_of(original_length: int, group_size: int) -> int:
    """Return the default w in tokens."""
    share = max(1, original_length // SHARE)
    return share // group_size * group_size or share


def longest_text(original_length: int, neighbor_window: int, group_size: int) -> int:
    """Return the largest number of tokens whose distances are all below ``original_length``."""
    return (original_length - neighbor_window + neighbor_window // group_size) * group_size


def smallest_group(
    original_length: int, tokens: float, neighbor_window: int | None = None
) -> tuple[int, int]:
    """Return the smallest G, and its w, with which ``tokens`` tokens have no untrained distance."""
    widest = neighbor_window or window_of(original_length, 1)
    for group_size in range(1, widest + 1):
        window = neighbor_window or window_of(original_length, group_size)
        if longest_text(original_length, window, group_size) >= tokens:
            return group_size, window
    # No whole group fits into the window, so each step of G adds the same number of tokens.
    return max(widest + 1, math.ceil(tokens / (original_length - widest))), widest


ZERO_SHOT = Variant(
    "self_extend", "Self-Extend", "2401.01325", lambda rope, factor: {"factor": float(factor)}
)


@register(
    "self_extend", title="Self-Extend", paper="2401.01325", family="positions", extends=[ZERO_SHOT]
)
class SelfExtend(RoPE):
    """RoPE whose far keys have positions counted in groups.

    Args:
        original_length: L in tokens.
        factor: 4 by default; G is the smallest that covers ``factor`` times L tokens.
        group_size: G, instead of ``factor``.
        neighbor_window: w in tokens; by default a quarter of L in whole groups.

    The other options are RoPE's.
    """

    relative = False
    content_dependent = True
    corrects_logits: ClassVar[bool] = True

    def __init__(
        self,
        head_dim: int,
        original_length: int,
        factor: float = UNSET,
        group_size: int = UNSET,
        neighbor_window: int = UNSET,
        theta: float = 10000.0,
        layout: str = "half",
        rotary_fraction: float = 1.0,
        transforms: Sequence[FrequencyTransform] = (),
    ) -> None:
        for transform in transforms:
            if transform.length_dependent:
                raise ValueError(
                    f"{transform.name} depends on the length of the text or learns, and "
                    "self_extend counts far keys with fixed frequencies; combine it with a static "
                    "one, such as llama3 or yarn"
                )
        super().__init__(head_dim, theta, layout, rotary_fraction, transforms)
        self.original_length = length = at_least("original_length", original_length, 2)
        window = (
            None if neighbor_window is UNSET else at_least("neighbor_window", neighbor_window, 1)
        )
        if window is not None and window >= length:
            raise ValueError(
                f"neighbor_window {window}: a model trained on {length} tokens would have no "
                f"distance left for groups; use less than {length}, such as {window_of(length, 1)}"
            )
        if group_size is UNSET:
            factor = at_least("factor", 4.0 if factor is UNSET else factor, 1.0)
            self.group_size, self.neighbor_window = smallest_group(length, factor * length, window)
        elif factor is not UNSET:
            raise ValueError(
                f"factor {factor:g} and group_size {group_size} both set the size of a group; "
                "leave one out"
            )
        else:
            self.group_size = at_least("group_size", group_size, 1)
            self.neighbor_window = window or window_of(length, group_size)

    def grouped(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions of queries and keys whose differences are D(m, n) of far keys."""
        window, size = self.neighbor_window, self.group_size
        return q_positions // size + window - window // size, k_positions // size

    def far(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return rotated queries and keys whose products are the logits of far keys."""
        return self.rotate(q, k, *self.grouped(q_positions, k_positions))

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        """Return the bias, (B, H, Tq, Tk); float64 if the queries are, otherwise float32."""
        self.refuse_misfit(q, k, q_positions, k_positions)
        batch, heads, length, width = q.shape
        known = k.shape[-2]
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            q, k = q.to(wide) / math.sqrt(width), k.to(wide)
            near_q, near_k = self.rotate(q, k, q_positions, k_positions)
            far_q, far_k = self.far(q, k, q_positions, k_positions)
            # One product of twice the width is the grouped logit minus RoPE's.
            queries: Tensor = torch.cat((far_q, -near_q), -1).unflatten(1, (k.shape[1], -1))
            keys = torch.cat((far_k, near_k), -1)[:, :, None].transpose(-1, -2)

            def block(start: int, stop: int) -> Tensor:
                seen = known - length + stop
                change = (queries[..., start:stop, :] @ keys[..., :seen]).flatten(1, 2)
                distance = q_positions[..., start:stop, None] - k_positions[..., None, :seen]
                near = distance < self.neighbor_window
                return change.masked_fill(near if near.dim() == 2 else near[:, None], 0.0)

            return by_query_rows(block, length, known, HELD * batch * heads)
