"""Attention masks and position ids. B batch, T tokens; True means that a query may attend."""

from __future__ import annotations

import torch
from torch import Tensor


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """Return positions (B, T) that count real tokens only, from a padding mask (B, T) of 0 and 1.

    Padding before the first token gets position 0, which has no effect because it is masked.
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
    """Return the positions of ``length`` new tokens and of all keys, each (n,) or (B, n).

    Args:
        attention_mask: (B, past + length), 0 at padding; None: no padding.
        position_ids: (length,) or (B, length), of the new tokens, in place of counted ones. Those
            of padding are replaced by 0, so that they do not make a sequence appear longer.
        past: the number of earlier tokens.
        cached: whether keys come from a cache, which does not store positions.

    Raises:
        ValueError: a shape or type is wrong, or there is a cache and ``position_ids`` differ from
            counted ones.
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
    # Without past tokens both are the same tensor, so that their tables are computed once.
    new = counted if past == 0 else counted[..., past:]
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
    requested, expected = torch.broadcast_tensors(position_ids, new)
    differs = requested != expected
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
    """Return a mask (1 or B, 1, Tq, Tk) for queries that are the last ``q_length`` of the keys.

    Args:
        padding: (B, Tk), 0 at padding. documents: (B, Tk), the document of each token; attention
            stays inside a document.

    Returns:
        The mask, or None if it would be causal and nothing else.
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
    # A padding token sees itself, because a softmax over no key is not defined.
    return (allowed | (k_index[None, :] == q_index[:, None]))[:, None]


def lower_right_causal(q_length: int, k_length: int, device: torch.device) -> Tensor:
    """Return a causal mask (Tq, Tk) in which the last query sees all keys."""
    ones = torch.ones(q_length, k_length, dtype=torch.bool, device=device)
    return ones.tril(k_length - q_length)
