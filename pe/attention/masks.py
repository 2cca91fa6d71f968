"""Attention masks and position ids. B batch, T tokens; True means that a query may attend."""

from __future__ import annotations

import torch
from torch import Tensor

from pe.encodings.core.base import refuse_positions


def kind_of(x: object) -> str:
    """Return how a message names ``x``: a tensor by its dtype, anything else by its class."""
    return str(x.dtype) if isinstance(x, Tensor) else f"a {type(x).__name__}"


def whole_numbers(name: str, x: Tensor, expected: str = "a tensor of whole numbers") -> Tensor:
    """Return ``x`` in int64.

    Raises:
        ValueError: it is not a tensor of whole numbers.
    """
    is_tensor = isinstance(x, Tensor)
    if not is_tensor or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name}: expected {expected}, got {kind_of(x)}")
    return x.long()


def refuse_negative(name: str, positions: Tensor) -> None:
    """Raise ValueError if a position is below 0. It checks on the CPU only, as a GPU would wait."""
    if positions.is_cpu and positions.numel() and not torch.compiler.is_compiling():
        least = int(positions.min())
        if least < 0:
            raise ValueError(f"{name}: expected 0 or more, got {least}")


def padding_of(attention_mask: Tensor | None, batch: int, tokens: int) -> Tensor | None:
    """Return a padding mask (1 or B, tokens) as booleans, False at padding; None stays None.

    Raises:
        ValueError: it is not a tensor of whole numbers or booleans, or has another shape.
    """
    if attention_mask is None:
        return None
    is_tensor = isinstance(attention_mask, Tensor)
    if is_tensor and tuple(attention_mask.shape) not in ((1, tokens), (batch, tokens)):
        raise ValueError(
            f"attention_mask: expected ({batch}, {tokens}), past tokens included, got "
            f"{tuple(attention_mask.shape)}"
        )
    if is_tensor and attention_mask.dtype == torch.bool:
        return attention_mask
    expected = "whole numbers or booleans, 0 at padding"
    return whole_numbers("attention_mask", attention_mask, expected).bool()


def documents_of(document_ids: Tensor | None, batch: int, tokens: int) -> Tensor | None:
    """Return the document of each token, (1 or B, tokens) int64; None stays None.

    Raises:
        ValueError: it is not a tensor of whole numbers, or has another shape.
    """
    if document_ids is None:
        return None
    document_ids = whole_numbers("document_ids", document_ids)
    if tuple(document_ids.shape) not in ((1, tokens), (batch, tokens)):
        raise ValueError(
            f"document_ids: expected ({batch}, {tokens}), got {tuple(document_ids.shape)}"
        )
    return document_ids


def positions_from_mask(padding: Tensor) -> Tensor:
    """Return positions (B, T) that count real tokens only, from a padding mask (B, T) of 0 and 1.

    Padding before the first token gets position 0, which has no effect because it is masked.
    """
    return (padding.long().cumsum(-1) - 1).clamp(min=0)


def positions_of(
    padding: Tensor | None,
    position_ids: Tensor | None,
    past: int,
    batch: int,
    length: int,
    cached: bool,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return the positions of ``length`` new tokens and of all keys, each (n,) or (B, n).

    Args:
        padding: (1 or B, past + length), False at padding; None: no padding.
        position_ids: (length,) or (1 or B, length), of the new tokens, in place of counted ones.
            Those of padding are replaced by 0, so that they do not make a sequence appear longer.
        past: the number of earlier tokens.
        cached: whether keys come from a cache, which does not store positions.

    Raises:
        ValueError: ``position_ids`` have a wrong shape or type or are below 0, or there is a cache
            and they differ from counted ones.
    """
    if padding is not None:
        counted = positions_from_mask(padding)
    else:
        counted = torch.arange(past + length, device=device)
    # Without past tokens both are the same tensor, so that their tables are computed once.
    new = counted if past == 0 else counted[..., past:]
    if position_ids is None:
        return new, counted
    position_ids = whole_numbers("position_ids", position_ids)
    refuse_positions("position_ids", position_ids, batch, length)
    if padding is not None:
        position_ids = position_ids * padding[:, past:]
    if not cached:
        refuse_negative("position_ids", position_ids)
        return position_ids, position_ids
    differs = position_ids != new
    if padding is not None:
        differs = differs & padding[:, past:]
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
        The mask, or None if it would be the causal mask.
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
