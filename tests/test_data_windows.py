"""Evaluation windows: inside one document, disjoint targets, the same at every length."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from pe.data import Split, evaluation_windows


def split_of(lengths: list[int]) -> Split:
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    return Split(np.zeros(sum(lengths), np.uint16), starts, [""] * len(lengths))


@pytest.mark.parametrize("seed", range(10))
def test_the_laws_of_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    split = split_of(rng.integers(2, 400, 40).tolist())
    length = int(rng.integers(5, 200))
    targets = int(rng.integers(1, length + 1))
    possible = sum((n - length - 1) // targets + 1 for n in split.lengths if n > length)
    assert possible
    for count in (1, 3, possible - 1 or 1, possible, possible + 50):
        ends = evaluation_windows(split, length, targets, count)
        assert len(ends) == min(count, possible)
        assert ends == sorted(ends)
        assert all(b - a >= targets for a, b in pairwise(ends))
        for end in ends:
            first, last = end - length - 1, end - 1  # first input and last target
            assert first >= 0
            assert last < len(split)
            owner = np.searchsorted(split.starts, [first, last], side="right")
            assert owner[0] == owner[1]
        assert ends == evaluation_windows(split, length, targets, count)
        assert all(type(end) is int for end in ends)


def test_windows_are_spread_over_documents_first() -> None:
    split = split_of([1000, 50, 120, 1000, 130])
    ends = evaluation_windows(split, 100, 10, 8)
    owners = np.searchsorted(split.starts, np.array(ends) - 1, side="right") - 1
    assert np.bincount(owners, minlength=5).tolist() == [2, 0, 2, 2, 2]
    assert len(evaluation_windows(split, 100, 10, 2)) == 2
    inside = np.array(ends)[owners == 0]
    assert inside[0] > 101  # not crowded at the document's beginning
    assert inside[1] - inside[0] > 300


def test_a_document_that_just_fits() -> None:
    assert evaluation_windows(split_of([5, 101, 5]), 100, 100, 9) == [106]


def test_too_long_a_context_says_what_is_possible() -> None:
    with pytest.raises(ValueError, match=r"0 evaluation windows of 100 .* 2 documents has 100 tok"):
        evaluation_windows(split_of([100, 40]), 100, 10, 4)
    with pytest.raises(ValueError, match="target_tokens is 20"):
        evaluation_windows(split_of([100]), 10, 20, 4)
    with pytest.raises(ValueError, match="1 or more"):
        evaluation_windows(split_of([100]), 10, 5, 0)
