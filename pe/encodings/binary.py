"""Binary: the bits of the position, most significant first, the last bit in the last column.

    P(p)_j = floor(p / 2^(d-1-j)) mod 2           binary_norm: 2 P - 1

From the experiments of h3nock/pe-explorer, which published no results for it. Tokens are
multiplied by sqrt(d) first, as Vaswani et al. 2017 do (arXiv:1706.03762). Learns nothing; positions
below 2^d. `binary_norm` maps the unused columns in front to -1 as well, so most of it is the same
vector at every position.
"""

from pe.encodings.core.digits import Digits
from pe.encodings.core.registry import register


@register("binary", title="Binary", paper="1706.03762", family="embeddings")
class Binary(Digits):
    """Bits as 0 and 1."""

    base = 2


@register("binary_norm", title="Binary, scaled", paper="1706.03762", family="embeddings")
class BinaryNorm(Binary):
    """Bits as -1 and 1."""

    normalised = True
