"""Cross-entropy of a tied head without holding all logits at once.

The logits of a large batch are the largest tensor of a training step (B x T x vocabulary). If there
are more than `CHUNK_LOGITS`, they are computed in chunks of rows, and each chunk is computed a
second time in the backward pass. Fewer logits fit into memory, and chunking would only cost time.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

IGNORE = -100
"""A target with this value is not predicted: it adds nothing to the loss."""
CHUNK_LOGITS = 2**30
"""The largest number of logits that are held at once."""


def token_losses(
    hidden: Tensor, weight: Tensor, targets: Tensor, reduction: str = "none"
) -> Tensor:
    """Return the cross-entropy of each of N tokens in nats, 0 where the target is `IGNORE`.

    Args:
        hidden: (N, hidden), the decoder's output. weight: (V, hidden), of the head. targets: (N,).
        reduction: as in torch's `cross_entropy`: ``"none"`` gives float32 (N,), ``"sum"`` a number.
    """
    logits = linear(hidden, weight)
    return cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction=reduction)


def summed_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk_logits: int = CHUNK_LOGITS
) -> Tensor:
    """Return the sum of the losses of all targets but `IGNORE`, in nats, as a float32 scalar.

    Arguments are those of `token_losses`; at most ``chunk_logits`` logits are held at once.
    """
    rows = max(1, chunk_logits // weight.shape[0])
    if hidden.shape[0] <= rows:
        return token_losses(hidden, weight, targets, "sum")
    total = hidden.new_zeros((), dtype=torch.float32)
    for h, t in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        total = total + checkpoint(token_losses, h, weight, t, "sum", use_reentrant=False)
    return total
