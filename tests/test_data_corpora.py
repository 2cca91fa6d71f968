"""Corpora: every local format, the hub loader on local files of its format, names, budgets."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pe.data.corpora import Budget, open_corpus
from pe.data.corpora.stdlib import StandardLibrary
from pe.data.documents import Documents, read_documents

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"Document {i}.\n" + "naïve line ✓\r\n" * (i + 1) for i in range(7)]


def read(spec: str, work: Path) -> Documents:
    corpus, budget = open_corpus(spec)
    work.mkdir(exist_ok=True)
    return read_documents(corpus, budget, work)


def texts(documents: Documents) -> list[str]:
    return list(documents.texts(list(range(len(documents)))))


def lines(rows: list[str], ids: bool = False) -> bytes:
    records = [{"text": t, **({"id": f"id-{i}"} if ids else {})} for i, t in enumerate(rows)]
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def write_parquet(path: Path, rows: list[str]) -> None:
    pq.write_table(pa.table({"text": rows, "id": [f"id-{i}" for i in range(len(rows))]}), path)


def write_zst(path: Path, rows: list[str]) -> None:
    half = len(rows) // 2
    with path.open("wb") as out:  # two frames, as parallel compressors write
        for part in (rows[:half], rows[half:]):
            out.write(pa.compress(lines(part), codec="zstd", asbytes=True))


FORMATS: dict[str, Callable[[Path, list[str]], object]] = {
    "a.jsonl": lambda path, rows: path.write_bytes(lines(rows)),
    "a.jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress(lines(rows))),
    "a.jsonl.xz": lambda path, rows: path.write_bytes(lzma.compress(lines(rows))),
    "a.jsonl.zst": write_zst,
    "a.parquet": write_parquet,
}


def test_files_of_a_folder_that_are_not_read_are_in_the_notes(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / ".git").mkdir(parents=True)
    for name in (
        "a.txt",
        "a2.txt",
        "b.TXT",
        "c.md",
        "d.md",
        "e.csv",
        "LICENSE",
        ".hidden",
        ".git/f.md",
    ):
        (folder / name).write_text(f"this is {name}\n")
    documents = read(str(folder), tmp_path / "work")
    assert documents.names == ["a.txt", "a2.txt", "b.TXT"]
    assert sorted(documents.notes) == [
        "1 documents left out: files ending in .csv",
        "1 documents left out: files without an ending",
        "2 documents left out: files ending in .md",
    ]
    before = open_corpus(str(folder))[0].identity()
    (folder / "g.md").write_text("one more")
    assert open_corpus(str(folder))[0].identity() != before, "the notes would be old"


@pytest.mark.parametrize("name", FORMATS)
def test_a_local_file_gives_its_texts_unchanged(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name, TEXTS)
    documents = read(str(tmp_path / name), tmp_path / "work")
    assert texts(documents) == TEXTS
    assert (documents.source_split == -1).all()
    assert len(set(documents.names)) == len(TEXTS)


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", lambda body: MARK + body),
        ("a.jsonl", lambda body: body.replace(b"\n", b"\r\n\r\n")),
        ("a.jsonl.gz", lambda body: gzip.compress(MARK + body)),
        ("a.jsonl.xz", lambda body: lzma.compress(MARK + body)),
        ("a.jsonl.zst", lambda body: pa.compress(MARK + body, codec="zstd", asbytes=True)),
        ("a.parquet", None),
    ],
)
def test_formats_agree_on_marks_empty_texts_and_nulls(
    name: str, content: Callable[[bytes], bytes] | None, tmp_path: Path
) -> None:
    rows = [*TEXTS[:2], None, TEXTS[2], "", " \n"]
    if content is None:
        pq.write_table(pa.table({"text": rows}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content(lines(rows)))  # type: ignore[arg-type]
    documents = read(str(tmp_path / name), tmp_path / "work")
    assert texts(documents) == TEXTS[:3]
    assert documents.notes == ["3 documents left out: empty"]


def test_a_parquet_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="a.parquet, row 1: the text is int, not a string"):
        read(str(tmp_path / "a.parquet"), tmp_path / "work")


def test_a_damaged_page_of_a_parquet_file_is_reported_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"{n * 7919} words" for n in range(500)]}), path)
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * 2000 + content[2100:])
    with pytest.raises(ValueError, match="a.parquet is damaged after row"):
        read(str(path), tmp_path / "work")


def test_a_parquet_text_that_is_not_utf8_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = [*(text.encode() for text in TEXTS), "naïve".encode("latin-1")]
    column = pa.array(rows, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    documents = read(str(tmp_path / "a.parquet"), tmp_path / "work")
    assert texts(documents) == TEXTS
    assert documents.notes == ["1 documents left out: not UTF-8"]


def test_file_endings_may_be_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "A.TXT").write_bytes(TEXTS[0].encode())
    (tmp_path / "books" / "b.Jsonl").write_bytes(lines(TEXTS[1:]))
    assert texts(read(str(tmp_path / "books"), tmp_path / "work")) == TEXTS
    assert texts(read(str(tmp_path / "books" / "b.Jsonl"), tmp_path / "work")) == TEXTS[1:]


def test_a_directory_of_texts_in_the_order_of_their_names(tmp_path: Path) -> None:
    books = tmp_path / "books"
    (books / "more").mkdir(parents=True)
    for i, text in enumerate(TEXTS[:3]):
        (books / f"{i}.txt").write_bytes(text.encode())
    (books / "more" / "x.txt").write_bytes(TEXTS[3].encode())
    (books / "README.md").write_text("not a document")
    (books / "bad.txt").write_bytes(b"\xff\xfe\xff")
    (books / "empty.txt").write_bytes(b" \n")
    documents = read(str(books), tmp_path / "work")
    assert texts(documents) == TEXTS[:4]
    assert documents.names == ["0.txt", "1.txt", "2.txt", "more/x.txt"]
    assert "1 documents left out: not UTF-8" in documents.notes
    assert "1 documents left out: empty" in documents.notes


def test_files_named_for_splits_are_kept_apart(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / "train-00.jsonl.xz").write_bytes(lzma.compress(lines(TEXTS[:3], ids=True)))
    (shards / "train-01.jsonl.xz").write_bytes(lzma.compress(lines(TEXTS[3:5])))
    (shards / "val.jsonl.xz").write_bytes(lzma.compress(lines([TEXTS[5], TEXTS[0]])))
    (shards / "test.jsonl.xz").write_bytes(lzma.compress(lines([TEXTS[6], TEXTS[5]])))
    documents = read(str(shards), tmp_path / "work")
    given = dict(zip(texts(documents), documents.source_split, strict=True))
    # A text found twice stays held out: test before validation before training.
    assert given == {
        TEXTS[0]: 1, TEXTS[1]: 0, TEXTS[2]: 0, TEXTS[3]: 0, TEXTS[4]: 0, TEXTS[5]: 2, TEXTS[6]: 2,
    }  # fmt: skip
    assert "id-1" in documents.names
    assert "2 documents left out: exact duplicate of another" in documents.notes


def test_a_name_that_only_begins_like_a_split_is_none(tmp_path: Path) -> None:
    books = tmp_path / "books"
    books.mkdir()
    for name, text in zip(("testament", "trainspotting", "test", "valley"), TEXTS, strict=False):
        (books / f"{name}.txt").write_bytes(text.encode())
    assert (read(str(books), tmp_path / "work").source_split == -1).all()
    (books / "train-1.txt").write_bytes(TEXTS[5].encode())
    with pytest.raises(ValueError, match="is not; name every file"):
        open_corpus(str(books))


def damaged(content: bytes) -> bytes:
    """The content with half of its bytes replaced."""
    quarter = len(content) // 4
    return content[:quarter] + b"\xff" * (2 * quarter) + content[3 * quarter :]


MIXED = b"".join(b'{"text": "%d"}\n' % (n * 7919) for n in range(500))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2, is not JSON"),
        ("a.jsonl", b'{"body": "x"}\n', "no column 'text' or 'content'; it has body"),
        ("a.jsonl", b'{"text": 3}\n', "line 1: the text is int"),
        ("a.jsonl", b"[1]\n", "line 1, is not a JSON object"),
        ("a.jsonl.xz", lzma.compress(lines(TEXTS))[:-20], "damaged"),
        ("a.jsonl.gz", gzip.compress(lines(TEXTS))[:-20], "damaged"),
        ("a.jsonl.gz", damaged(gzip.compress(MIXED)), "a.jsonl.gz is damaged after line"),
        ("a.parquet", b"PAR1 no", "not a readable parquet file"),
        ("a.doc", b"x", "has none of the endings .txt, .jsonl"),
        ("a.txt", b"", "holds no text"),
    ],
    # Compressed bytes hold the time, and workers must collect the same names.
    ids=[
        "cut line", "no column", "no text", "no object", "xz", "gz", "gz inside", "parquet", "doc",
        "empty",
    ],
)  # fmt: skip
def test_an_unreadable_file_is_reported_by_name(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path / name), tmp_path / "work")


def test_no_corpus_is_not_the_working_folder() -> None:
    with pytest.raises(ValueError, match="corpus: expected a path or one of .*stdlib.*; got ''"):
        open_corpus("")


def test_an_unknown_corpus_names_the_nearest_and_the_path_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"did you mean 'fineweb-edu'\?.*no file or directory"):
        open_corpus("finweb-edu")
    with pytest.raises(ValueError, match=str(tmp_path / "nothing")):
        open_corpus(str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no file ending in"):
        open_corpus(str(tmp_path / "empty"))


def test_budgets() -> None:
    assert open_corpus("fineweb@200M")[1] == Budget(tokens=200_000_000)
    assert open_corpus("stdlib@1.5k")[1] == Budget(tokens=1500)
    assert open_corpus("pg19@20docs")[1] == Budget(documents=20)
    assert open_corpus("stdlib")[1] == Budget()
    with pytest.raises(ValueError, match="at least 1"):
        open_corpus("stdlib@0docs")


def test_a_budget_stops_reading(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(TEXTS) + b"broken")  # the end is never read
    assert texts(read(f"{tmp_path}/a.jsonl@3docs", tmp_path / "work")) == TEXTS[:3]
    assert texts(read(f"{tmp_path}/a.jsonl@20", tmp_path / "work")) == TEXTS[:3]


def test_stdlib_is_the_running_pythons_sources_and_topics(tmp_path: Path) -> None:
    documents = read("stdlib", tmp_path / "work")
    names = documents.names
    assert names[:1] == ["__future__.py"]
    assert {"json/decoder.py", "pydoc_data/topics/for", "argparse.py"} <= set(names)
    assert not any("/test/" in f"/{n}" or "site-packages" in n for n in names)
    assert "pydoc_data/topics.py" not in names
    (index,) = [i for i, n in enumerate(names) if n == "json/decoder.py"]
    assert (
        next(documents.texts([index]))
        == Path(sys.modules["json.decoder"].__file__ or "").read_bytes().decode()
    )


def test_stdlib_without_sources_and_with_undecodable_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no Python sources"):
        StandardLibrary(tmp_path).files()
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "b.py").write_bytes(b"# latin \xe9\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "c.py").write_text("no\n")
    corpus = StandardLibrary(tmp_path)
    assert [d.name for _, part in corpus.parts() for d in part] == ["a.py"]
    assert corpus.skipped == {"not UTF-8": 1}


def test_hub_corpora_read_the_same_format_from_a_local_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_HUB_DIR", str(tmp_path))
    fineweb = tmp_path / "fineweb" / "sample" / "10BT"
    fineweb.mkdir(parents=True)
    write_parquet(fineweb / "000_00000.parquet", TEXTS[:4])
    write_parquet(fineweb / "001_00000.parquet", TEXTS[4:])
    documents = read("fineweb", tmp_path / "work")
    assert texts(documents) == TEXTS
    assert documents.names[0] == "id-0"
    assert (documents.source_split == -1).all()
    assert texts(read("fineweb@5docs", tmp_path / "work")) == TEXTS[:5]

    books = tmp_path / "pg19" / "data"
    books.mkdir(parents=True)
    for split, rows in (("train", TEXTS[:5]), ("validation", TEXTS[5:6]), ("test", TEXTS[6:])):
        table = {"short_book_title": rows, "text": rows}
        pq.write_table(pa.table(table), books / f"{split}-00000-of-00001.parquet")
    documents = read("pg19", tmp_path / "work")
    assert dict(zip(texts(documents), documents.source_split, strict=True)) == dict(
        zip(TEXTS, [0] * 5 + [1, 2], strict=True)
    )
    assert documents.names[1] == "data/train-00000-of-00001.parquet:0"

    stories = tmp_path / "tinystories"
    stories.mkdir()
    (stories / "train.jsonl").write_bytes(lines(TEXTS[:6]))
    (stories / "validation.jsonl").write_bytes(lines(TEXTS[6:]))
    documents = read("tinystories", tmp_path / "work")
    assert sorted(documents.source_split.tolist()) == [0] * 6 + [1]


def test_hub_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PE_HUB_DIR", str(tmp_path))
    with pytest.raises(ValueError, match="PE_HUB_DIR"):
        open_corpus("fineweb")
    monkeypatch.delenv("PE_HUB_DIR")

    def offline(*args: object, **kwargs: object) -> object:
        raise ConnectionError("no route to host\nmore")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(ValueError, match=r"no route to host.*check the network.*stdlib"):
        read("fineweb-edu@1M", tmp_path / "work")
    with pytest.raises(ValueError, match="'fineweb@1Mb': a budget is a number with k, M or G"):
        open_corpus("fineweb@1Mb")


def test_the_hub_table_is_asked_for_as_the_hub_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []

    def fake(path: str, name: str | None, *, split: str, streaming: bool) -> object:
        calls.append((path, name, split, streaming))
        return iter([{"text": t + split, "id": None, "url": None} for t in TEXTS])

    monkeypatch.delenv("PE_HUB_DIR", raising=False)
    monkeypatch.setattr("datasets.load_dataset", fake)
    for name in ("fineweb", "fineweb-edu", "tinystories", "pg19"):
        read(name, tmp_path / "work")
    assert calls == [
        ("HuggingFaceFW/fineweb", "sample-10BT", "train", True),
        ("HuggingFaceFW/fineweb-edu", "sample-10BT", "train", True),
        ("roneneldan/TinyStories", None, "validation", True),
        ("roneneldan/TinyStories", None, "train", True),
        ("emozilla/pg19", None, "validation", True),
        ("emozilla/pg19", None, "test", True),
        ("emozilla/pg19", None, "train", True),
    ]
