"""Decimal: the digits of the position as people write it, the last one in the last column.

    P(p)_j = floor(p / 10^(d-1-j)) mod 10         decimal_norm: (P - 4.5) / 4.5

From the experiments of h3nock/pe-explorer, which published no results for it. Tokens are
multiplied by sqrt(d) first, as Vaswani et al. 2017 do (arXiv:1706.03762). Learns nothing; positions
below 10^d. `decimal_norm` maps the unused columns in front to -1 as well, so most of it is the same
vector at every position.
"""

from pe.encodings.core.digits import Digits
from pe.encodings.core.registry import register


@register("decimal", title="Decimal", paper="1706.03762", family="embeddings")
class Decimal(Digits):
    """Digits as 0 to 9."""

    base = 10


@register("decimal_norm", title="Decimal, scaled", paper="1706.03762", family="embeddings")
class DecimalNorm(Decimal):
    """Digits as -1 to 1."""

    normalised = True
