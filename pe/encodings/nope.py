"""NoPE: no positional encoding.

    logit(t, s) = q_t . k_s / sqrt(d)

What order a causal decoder knows, it learns from its mask: token t sees t+1 tokens.
Haviv et al. 2022 (arXiv:2203.16634), Kazemnejad et al. 2023 (arXiv:2305.19466).
Learns nothing, costs nothing, has no longest position.
"""

from pe.encodings.core.base import Encoding
from pe.encodings.core.registry import register


@register("nope", title="NoPE", paper="2203.16634", family="none")
class NoPE(Encoding):
    """Every hook is the identity."""
