"""Files larger than memory: texts in pieces, separators, and the layouts that come with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_training import tiny
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

import pe
from pe.data import TokenData, documents, formats, prepare, shards
from pe.data.corpora import open_corpus
from pe.data.documents import Documents, read_documents
from pe.data.splits import SPLITS
from pe.data.tokenizer import train_bpe
from pe.runs import Run

SPACES = "\n\n\n  and more!!!\r\n日本語。\u3000\n\u00a0\n x"
TEXT = "".join(f"Line {i}: it's {i * 7919}  words,{SPACES}{i}" for i in range(90))


def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "bpe":
        return train_bpe([TEXT], 400)
    rules = {
        # As Llama 3: punctuation takes the line ends after it along.
        "punctuation": [
            pre_tokenizers.Split(Regex(r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+|\S+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ],
        "mark": [],
    }
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(rules[kind])
    if kind == "mark":  # as Llama 2: a mark in front of each text, so that none can be cut
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    alphabet = sorted({*pre_tokenizers.ByteLevel.alphabet(), *TEXT, "▁"})
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT[:300]], trainer=trainer)
    return tokenizer


def read(spec: str, work: Path, separator: str = "") -> Documents:
    corpus, budget = open_corpus(spec, separator)
    work.mkdir(exist_ok=True)
    return read_documents(corpus, budget, work)


@pytest.mark.parametrize("kind", ["bpe", "punctuation", "mark"])
def test_a_text_in_pieces_has_the_tokens_of_the_whole(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [TEXT, "b", "c"]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    texts, tokenizer = read(str(tmp_path / "a.jsonl"), tmp_path / "work"), tokenizer_of(kind)
    monkeypatch.setattr(documents, "PIECE", 701)
    monkeypatch.setattr(shards, "ENCODE_BYTES", 900)
    tokens: list[list[int]] = [[]]
    batches = list(shards._batches(texts, np.arange(3), shards._joins(tokenizer)))
    for batch in batches:
        encoded = shards.encode(tokenizer, [piece for piece, _ in batch])
        for (_, ends), ids in zip(batch, encoded, strict=True):
            tokens[-1] += ids
            tokens += [[]] if ends else []
    assert tokens[:-1] == [tokenizer.encode(row, add_special_tokens=False).ids for row in rows]
    assert (len(batches) > 3) == (kind != "mark")


def test_the_tokenizer_gets_a_long_text_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece, it took 150 times the size of the text; `benchmarks/prepare_memory.py`."""
    line = "The miller sleeps until noon, and nobody has come up the road since {}.\n"
    (tmp_path / "book.txt").write_text("".join(line.format(i) for i in range(2_000)))
    (tmp_path / "two").mkdir()
    for name in ("train.txt", "test.txt"):  # one text in both is written, and then left out
        (tmp_path / "two" / name).write_text((tmp_path / "book.txt").read_text())
    sizes: dict[str, list[int]] = {"read": [], "train": [], "encode": []}
    write, train, encode = documents._write, shards.tokenizers_.train_bpe, shards.encode

    def noted(pieces: Iterable[str], where: str) -> Iterator[str]:
        assert not isinstance(pieces, str)
        for piece in pieces:
            sizes[where].append(len(piece))
            yield piece

    def encoding(encoder: Tokenizer, texts: list[str]) -> Iterator[list[int]]:
        sizes["encode"].append(sum(map(len, texts)))
        return encode(encoder, texts)

    monkeypatch.setattr(documents, "_write", lambda text, out: write(noted(text, "read"), out))
    monkeypatch.setattr(
        shards.tokenizers_, "train_bpe", lambda text, size: train(noted(text, "train"), size)
    )
    monkeypatch.setattr(shards, "encode", encoding)
    monkeypatch.setattr(formats, "BLOCK", 5_000)
    monkeypatch.setattr(documents, "PIECE", 5_000)
    monkeypatch.setattr(shards, "ENCODE_BYTES", 8_000)
    prepare(str(tmp_path / "book.txt"), 280, cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="too few for a train split"):
        prepare(str(tmp_path / "two"), 280, cache=tmp_path / "cache")
    assert all(len(each) > 10 and max(each) <= 13_000 for each in sizes.values())


STORIES = ["Once upon a time.\nThe end.", "Two\n\nthree.", "Naïve ✓"]


@pytest.mark.parametrize("block", [1, 5, 1 << 20])
def test_a_separator_divides_a_text_file(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "BLOCK", block)
    path = tmp_path / "stories.txt"
    body = "\n<|endoftext|>\r\n".join([*STORIES, " \n"]).encode()
    path.write_bytes(b"\xef\xbb\xbf" + body + b"<|endoftext|>\xff")
    stories = read(str(path), tmp_path / "work", "<|endoftext|>")
    assert list(stories.texts(np.arange(3))) == STORIES
    assert stories.names == [f"stories.txt:{i}" for i in range(3)]
    assert stories.notes == ["1 documents left out: not UTF-8"]


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_blank_lines_divide_a_text_file(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "BLOCK", block)
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\nline\n\ntwo\r\n \t\r\n\n\n  three\n\n")
    parts = read(str(path), tmp_path / "work", "blank-lines")
    assert list(parts.texts(np.arange(len(parts)))) == ["one\nline", "two", "  three"]


