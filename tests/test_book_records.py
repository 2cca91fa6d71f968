"""The book follows the records: no stale number, no silent gap, the reader's runs beside ours."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import book_records
import book_site
import pytest


def page(tree: Path) -> str:
    return book_site.text(tree / "_build" / "html" / "measured.html")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small book that has been built once; tests change it and build again."""
    target = book_site.small_tree(tmp_path_factory.mktemp("small"))
    for pe in ("rope", "pope"):
        book_records.write(target / "runs", pe)
    result = book_site.build_small(target)
    assert result.returncode == 0, result.stdout[-4000:]
    return target


def test_numbers_follow_the_records_and_pages_come_and_go(tree: Path) -> None:
    html = tree / "_build" / "html"
    picture = tree / "book" / "_generated" / "perplexity-by-length.svg"
    before = picture.read_bytes()
    assert "RoPE at twice its training length: 80.0, 2.00 times as much" in page(tree)
    assert "PoPE at the longest: 41.0" in page(tree)
    assert "There are no runs of yours here yet" in page(tree)
    assert "gone in the book" not in book_site.text(next(html.glob("runs/demo/rope*/train.html")))

    # A record changes and the reader trains a model: prose, table, figure and pages follow.
    book_records.write(tree / "runs", "rope", scale=1.5)
    mine = book_records.write(tree / "runs", "rope", seed=7, study="local", scale=1.1)
    failed = book_records.write(
        tree / "runs", "pope", 8, "local", status="failed", reason="loss is not finite at step 3"
    )
    result = book_site.build_small(tree)
    assert result.returncode == 0, result.stdout[-4000:]
    words = page(tree)
    assert "RoPE at twice its training length: 120, 2.00 times as much" in words
    assert "80.0" not in words
    assert picture.read_bytes() != before
    assert picture.read_bytes() == (html / "_images" / picture.name).read_bytes()
    assert "88.0" in words  # the reader's own 2×
    assert f"{failed.name} is failed: loss is not finite at step 3" in words
    own = html / "runs" / "local" / mine.name / "train.html"
    assert "RoPE, seed 7 (local)" in book_site.text(own)
    assert not (html / "runs" / "local" / failed.name).exists()

    # The reader removes it: nothing of it stays in the source of the next build.
    shutil.rmtree(tree / "runs" / "local")
    result = book_site.build_small(tree)
    assert result.returncode == 0, result.stdout[-4000:]
    assert not (tree / "book" / "runs" / "local").exists()
    assert "There are no runs of yours here yet" in page(tree)
    assert "88.0" not in page(tree)


def test_a_number_without_a_record_fails_the_build_and_names_the_nearest(tree: Path) -> None:
    source = tree / "book" / "measured.md"
    good = source.read_text()
    source.write_text(
        good + "\n{record}`rpoe.ppl@2x` {record}`rope.tokens_per_secnd` {record}`rope.ppl@64x`\n"
        "{record}`demmo/rope.ppl@1x`\n\n```{picture} perplexity-by-lenght\n:alt: x\n```\n"
        "\n```{study-table} demo\n:rows: rope, yarm\n```\n"
    )
    try:
        result = book_site.build_small(tree)
    finally:
        source.write_text(good)
    assert result.returncode != 0
    for message in (
        r"measured\.md:\d+: WARNING: no record for 'rpoe\.ppl@2x'.*did you mean 'rope'",
        r"did you mean 'tokens_per_second'",
        r"no record for 'rope\.ppl@64x'.*not evaluated",
        r"did you mean 'demo'",
        r"did you mean 'perplexity-by-length'",
        r"unknown row 'yarm'",
    ):
        assert re.search(message, result.stdout), message


def test_damaged_records_are_named_and_never_skipped(tree: Path) -> None:
    own = book_records.write(tree / "runs", "rope", seed=9, study="local")
    (own.directory / "run.json").write_text("{")
    result = book_site.build_small(tree, strict=False)
    assert result.returncode == 0, result.stdout[-4000:]
    assert re.search(r"WARNING: a run of yours is left out: .*run\.json", result.stdout)
    shutil.rmtree(tree / "runs" / "local")

    ours = next((tree / "runs" / "demo").glob("pope-*")) / "evaluation.json"
    good = ours.read_text()
    ours.write_text(good.replace('"target_tokens": 128', '"target_tokens": "many"'))
    try:
        result = book_site.build_small(tree, strict=False)
    finally:
        ours.write_text(good)
    assert result.returncode != 0
    assert f"{ours}: target_tokens" in result.stdout


def test_without_the_reference_study_the_build_says_what_to_do(tree: Path) -> None:
    kept = tree / "runs" / "kept-aside"
    (tree / "runs" / "demo").rename(kept)
    kept = kept.rename(tree / "aside")
    try:
        result = book_site.build_small(tree, strict=False)
    finally:
        kept.rename(tree / "runs" / "demo")
    assert result.returncode != 0
    assert "there is no complete run in" in result.stdout
    assert "git checkout -- runs/demo" in result.stdout


def test_pages_are_read_again_when_a_record_or_the_code_of_the_package_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from book_studies import fingerprint

    import pe

    monkeypatch.setattr(pe, "__file__", str(tmp_path / "pe" / "__init__.py"))
    root, own = tmp_path / "root", tmp_path / "own"
    for path in (
        tmp_path / "pe" / "encodings" / "core" / "build.py",
        root / "runs" / "tasks" / "copy-1" / "task-rope.json",
        root / "runs" / "demo" / "rope-1" / "metrics.jsonl",
        root / "studies" / "tasks" / "core.yaml",
        root / "book" / "tables" / "claims.yaml",
        own / "local" / "rope-1" / "run.json",
    ):
        before = fingerprint(root, own)
        assert fingerprint(root, own) == before
        path.parent.mkdir(parents=True)
        path.write_text("1")
        assert fingerprint(root, own) != before, path
