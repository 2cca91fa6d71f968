"""Biases that are a function of distance alone: ALiBi, T5, KERPLE, Sandwich.

    logit_h(i, j) += b_h(i - j)

One function of the distance is all that such an encoding defines; the dense matrix, the decoding
step and any kernel follow from it.
"""

import torch
from torch import Tensor

from pe.encodings.core.base import Encoding
from pe.encodings.core.forms import Form, by_distance


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """How far each key lies behind each query: (Tq, Tk), or (B, Tq, Tk) if either has rows.

    Keys ahead of a query are masked in a decoder; they get distance 0, so that nothing grows there.
    """
    return (q_positions[..., :, None] - k_positions[..., None, :]).clamp(min=0)


def at_least_float32(parameter: Tensor) -> Tensor:
    """A learned number as it enters a bias: never narrower than float32."""
    return parameter.to(torch.promote_types(parameter.dtype, torch.float32))


class DistanceBias(Encoding):
    """Base class: override `distance_bias`, one value for each head and distance."""

    def distance_bias(self, distance: Tensor) -> Tensor:
        """Integer distances of any shape (...) -> (H, ...), float32 or float64."""
        raise NotImplementedError

    constant_beyond: int | None = None
    """Distance from which on the bias is constant, or None."""

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        table = self.distance_bias(torch.arange(length, device=device))
        return by_distance(table, self.constant_beyond)

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        """(1 or B, H, Tq, Tk), float32; float64 where the queries are."""
        self.refuse_misfit(q, k, q_positions)
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        with torch.autocast(q.device.type, enabled=False):
            values = self._matrix(distances(q_positions, k_positions), dtype)
        return values[None] if values.dim() == 3 else values.transpose(0, 1)

    def _matrix(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """One value for each head and entry of ``distance``.

        On the CPU each distance up to the largest is evaluated once and looked up, which saves the
        intermediate results of Tq x Tk values, also backward. On a GPU that would force a
        sync to read the largest distance; there torch.compile fuses the formula into one kernel.
        """
        if distance.device.type == "cpu" and distance.numel() and not torch.compiler.is_compiling():
            reach = int(distance.max()) + 1
            if reach <= distance.numel():  # else positions have gaps: fewer pairs than distances
                table = self.distance_bias(torch.arange(reach)).to(dtype)
                index = distance.flatten().long().expand(table.shape[0], -1)
                return table.gather(1, index).view(-1, *distance.shape)
        return self.distance_bias(distance).to(dtype)
