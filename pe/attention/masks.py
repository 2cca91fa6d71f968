"""Attention masks and position ids. B batch, T tokens; True means may attend."""

from __future__ import annotations

import torch
from torch import Tensor


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """Padding mask (B, T) of 0 and 1 -> positions (B, T) that count real tokens only.

    Padding before the first token gets position 0; it is masked, so the number does not matter.
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def positions_of(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    past: int,
    length: int,
    cached: bool,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Positions of the ``length`` new tokens and of all keys, each (n,) or (B, n).

    Args:
        attention_mask: (B, past + length), 0 at padding. position_ids: of the new tokens, in place
            of the counted ones; those of padding count as 0, since hidden tokens have no say in how
            long a sequence is. cached: whether keys come from a cache, which holds no positions.

    Raises:
        ValueError: a shape or type is wrong, or ``position_ids`` differ from what a cache implies.
    """
    if attention_mask is not None:
        if attention_mask.dim() != 2 or attention_mask.shape[1] != past + length:
            raise ValueError(
                f"attention_mask: expected (batch, {past + length}), past tokens included, "
                f"got {tuple(attention_mask.shape)}"
            )
        counted = positions_from_mask(attention_mask)
    else:
        counted = torch.arange(past + length, device=device)
    new = counted if past == 0 else counted[..., past:]  # one tensor: tables are shared
    if position_ids is None:
        return new, counted
    if position_ids.is_floating_point() or position_ids.shape[-1] != length:
        raise ValueError(
            f"position_ids: expected {length} integers per sequence, "
            f"got {position_ids.dtype} {tuple(position_ids.shape)}"
        )
    if position_ids.dim() not in (1, 2):
        raise ValueError(
            f"position_ids: expected ({length},) or (batch, {length}), got "
            f"{tuple(position_ids.shape)}"
        )
    if not cached:
        if attention_mask is not None:
            position_ids = position_ids * attention_mask.bool()
        return position_ids, position_ids
    passed, expected = torch.broadcast_tensors(position_ids, new)
    differs = passed != expected
    if attention_mask is not None:
        differs = differs & attention_mask[:, past:].bool()
    if differs.any():
        raise ValueError(
            "position_ids: with a cache, positions are those counted from the attention_mask; "
            "pass use_cache=False to use others"
        )
    return new, counted


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
