"""Splitting by document: by content, with long documents held out, never a text on two sides."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pe.data import evaluation_windows, prepare
from pe.data.corpora import open_corpus
from pe.data.documents import read_documents
from pe.data.splits import SPLITS, TEST, TRAIN, VALIDATION, assign, fingerprint


def digests(texts: Sequence[object]) -> np.ndarray:
    rows = [np.frombuffer(hashlib.sha256(repr(t).encode()).digest()[:16], np.uint8) for t in texts]
    return np.stack(rows)


def random_sizes(count: int, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(9, 1.5, count)).astype(np.int64) + 1


def test_shares_and_long_documents() -> None:
    sizes = random_sizes(4000)
    split = assign(sizes, digests(range(4000)), np.full(4000, -1))
    shares = np.bincount(split) / 4000
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.015)
    longest = np.argsort(sizes)[-60:]
    for held_out in (VALIDATION, TEST):
        assert 3 <= np.count_nonzero(split[longest] == held_out) <= 12


def test_the_split_follows_the_text_not_the_order() -> None:
    sizes, names = np.arange(300) * 7919 % 100_003 + 1, digests(range(300))
    split = assign(sizes, names, np.full(300, -1))
    order = np.random.default_rng(1).permutation(300)
    again = assign(sizes[order], names[order], np.full(300, -1))
    assert (again == split[order]).all()
    # Pins the rule: if this changes, cached data does too, and pe.data.cache.FORMAT must rise.
    assert fingerprint(names, split) == "e39c7d10c4a28bb3"


def test_the_embedded_corpus_holds_out_long_documents(tmp_path: Path) -> None:
    """Evaluation at 16 times a context of 256 (and of 1024) needs documents that long."""
    corpus, budget = open_corpus("stdlib")
    documents = read_documents(corpus, budget, tmp_path)
    split = assign(documents.sizes, documents.digests, documents.source_split)
    generous = 5  # bytes a token, more than any vocabulary of ours reaches on source text
    for held_out in (VALIDATION, TEST):
        sizes = documents.sizes[split == held_out]
        assert np.count_nonzero(sizes > 16 * 256 * generous) >= 8
        assert np.count_nonzero(sizes > 16 * 1024 * generous) >= 2
        assert 0.03 < sizes.sum() / documents.sizes.sum() < 0.12


def test_the_embedded_corpus_end_to_end(tmp_path: Path) -> None:
    data = prepare("stdlib@150k", 512, cache=tmp_path)
    assert len(data.train) > 5 * len(data.test) > 5000
    assert data.train.tokens.max() < 512
    text = data.tokenizer.decode(data.train.tokens[: data.train.lengths[0] - 1].tolist())
    library = Path(sysconfig.get_paths()["stdlib"])
    assert text == (library / data.train.names[0]).read_bytes().decode()
    assert len(evaluation_windows(data.test, 512, 64, 8)) == 8


def test_given_splits_are_kept_and_missing_ones_come_from_training() -> None:
    given = np.array([TRAIN] * 90 + [VALIDATION] * 10)
    split = assign(random_sizes(100), digests(range(100)), given)
    assert (split[90:] == VALIDATION).all()
    assert (split[:90] != VALIDATION).all()
    assert 0 < np.count_nonzero(split == TEST) <= 20


@pytest.mark.parametrize("count", [3, 4, 7, 30])
def test_few_documents_still_fill_every_split(count: int) -> None:
    split = assign(random_sizes(count), digests(range(count)), np.full(count, -1))
    assert set(split) == {0, 1, 2}
    assert np.count_nonzero(split == TRAIN) >= np.count_nonzero(split == TEST)


def test_too_few_documents_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"1 distinct document\(s\), too few for a validation"):
        assign(np.array([5]), digests("a"), np.array([TRAIN]))


def test_a_duplicated_text_is_on_one_side_only(tmp_path: Path) -> None:
    books = tmp_path / "books"
    books.mkdir()
    texts = [f"word{i} and more of word{i}\n" * (i % 9 + 1) for i in range(60)]
    for i, text in enumerate(texts + texts[:30]):
        (books / f"{i:02}.txt").write_text(text)
    data = prepare(str(books), 264, cache=tmp_path / "cache")
    seen: list[str] = []
    for name in SPLITS:
        split = getattr(data, name)
        ends = [*split.starts[1:], len(split.tokens)]
        for start, end in zip(split.starts, ends, strict=True):
            assert split.tokens[end - 1] == data.end_id
            seen.append(data.tokenizer.decode(split.tokens[start : end - 1].tolist()))
    assert sorted(seen) == sorted(texts)
    assert data.summary()["documents"] == 60
    assert data.notes == ["30 documents left out: exact duplicate of another"]


def test_a_single_text_is_cut_and_says_so(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(400))
    (tmp_path / "input.txt").write_text(text)
    data = prepare(str(tmp_path / "input.txt"), 264, cache=tmp_path / "cache")
    parts = [getattr(data, name) for name in SPLITS]
    assert [list(p.names) for p in parts] == [[f"input.txt#{name}"] for name in SPLITS]
    decode = data.tokenizer.decode
    assert "".join(decode(p.tokens[:-1].tolist()) for p in parts) == text
    assert len(parts[0]) > 8 * len(parts[1])
    assert any("cut into training" in note for note in data.notes)
    (tmp_path / "short.txt").write_text("one line")
    with pytest.raises(ValueError, match="too few lines to be cut"):
        prepare(str(tmp_path / "short.txt"), 264, cache=tmp_path / "cache")
