"""The cache: work is done once, by one process, and nothing damaged is ever read."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pe.data import TokenData, prepare, shards
from pe.data.splits import SPLITS


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": i, "text": f"text {i} of many words " * (i % 5 + 1)} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts were tokenised, one number a batch."""
    counts: list[int] = []
    real = shards.encode

    def counting(encoder: object, texts: list[str]) -> Iterator[list[int]]:
        counts.append(len(texts))
        return real(encoder, texts)  # type: ignore[arg-type]

    monkeypatch.setattr(shards, "encode", counting)
    return counts


def same(a: TokenData, b: TokenData) -> bool:
    return all(
        np.array_equal(getattr(a, n).tokens, getattr(b, n).tokens)
        and np.array_equal(getattr(a, n).starts, getattr(b, n).starts)
        and list(getattr(a, n).names) == list(getattr(b, n).names)
        for n in SPLITS
    )


def test_text_is_tokenised_once(corpus: Path, tmp_path: Path, encoded: list[int]) -> None:
    first = prepare(str(corpus), 264, cache=tmp_path / "cache")
    assert sum(encoded) == 40
    second = prepare(str(corpus), 264, cache=tmp_path / "cache")
    assert sum(encoded) == 40
    assert same(first, second)
    assert first.summary() == second.summary()
    assert first.summary()["corpus"] == str(corpus)
    assert isinstance(second.train.tokens, np.memmap)
    assert second.train.tokens.dtype == np.uint16
    assert sum(len(getattr(second, n).starts) for n in SPLITS) == 40
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith("reading-")]


def test_an_unchanged_file_is_not_read_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(str(corpus), 264, cache=tmp_path / "cache")
    monkeypatch.setattr("pe.data.preparation.read_documents", None)
    prepare(str(corpus), 264, cache=tmp_path / "cache")


