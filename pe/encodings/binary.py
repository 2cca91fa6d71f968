"""Binary: adds the bits of the position to the token embeddings.

    P(p)_j = floor(p / 2^(d-1-j)) mod 2             binary_norm: 2 P - 1

P(p) is the vector of position p, j its column and d the width of the embeddings. The last column
holds the last bit. ``binary_norm`` maps the digits to -1 .. 1. It maps the unused columns on the
left to -1 as well, so most of the vector is the same at every position.

It is from the code of h3nock/pe-explorer, which has no published results. Tokens are multiplied by
sqrt(d) first, as in Vaswani et al. 2017 (arXiv:1706.03762). The encoding learns nothing and works
at positions below 2^d.
"""

from pe.encodings.core.digits import Digits
from pe.encodings.core.registry import register


@register("binary", title="Binary", paper="1706.03762", family="embeddings")
class Binary(Digits):
    """Each bit is 0 or 1."""

    base = 2


@register("binary_norm", title="Binary, scaled", paper="1706.03762", family="embeddings")
class BinaryNorm(Binary):
    """Each bit is -1 or 1."""

    normalised = True
