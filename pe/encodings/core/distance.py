"""Base class of biases that depend on the distance alone, such as ALiBi, T5, KERPLE and Sandwich.

    logit_h(m, n) += b_h(m - n)

m is the position of the query, n that of the key and h the head. A subclass defines the function
b_h. The bias matrix, the decoding step and the kernels follow from it.
"""

import torch
from torch import Tensor

from pe.encodings.core.base import Encoding
from pe.encodings.core.forms import Form, by_distance


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Return the distance from each query back to each key.

    It is (Tq, Tk), or (B, Tq, Tk) if the positions of either are (B, T).

    Keys ahead of a query are masked in a decoder. They get distance 0, which keeps biases finite.
    """
    return (q_positions[..., :, None] - k_positions[..., None, :]).clamp(min=0)


def at_least_float32(parameter: Tensor) -> Tensor:
    """Return the parameter in float32, or in its dtype if that is wider."""
    return parameter.to(torch.promote_types(parameter.dtype, torch.float32))


class DistanceBias(Encoding):
    """A bias of the distance. Subclasses override `distance_bias`."""

    def distance_bias(self, distance: Tensor) -> Tensor:
        """Return the biases (H, ...) of integer distances (...), in float32 or float64."""
        raise NotImplementedError

    constant_beyond: int | None = None
    """The distance from which the bias is constant, or None."""

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
        """Return the bias, (1 or B, H, Tq, Tk); float64 if the queries are, otherwise float32."""
        self.refuse_misfit(q, k, q_positions)
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        with torch.autocast(q.device.type, enabled=False):
            values = self._matrix(distances(q_positions, k_positions), dtype)
        return values[None] if values.dim() == 3 else values.transpose(0, 1)

    def _matrix(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the biases of all distances, (H, ...), in ``dtype``.

        On the CPU each distance up to the largest is evaluated once and looked up, which saves the
        intermediate results of Tq x Tk values forward and backward. On a GPU, reading the largest
        distance would force a sync; there torch.compile fuses the formula into one kernel.
        """
        if distance.device.type == "cpu" and distance.numel() and not torch.compiler.is_compiling():
            reach = int(distance.max()) + 1
            if reach <= distance.numel():  # otherwise positions have gaps, and a table is larger
                table = self.distance_bias(torch.arange(reach)).to(dtype)
                index = distance.flatten().long().expand(table.shape[0], -1)
                return table.gather(1, index).view(-1, *distance.shape)
        return self.distance_bias(distance).to(dtype)
