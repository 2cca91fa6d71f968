"""Where a model looks: attention probabilities of one sequence, and how spread they are.

    entropy of a query  =  -sum_j p_j log p_j        nats; log(n) if it looks at n keys evenly

Long contexts spread attention: where the entropy of a head grows with the position and its answers
get worse, it no longer finds what it looks for ("dispersion"; scalable softmax, arXiv:2501.19399).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pe.model import PEForCausalLM


@torch.no_grad()
def attention_maps(model: PEForCausalLM, tokens: Sequence[int] | Tensor) -> Tensor:
    """Attention probabilities of every head, computed on the dense path.

    Args:
        tokens: (T,) token ids of one sequence. Memory grows with T squared.

    Returns:
        (layers, heads, T, T) in float32 on the CPU; rows are queries. A row sums to 1, or to less
        where the encoding has a sink.

    Raises:
        ValueError: tokens of another shape, or positions that the encoding does not have.
    """
    ids = torch.as_tensor(tokens)
    if ids.dim() != 1 or not len(ids):
        raise ValueError(f"tokens: expected one sequence, (T,), got shape {tuple(ids.shape)}")
    ids = ids.to(next(model.parameters()).device)[None]
    out = model(input_ids=ids, output_attentions=True, use_cache=False)
    return torch.stack([layer[0].float().cpu() for layer in out.attentions])


def entropies(weights: Tensor) -> Tensor:
    """(..., T, T) attention probabilities -> (..., T) entropy of each query in nats."""
    spread: Tensor = torch.special.entr(weights).sum(dim=-1)
    return spread
