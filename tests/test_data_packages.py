"""The corpus python-packages, on small wheels that pip takes from a folder."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pe.data.corpora import Budget, packages
from pe.data.corpora.packages import PythonPackages, fetch, read_list
from pe.data.documents import Documents, read_documents
from pe.data.splits import SPLITS


def code(word: str, lines: int = 40) -> str:
    return "".join(f"{word}_value_{i} = compute_{word}(argument_{i})\n" for i in range(lines))


def wheel(folder: Path, name: str, files: dict[str, str | bytes]) -> str:
    """Write a wheel of ``files``; returns its SHA-256."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, content in files.items():
            archive.writestr(inside, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of four packages, which pip finds in a folder and nowhere else."""
    source = tmp_path / "index"
    source.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(source))
    held = {"held/__init__.py": code("init"), "held/a/one.py": code("one"), "held/b.py": code("b")}
    hashes = {
        "train": wheel(
            source, "first",
            {
                "first/__init__.py": code("first"),
                "first/copy.py": code("one") + code("mine", 20),
                "first/data.py": "x = '" + "1" * 3000 + "'\n",
                "first/latin.py": ("# " + "é" * 300 + "\n").encode("latin-1"),
                "first/table.json": "{}" * 300,
            },
        ),
        "validation": wheel(source, "second", {"second/__init__.py": code("second")}),
        "test": wheel(source, "held", held),
    }  # fmt: skip
    names = dict(zip(("train", "validation", "test"), ("first", "second", "held"), strict=True))
    path = tmp_path / "list.txt"
    lines = [f"{names[s]}==1.0 --hash=sha256:{h}  # MIT; {s}" for s, h in hashes.items()]
    path.write_text("# a list\n" + "\n".join(lines) + "\n")
    return path


def read(path: Path, tmp_path: Path) -> Documents:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    corpus = PythonPackages(path, cache=tmp_path / "cache")
    return read_documents(corpus, Budget(), work)


def test_documents_are_whole_modules_in_reading_order(listed: Path, tmp_path: Path) -> None:
    documents = read(listed, tmp_path)
    texts = dict(zip(documents.names, documents.texts(np.arange(len(documents))), strict=True))
    held = texts["held/held/__init__.py"]
    order = [held.index(f"# held/{name}\n") for name in ("__init__.py", "b.py", "a/one.py")]
    assert order == sorted(order)
    assert code("one").strip() in held
    by_split = dict(zip(documents.names, documents.source_split, strict=True))
    assert by_split == {
        "held/held/__init__.py": SPLITS.index("test"),
        "second/second/__init__.py": SPLITS.index("validation"),
        "first/first/__init__.py": SPLITS.index("train"),
    }


def test_training_loses_what_is_held_out_and_not_the_other_way_round(
    listed: Path, tmp_path: Path
) -> None:
    documents = read(listed, tmp_path)
    text = "".join(documents.texts(np.arange(len(documents))))
    assert text.count("one_value_7 =") == 1
    assert "mine_value_3" not in text, "most lines of its file are the test's"
    assert "1 documents left out: files that repeat earlier ones" in documents.notes
    assert "1 documents left out: files with very long lines" in documents.notes
    assert "1 documents left out: files not UTF-8" in documents.notes


def test_long_packages_are_cut_between_files_and_thinned_evenly(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "LONG", 1_000)
    names = read(listed, tmp_path).names
    assert [n for n in names if n.startswith("held/")] == [
        "held/held/__init__.py", "held/held/b.py", "held/held/a/one.py",
    ]  # fmt: skip
    monkeypatch.setattr(packages, "CAP", 3_000)
    thinned = [n for n in read(listed, tmp_path).names if n.startswith("held/")]
    assert 1 <= len(thinned) < 3


def test_a_wheel_is_downloaded_once_and_only_as_listed(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package, *_) = read_list(listed)
    folder = tmp_path / "wheels"
    path = fetch(package, folder)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256
    monkeypatch.setattr(packages.subprocess, "run", None)
    assert fetch(package, folder) == path
    monkeypatch.undo()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    wheel(tmp_path / "index", "first", {"first/__init__.py": code("changed")})
    path.unlink()
    with pytest.raises(ValueError, match="first 1.0 could not be downloaded"):
        fetch(package, folder)
    assert not list(folder.glob("*.whl"))


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# fine\nnumpy==2.0\n")
    with pytest.raises(ValueError, match=r"line 2: expected 'name==version --hash"):
        read_list(path)


def test_the_packaged_list_is_permissive_and_divided() -> None:
    found = read_list()
    assert {p.split for p in found} == set(SPLITS)
    assert len({p.name for p in found}) == len(found) >= 40
    assert not [p for p in found if "GPL" in p.licence or p.licence == "unknown"]
