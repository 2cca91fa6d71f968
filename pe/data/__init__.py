"""From text to batches.

A corpus is split by document, tokenised once, and cut into windows whose order depends on the seed
alone, so that every encoding is trained on the same text in the same order.
"""

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
