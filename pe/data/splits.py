"""Divide documents into a training, a validation and a test split.

The split of a document depends on the SHA-256 of its text, so it is the same on every machine and
in every order of reading. Documents whose lengths lie within a factor of two form a class. In each
class they are ordered by digest; the first ones form the test split, the next ones validation. As
every class is divided, the held-out splits contain long documents, although these are few.
Evaluation far beyond the training length needs them.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)

SHARE = 0.05
"""The share of each class of length that the test split gets, and validation too."""
AT_LEAST, AT_MOST = 4, 0.2
"""Each gets at least 4 documents of a class, but no more than a fifth of it."""


def assign(
    sizes: npt.NDArray[np.int64],
    digests: npt.NDArray[np.uint8],
    source_split: npt.NDArray[np.int8],
) -> npt.NDArray[np.int8]:
    """Return the index into `SPLITS` of every document, (N,) int8.

    If the corpus has splits, they are kept. A split that it lacks is taken from its training
    documents, or, if there is only one of these, is half of the other held-out split.

    Args:
        sizes: (N,) bytes. digests: (N, 16) uint8, all different.
        source_split: (N,) index into `SPLITS` of each document in the corpus; -1 if the corpus has
            no splits.

    Raises:
        ValueError: there are too few documents.
    """
    split = np.where(source_split < 0, TRAIN, source_split).astype(np.int8)
    for wanted, other in ((TEST, VALIDATION), (VALIDATION, TEST)):
        if not (split == wanted).any():
            _take(wanted, split, sizes, digests)
        if not (split == wanted).any():
            # Every second document by size, so that both splits get long ones.
            by_size = np.argsort(sizes, kind="stable")
            split[by_size[split[by_size] == other][1::2]] = wanted
    for index, name in enumerate(SPLITS):
        if not (split == index).any():
            raise ValueError(
                f"the corpus has {len(sizes)} distinct document(s), too few for a {name} split; "
                "give more documents, or files named train, validation and test"
            )
    return split


def _take(
    wanted: int,
    split: npt.NDArray[np.int8],
    sizes: npt.NDArray[np.int64],
    digests: npt.NDArray[np.uint8],
) -> None:
    """Move the share of every class of length from training to ``wanted``, in place."""
    classes = np.frexp(sizes.astype(np.float64))[1]
    # A digest of 16 bytes sorts like two big-endian 64-bit numbers.
    high, low = np.ascontiguousarray(digests).view(">u8").T
    order = np.lexsort((low, high))
    for length_class in np.unique(classes):
        members = order[(classes[order] == length_class) & (split[order] == TRAIN)]
        # All documents of the class count, so that the second split gets as many as the first.
        whole = np.count_nonzero(classes == length_class)
        count = min(max(round(SHARE * whole), AT_LEAST), int(AT_MOST * whole))
        split[members[:count]] = wanted
    if not (split == wanted).any():
        # There are so few documents that no class can spare one. Take the first one by digest.
        spare = order[split[order] == TRAIN]
        if len(spare) > 1:
            split[spare[0]] = wanted


def fingerprint(digests: npt.NDArray[np.uint8], split: npt.NDArray[np.int8]) -> str:
    """Return 16 hex digits of SHA-256 over every text's digest and split, in order."""
    content = np.concatenate([digests, split.astype(np.uint8)[:, None]], axis=1)
    return hashlib.sha256(content.tobytes()).hexdigest()[:16]