def test_text_of_equal_size_and_time_is_read_again(corpus: Path, tmp_path: Path) -> None:
    first = prepare(str(corpus), 264, cache=tmp_path / "cache")
    seen = corpus.stat()
    corpus.write_text(corpus.read_text().replace("text 7", "text 8", 1))
    os.utime(corpus, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert corpus.stat().st_size == seen.st_size
    assert prepare(str(corpus), 264, cache=tmp_path / "cache").fingerprint != first.fingerprint


def test_the_same_content_elsewhere_is_not_tokenised_again(
    corpus: Path, tmp_path: Path, encoded: list[int]
) -> None:
    first = prepare(str(corpus), 264, cache=tmp_path / "cache")
    moved = tmp_path / "elsewhere.jsonl"
    shutil.copyfile(corpus, moved)
    os.utime(moved, ns=(1, 1))
    second = prepare(str(moved), 264, cache=tmp_path / "cache")
    assert sum(encoded) == 40
    assert second.directory == first.directory
    assert second.fingerprint == first.fingerprint


def test_changed_content_and_another_vocabulary_are_other_entries(
    corpus: Path, tmp_path: Path, encoded: list[int]
) -> None:
    first = prepare(str(corpus), 264, cache=tmp_path / "cache")
    other = prepare(str(corpus), 272, cache=tmp_path / "cache")
    assert other.fingerprint == first.fingerprint
    assert other.directory != first.directory
    text = corpus.read_text()
    corpus.write_text(text.replace("text 7", "text 8", 1))
    changed = prepare(str(corpus), 264, cache=tmp_path / "cache")
    assert changed.fingerprint != first.fingerprint
    corpus.write_text(text)
    assert prepare(str(corpus), 264, cache=tmp_path / "cache").fingerprint == first.fingerprint
    assert sum(encoded) == 120


def test_tokens_of_another_text_under_this_ones_name_are_refused(
    corpus: Path, tmp_path: Path
) -> None:
    text, cache = corpus.read_text(), tmp_path / "cache"
    first = prepare(str(corpus), 264, cache=cache)
    corpus.write_text(text.replace("text 7", "text 8", 1))
    second = prepare(str(corpus), 264, cache=cache)
    shutil.rmtree(second.directory)
    first.directory.rename(second.directory)
    with pytest.raises(ValueError, match=f"holds tokens of the text {first.fingerprint}, not of"):
        prepare(str(corpus), 264, cache=cache)


@pytest.mark.parametrize(
    "harm",
    [
        "truncate train.bin",
        "flip train.bin",
        "flip test.starts.npy",
        "remove validation.bin",
        "remove tokenizer/tokenizer.json",
        "truncate seal.json",
        "remove seal.json",
        "truncate meta.json",
    ],
)
def test_a_damaged_entry_is_made_again_and_said_so(
    harm: str, corpus: Path, tmp_path: Path, encoded: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    first = prepare(str(corpus), 264, cache=tmp_path / "cache")
    whole = {p.name: p.read_bytes() for p in first.directory.iterdir() if p.is_file()}
    how, name = harm.split()
    path = first.directory / name
    if how == "truncate":
        path.write_bytes(path.read_bytes()[:-3])
    elif how == "flip":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    again = prepare(str(corpus), 264, cache=tmp_path / "cache")
    assert sum(encoded) == 80
    assert "damaged" in caplog.text
    assert str(first.directory) in caplog.text
    assert {p.name: p.read_bytes() for p in again.directory.iterdir() if p.is_file()} == whole


def test_a_killed_process_leaves_nothing_that_is_read(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded: list[int]
) -> None:
    script = (
        "import os, sys\n"
        "from pe.data import prepare, shards\n"
        "real = shards.encode\n"
        "def dying(encoder, texts):\n"
        "    yield next(iter(real(encoder, texts)))\n"
        "    os.kill(os.getpid(), 9)\n"
        "shards.encode = dying\n"
        "prepare(sys.argv[1], 264, cache=sys.argv[2])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(corpus), str(tmp_path / "cache")])
    assert done.returncode == -9
    tokens = tmp_path / "cache" / "tokens"
    assert [p.name[0] for p in tokens.iterdir()] == ["."]
    data = prepare(str(corpus), 264, cache=tmp_path / "cache")
    assert list(tokens.iterdir()) == [data.directory]
    assert sum(encoded) == 40


def test_two_processes_at_once_tokenise_once(corpus: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pe.data import prepare, shards\n"
        "real = shards.tokenizers_.train_bpe\n"
        "def slow(*args):\n"
        "    print('trained')\n"
        "    time.sleep(1)\n"
        "    return real(*args)\n"
        "shards.tokenizers_.train_bpe = slow\n"
        "print(prepare(sys.argv[1], 264, cache=sys.argv[2]).train.tokens[:50].tolist())\n"
    )
    command = [sys.executable, "-c", script, str(corpus), str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(map(len, answers)) == [1, 2]
    assert answers[0][-1] == answers[1][-1]


def test_hub_documents_are_kept_for_another_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    downloads: list[str] = []

    def fake(path: str, name: str | None, *, split: str, streaming: bool) -> object:
        downloads.append(path)
        return iter([{"text": f"story {i} " * (i + 1), "id": i} for i in range(30)])

    monkeypatch.delenv("PE_HUB_DIR", raising=False)
    monkeypatch.setattr("datasets.load_dataset", fake)
    first = prepare("fineweb@1M", 264, cache=tmp_path / "cache")
    other = prepare("fineweb@1M", 272, cache=tmp_path / "cache")
    assert len(downloads) == 1
    assert other.fingerprint == first.fingerprint
    (text,) = (tmp_path / "cache" / "documents").glob("*/text.bin")
    text.write_bytes(text.read_bytes()[:-1])
    again = prepare("fineweb@1M", 280, cache=tmp_path / "cache")
    assert len(downloads) == 2
    assert "damaged" in caplog.text
    assert again.fingerprint == first.fingerprint


def test_the_environment_names_the_cache(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_CACHE", str(tmp_path / "mine"))
    assert prepare(str(corpus), 264).directory.parent.parent == tmp_path / "mine"
    monkeypatch.setenv("PE_CACHE", str(corpus / "below a file"))
    with pytest.raises(ValueError, match="set PE_CACHE"):
        prepare(str(corpus), 264)


@pytest.mark.parametrize("where", ["read_documents", "write_shards", "write_json"])
def test_a_cache_on_a_full_disk_says_what_to_do_and_leaves_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(f"pe.data.preparation.{where}", full)
        with pytest.raises(ValueError, match=r"No space left .*MiB are free there\): make room"):
            prepare(str(corpus), 264, cache=cache)
    left = {path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert left == set() or where == "write_json"
    assert len(prepare(str(corpus), 264, cache=cache).train)


def test_an_unreadable_text_is_no_matter_of_the_cache(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(corpus))

    monkeypatch.setattr("pe.data.preparation.read_documents", refused)
    with pytest.raises(PermissionError, match=r"corpus\.jsonl"):
        prepare(str(corpus), 264, cache=tmp_path / "cache")


def test_preparing_and_batching_need_no_torch(corpus: Path, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pe.data import Batches, prepare\n"
        "data = prepare(sys.argv[1], 264, cache=sys.argv[2])\n"
        "Batches(data.train, 8, 2, 0).at(3)\n"
        "print([m for m in ('torch', 'transformers', 'datasets', 'pandas') if m in sys.modules])\n"
    )
    command = [sys.executable, "-c", script, str(corpus), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
