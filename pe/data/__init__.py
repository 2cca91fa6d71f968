"""Text to batches: corpora, split by document, tokenised once, in one order for every encoding."""

from pe.data.batches import Batch, Batches, rows_at
from pe.data.corpora import is_path
from pe.data.preparation import prepare
from pe.data.shards import Split, TokenData
from pe.data.windows import evaluation_windows

__all__ = [
    "Batch",
    "Batches",
    "Split",
    "TokenData",
    "evaluation_windows",
    "is_path",
    "prepare",
    "rows_at",
]