def test_blank_lines_are_one_separator_also_where_a_block_of_the_file_ends_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\n \t\ntwo\n\n  \n")
    for block in range(1, 8):
        monkeypatch.setattr(formats, "BLOCK", block)
        texts = [text for _, text in formats.read_separated(path, "blank-lines")]
        assert texts == ["one", "two"], block


def test_a_separator_without_effect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "a.txt").write_text("no mark in here " * 50)
    for spec in (str(tmp_path / "a.jsonl"), "stdlib"):
        with pytest.raises(ValueError, match=r"separator: '<end>' has no effect on corpus"):
            open_corpus(spec, "<end>")
    for separator in ("<end>", "blank-lines"):
        with pytest.raises(ValueError, match=f"separator: '{separator}' has no effect .*no .txt"):
            read(str(tmp_path / "a.txt"), tmp_path / "work", separator)
    with (tmp_path / "a.txt").open("a") as file:
        file.write("<end>")
    monkeypatch.setattr(formats, "LONGEST", 100)
    monkeypatch.setattr(formats, "BLOCK", 200)
    with pytest.raises(ValueError, match=r"a.txt has 0 MB of text without the separator '<end>'"):
        read(str(tmp_path / "a.txt"), tmp_path / "work", "<end>")


def test_the_separator_belongs_to_what_the_cache_knows_a_file_by(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"story {i} " * 9 + "\n\n" for i in range(30)))
    whole, parts = (
        prepare(str(tmp_path / "a.txt"), 264, cache=tmp_path / "cache", separator=separator)
        for separator in ("", "blank-lines")
    )
    assert whole.summary()["documents"] == 3
    assert parts.summary()["documents"] == 30


def pair(folder: Path, train: str, held_out: str, name: str = "validation.txt") -> str:
    folder.mkdir()
    (folder / "train.txt").write_text(train)
    (folder / name).write_text(held_out)
    return str(folder)


def text_of(data: TokenData, split: str) -> str:
    tokens = getattr(data, split).tokens
    tokenizer = Tokenizer.from_file(str(data.directory / "tokenizer" / "tokenizer.json"))
    return str(tokenizer.decode([t for t in tokens.tolist() if t != data.end_id]))


@pytest.mark.parametrize("name", ["validation.txt", "test.txt"])
def test_one_held_out_file_is_validation_and_test(name: str, tmp_path: Path) -> None:
    train, held_out = ("".join(f"{word} {i}\n" for i in range(200)) for word in ("train", "held"))
    data = prepare(pair(tmp_path / "two", train, held_out, name), 264, cache=tmp_path / "cache")
    assert text_of(data, "train") == train
    assert text_of(data, "validation") + text_of(data, "test") == held_out
    assert 0.8 < len(data.test) / len(data.validation) < 1.25
    (note,) = data.notes
    assert note.startswith(f"{name} was cut into validation and test parts")


def test_half_of_the_held_out_texts_are_the_test_split_of_one_training_text(tmp_path: Path) -> None:
    folder = pair(tmp_path / "two", "word " * 900, "".join(f"held {i}\n\n" for i in range(10)))
    data = prepare(folder, 264, cache=tmp_path / "cache", separator="blank-lines")
    assert [len(getattr(data, name).starts) for name in SPLITS] == [1, 5, 5]
    assert data.notes == ["5 validation documents are the test split, which is missing"]


def test_progress_comes_as_lines_of_text(tmp_path: Path) -> None:
    path, lines = tmp_path / "a.txt", []
    path.write_text("".join(f"a line of text, number {i}\n" for i in range(2_000)))
    prepare(str(path), 280, cache=tmp_path / "cache", on_progress=lines.append)
    shown = [line for line in lines if re.search(r"tokenising for train:.*B/s", line)]
    assert shown
    assert "100%" in shown[-1]


def test_a_run_is_trained_and_evaluated_on_the_texts_between_separators(
    tmp_path: Path, alone: None
) -> None:
    words = "river mill noon cloud road".split()
    texts = [" ".join(words[(i * j) % 5] for j in range(1, 200)) + f" {i}" for i in range(40)]
    (tmp_path / "a.txt").write_text("<end>".join(texts))
    recipe = tiny(
        tmp_path / "a.txt", separator="<end>", steps=1, warmup_steps=0, context_length=32,
        target_tokens=8, evaluation_lengths=[32], evaluation_windows=2,
    )  # fmt: skip
    run = pe.train(Run(tmp_path / "run", recipe), quiet=True)
    assert run.read()["data"]["documents"] == 40
    assert pe.evaluate(run, quiet=True)["perplexity"]["32"]["value"] > 1
