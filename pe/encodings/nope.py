"""NoPE: leaves attention without any positional encoding.

    logit(t, s) = q_t . k_s / sqrt(d)

t is the position of the query, s that of the key and d the width of a head. A causal decoder can
still learn the order of the tokens from its mask, because token t sees t+1 tokens.
Haviv et al. 2022 (arXiv:2203.16634), Kazemnejad et al. 2023 (arXiv:2305.19466).
NoPE learns nothing, costs nothing, and works at any position.
"""

from pe.encodings.core.base import Encoding
from pe.encodings.core.registry import register


@register("nope", title="NoPE", paper="2203.16634", family="none")
class NoPE(Encoding):
    """No encoding: every hook is the identity."""
