"""Cross-entropy of a tied head without holding all logits at once.

The logits of a large batch are the largest tensor of a training step (B x T x vocabulary). Beyond
`CHUNK_LOGITS` of them the rows are taken in chunks whose logits are computed again in the backward
pass. Below it, chunking costs time and saves nothing.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

IGNORE = -100
CHUNK_LOGITS = 2**30


def token_losses(
    hidden: Tensor, weight: Tensor, targets: Tensor, reduction: str = "none"
) -> Tensor:
    """(N, hidden), (V, hidden), (N,) -> float32 (N,), 0 where the target is -100."""
    logits = linear(hidden, weight)
    return cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction=reduction)


def summed_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk_logits: int = CHUNK_LOGITS
) -> Tensor:
    """Sum over all targets but -100, in nats. Shapes as in `token_losses`."""
    rows = max(1, chunk_logits // weight.shape[0])
    if hidden.shape[0] <= rows:
        return token_losses(hidden, weight, targets, "sum")
    total = hidden.new_zeros((), dtype=torch.float32)
    for h, t in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        total = total + checkpoint(token_losses, h, weight, t, "sum", use_reentrant=False)
    return total
