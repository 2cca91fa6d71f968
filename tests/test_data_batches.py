"""Batches: a pure function of (seed, step), every window once an epoch, documents and positions."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from pe.data import Batches, Split, rows_at


def numbered(lengths: list[int], dtype: type = np.uint16) -> Split:
    """A split whose token at offset i is i, so that a window tells where it came from."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    tokens = np.arange(sum(lengths), dtype=dtype)
    return Split(tokens, starts, [str(i) for i in range(len(lengths))])


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    split = numbered([50, 51, 20, 80])
    a, b = Batches(split, 7, 4, seed=3), Batches(split, 7, 4, seed=3)
    later = b.at(100)
    for step in (100, 0, 17, 100):
        for x, y in zip(a.at(step), b.at(step), strict=True):
            assert x.dtype == np.int64
            assert x.shape == (4, 7)
            assert np.array_equal(x, y)
    assert np.array_equal(a.at(100).input_ids, later.input_ids)
    assert not np.array_equal(a.at(0).input_ids, Batches(split, 7, 4, seed=4).at(0).input_ids)


def test_nothing_about_the_encoding_can_enter() -> None:
    parameters = set(inspect.signature(Batches).parameters)
    assert parameters == {"split", "context_length", "batch_size", "seed", "first_token"}


def test_the_order_is_pinned() -> None:
    # The order of tokens is part of every recorded run; it must not change between versions.
    assert Batches(numbered([100]), 9, 4, seed=0).offsets(0).tolist() == [0, 18, 81, 9]
    assert Batches(numbered([100]), 9, 4, seed=5).offsets(7).tolist() == [9, 72, 0, 54]


@pytest.mark.parametrize("batch_size", [1, 4, 5, 11, 23, 40])
def test_every_window_once_an_epoch_across_batch_boundaries(batch_size: int) -> None:
    split = numbered([60, 61])
    batches = Batches(split, 11, batch_size, seed=1)
    assert batches.windows == 10  # (121 - 1) // 11
    steps = -(-30 // batch_size)
    rows = np.concatenate([batches.at(step).input_ids for step in range(steps)])
    epochs = rows[:30].reshape(3, 10, 11)
    for epoch in epochs:
        assert sorted(epoch[:, 0]) == [11 * i for i in range(10)]
    assert any(not np.array_equal(epochs[0], epochs[i]) for i in (1, 2))


def test_an_epoch_predicts_every_token_but_the_first_once() -> None:
    split = numbered([33, 40, 28])  # 101 tokens: 10 windows of 10, no rest
    batch = Batches(split, 10, 10, seed=2).at(0)
    assert np.array_equal(batch.targets[:, :-1], batch.input_ids[:, 1:])
    assert np.array_equal(batch.targets, batch.input_ids + 1)
    assert sorted(batch.targets.ravel()) == list(range(1, 101))


def test_processes_may_take_rows_of_a_batch() -> None:
    batches = Batches(numbered([200]), 6, 8, seed=0)
    whole = batches.at(9)
    parts = [batches.at(9, slice(0, 3)), batches.at(9, slice(3, 8))]
    for index in range(4):
        joined = np.concatenate([part[index] for part in parts])
        assert np.array_equal(joined, whole[index])


@pytest.mark.parametrize("seed", range(8))
def test_documents_and_positions_equal_the_slow_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    split = numbered(rng.integers(1, 12, 60).tolist(), dtype=np.uint32)
    length = int(rng.integers(1, 30))
    offsets = rng.integers(0, len(split) - length, 20)
    batch = rows_at(split, offsets, length)
    starts = set(split.starts.tolist())
    for row, offset in enumerate(offsets):
        document = position = 0
        for t in range(length):
            if t and int(offset) + t in starts:
                document, position = document + 1, 0
            assert (batch.documents[row, t], batch.positions[row, t]) == (document, position)
            assert batch.input_ids[row, t] == offset + t
            assert batch.targets[row, t] == offset + t + 1
            position += 1


def test_large_token_numbers_survive() -> None:
    split = Split(np.full(20, 65_535, np.uint16), np.array([0]), ["a"])
    assert (Batches(split, 4, 2, 0).at(0).input_ids == 65_535).all()


def test_what_cannot_be_batched_is_refused() -> None:
    split = numbered([10])
    with pytest.raises(ValueError, match="10 tokens, too few for one window of 11"):
        Batches(split, 10, 1, 0)
    for arguments in ((0, 1, 0), (4, 0, 0), (4, 1, -1)):
        with pytest.raises(ValueError, match="or more"):
            Batches(split, *arguments)
    with pytest.raises(ValueError, match="step is -1"):
        Batches(split, 4, 1, 0).at(-1)


def test_a_first_token_takes_the_place_of_the_first_input_alone() -> None:
    split = Split(np.arange(1, 201, dtype=np.uint16), np.array([0, 90]), ["a", "b"])
    plain = Batches(split, 16, 4, seed=1)
    opened = Batches(split, 16, 4, seed=1, first_token=0)
    for step in range(3):
        before, after = plain.at(step), opened.at(step)
        assert (after.input_ids[:, 0] == 0).all()
        assert np.array_equal(after.input_ids[:, 1:], before.input_ids[:, 1:])
        assert np.array_equal(after.targets, before.targets)
