"""T5: adds a learned number per head and bucket of distances to the logits.

    b_h(m, n) = table[bucket(m - n), h]
    bucket(r) = r                                                       r < E
                E + floor((N - E) ln(r / E) / ln(M / E)), at most N-1   otherwise

b_h is the bias of query m and key n in head h. N = 32 is the number of buckets, E = 16 of which
hold one distance each, and M = 128. The last bucket holds all distances from 113 on.

Raffel et al. 2019 (arXiv:1910.10683), the causal form. T5 does not divide its logits by sqrt(d);
here they are divided.

T5 learns N numbers per head, in one table that all layers share. They are drawn from N(0, 1/hidden)
as in transformers. It costs a look-up per head, query and key, and works at any position.
"""

import math

import torch
from torch import Tensor, nn

from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import DistanceBias, at_least_float32
from pe.encodings.core.registry import register


def bucket_starts(num_buckets: int, max_distance: int) -> Tensor:
    """Return the smallest distance of each bucket, (N,) int64."""
    exact = num_buckets // 2
    logarithmic = num_buckets - exact
    growth = max_distance / exact
    starts = [exact * growth ** (n / logarithmic) for n in range(logarithmic)]
    # Rounding errors must not move a start that is an integer to the next one.
    rounded = [math.ceil(start - 1e-9) for start in starts]
    return torch.tensor([*range(exact), *rounded], device="cpu")


@register("t5", title="T5", paper="1910.10683", family="bias", encoding_rate=10)
class T5(DistanceBias):
    """T5's relative position bias for a decoder.

    Args:
        hidden_size: width of the model, which sets the spread of the initial values.
        num_buckets: N.
        max_distance: M, more than half of N.
    """

    starts: Tensor

    def __init__(
        self, num_heads: int, hidden_size: int, num_buckets: int = 32, max_distance: int = 128
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_buckets = at_least("num_buckets", num_buckets, 2)
        self.max_distance = at_least("max_distance", max_distance, self.num_buckets // 2 + 1)
        self.constant_beyond = int(bucket_starts(num_buckets, max_distance)[-1])
        self.std = hidden_size**-0.5
        self.table = nn.Parameter(torch.zeros(self.num_buckets, num_heads))
        self.register_exact_buffers()
        self.reset_parameters()

    def exact_buffers(self) -> dict[str, Tensor]:
        return {"starts": bucket_starts(self.num_buckets, self.max_distance)}

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.table.normal_(0.0, self.std, generator=generator)

    def buckets(self, distance: Tensor) -> Tensor:
        """Return the row of the table for each integer distance, in the shape of ``distance``."""
        return torch.bucketize(distance, self.starts, right=True) - 1

    def distance_bias(self, distance: Tensor) -> Tensor:
        return at_least_float32(self.table).T[:, self.buckets(distance)]
