"""T5: a learned number for each head and bucket of distances, shared by all layers.

    b_h(i, j) = table[bucket(i - j), h]
    bucket(n) = n                                                       n < E
                E + floor((N - E) ln(n / E) / ln(M / E)), at most N-1   otherwise

with N = 32 buckets, half of them exact (E = 16), and M = 128. The last bucket begins at 113 and
holds all that lies further. Raffel et al. 2019 (arXiv:1910.10683), causal form. Learns N numbers a
head, drawn from Normal(0, 1/hidden) like transformers does; one table for the whole model. Any
position. T5 does not divide its logits by sqrt(d); here they are.
"""

import math

import torch
from torch import Tensor, nn

from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import DistanceBias, at_least_float32
from pe.encodings.core.registry import register


def bucket_starts(num_buckets: int, max_distance: int) -> Tensor:
    """Smallest distance of each bucket, (N,) int64."""
    exact = num_buckets // 2
    logarithmic = num_buckets - exact
    growth = max_distance / exact
    starts = [exact * growth ** (n / logarithmic) for n in range(logarithmic)]
    # A start that is a whole number must not be missed by the last bit of the power.
    rounded = [math.ceil(start - 1e-9) for start in starts]
    return torch.tensor([*range(exact), *rounded], device="cpu")


@register("t5", title="T5", paper="1910.10683", family="bias", encoding_rate=10)
class T5(DistanceBias):
    """T5's relative position bias for a decoder."""

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
        """Integer distances of any shape -> the row of the table for each."""
        return torch.bucketize(distance, self.starts, right=True) - 1

    def distance_bias(self, distance: Tensor) -> Tensor:
        return at_least_float32(self.table).T[:, self.buckets(distance)]
