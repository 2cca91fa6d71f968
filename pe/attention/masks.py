"""Who may look at whom, and where everybody stands. B batch, T tokens; True means may attend."""

from __future__ import annotations

import torch
from torch import Tensor


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """Padding mask (B, T) of 0 and 1 -> positions (B, T) that count real tokens only.

    Padding before the first token gets position 0; it is masked, so the number does not matter.
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def visible(
    q_length: int,
    k_length: int,
    device: torch.device,
    padding: Tensor | None = None,
    documents: Tensor | None = None,
) -> Tensor | None:
    """Boolean mask (1 or B, 1, Tq, Tk) for queries that are the last ``q_length`` of the keys.

    Args:
        padding: (B, Tk), 0 at padding. documents: (B, Tk) document of each token; attention then
            stays inside a document.

    Returns:
        None when plain causal attention is all that is needed.
    """
    if padding is None and documents is None:
        return None
    k_index = torch.arange(k_length, device=device)
    q_index = k_index[k_length - q_length :]
    allowed = (k_index[None, :] <= q_index[:, None])[None]
    if padding is not None:
        allowed = allowed & padding.bool()[:, None, :]
    if documents is not None:
        q_documents = documents[:, k_length - q_length :]
        allowed = allowed & (q_documents[:, :, None] == documents[:, None, :])
    # A padding row sees itself, so that no softmax is taken over nothing.
    return (allowed | (k_index[None, :] == q_index[:, None]))[:, None]


def lower_right_causal(q_length: int, k_length: int, device: torch.device) -> Tensor:
    """(Tq, Tk) causal mask whose last query sees all keys."""
    ones = torch.ones(q_length, k_length, dtype=torch.bool, device=device)
    return ones.tril(k_length - q_length)
