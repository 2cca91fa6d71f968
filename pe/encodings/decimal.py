"""Decimal: adds the decimal digits of the position to the token embeddings.

    P(p)_j = floor(p / 10^(d-1-j)) mod 10           decimal_norm: (P - 4.5) / 4.5

P(p) is the vector of position p, j its column and d the width of the embeddings. The last column
holds the last digit. ``decimal_norm`` maps the digits to -1 .. 1. It maps the unused columns on the
left to -1 as well, so most of the vector is the same at every position.

It is from the code of h3nock/pe-explorer, which has no published results. Tokens are multiplied by
sqrt(d) first, as in Vaswani et al. 2017 (arXiv:1706.03762). The encoding learns nothing and works
at positions below 10^d.
"""

from pe.encodings.core.digits import Digits
from pe.encodings.core.registry import register


@register("decimal", title="Decimal", paper="1706.03762", family="embeddings")
class Decimal(Digits):
    """Each digit is 0 to 9."""

    base = 10


@register("decimal_norm", title="Decimal, scaled", paper="1706.03762", family="embeddings")
class DecimalNorm(Decimal):
    """Each digit is mapped from 0 .. 9 to -1 .. 1."""

    normalised = True
