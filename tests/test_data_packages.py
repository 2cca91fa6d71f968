"""The corpus python-packages, on small wheels that pip takes from a folder."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A list of four packages, which pip finds in a folder and nowhere else."""
    folder = tmp_path_factory.mktemp("packages")
    source = folder / "index"
    source.mkdir()
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
    path = folder / "list.txt"
    lines = [f"{names[s]}==1.0 --hash=sha256:{h}  # MIT; {s}" for s, h in hashes.items()]
    path.write_text("# a list\n" + "\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(source))
        yield path


def read(path: Path, work: Path) -> Documents:
    """What the listed packages hold; wheels are fetched once and stay beside the list."""
    return read_documents(PythonPackages(path, cache=path.parent / "cache"), Budget(), work)


@pytest.fixture(scope="module")
def documents(listed: Path, tmp_path_factory: pytest.TempPathFactory) -> Documents:
    return read(listed, tmp_path_factory.mktemp("documents"))


def test_documents_are_whole_modules_in_reading_order(documents: Documents) -> None:
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


def test_training_loses_what_is_held_out_and_not_the_other_way_round(documents: Documents) -> None:
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
    folder, index = tmp_path / "wheels", tmp_path / "index"
    shutil.copytree(listed.parent / "index", index)
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    path = fetch(package, folder)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256
    with monkeypatch.context() as patch:
        patch.setattr(packages.subprocess, "run", None)
        assert fetch(package, folder) == path
    wheel(index, "first", {"first/__init__.py": code("changed")})
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
