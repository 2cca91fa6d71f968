"""The notebooks: pairs, marks, parameters, and train.ipynb run for real on a tiny model."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import papermill
import pytest

from pe.launch import configure, parameters, parameters_cell
from pe.notebooks import page
from pe.runs import Run

HERE = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))
TRAIN = HERE / "train.ipynb"
EXTRA = "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info"
TINY: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 304, "evaluation_lengths": [32, 64],
    "target_tokens": 16, "evaluation_windows": 2, "checkpoint_every": 2, "log_every": 1,
}  # fmt: skip


def tagged(nb: Any, tag: str) -> list[Any]:
    return [cell for cell in nb.cells if tag in cell.metadata.get("tags", [])]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_a_notebook_equals_its_text_pair(path: Path) -> None:
    def cells(file: Path) -> list[tuple[str, str, list[str]]]:
        found = jupytext.read(file).cells
        return [(c.cell_type, c.source, c.metadata.get("tags", [])) for c in found]

    pair = path.with_suffix(".md")
    assert cells(path) == cells(pair), f"run: jupytext --to ipynb --update notebooks/{pair.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_a_notebook_is_stripped_marked_and_has_one_parameters_cell(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nbstripout", "--verify", "--extra-keys", EXTRA, str(path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"run nbstripout as .pre-commit-config.yaml does: {done.stdout}"
    nb = nbformat.read(path, as_version=4)
    assert len(tagged(nb, "parameters")) == 1
    assert tagged(nb, "injected-parameters") == []
    assert nb.metadata.kernelspec.name == "python3", "any other name belongs to one machine"
    assert nb.metadata.pe.run == "train"
    assert f"papermill notebooks/{path.name}" in nb.cells[0].source


def test_the_parameters_cell_is_the_signature_of_configure() -> None:
    (cell,) = tagged(nbformat.read(TRAIN, as_version=4), "parameters")
    assert cell.source == parameters_cell(), "replace the cell by pe.launch.parameters_cell()"
    known = papermill.inspect_notebook(TRAIN)
    assert list(known) == list(parameters())
    for name, parameter in parameters().items():
        found = known[name]
        assert found["inferred_type_name"] == parameter.type.__name__
        assert found["help"] == parameter.help
        assert found["default"] == repr(parameter.default).replace("'", '"')
        assert len(parameter.help) > 10


def test_cells_configure_call_and_show() -> None:
    for cell in nbformat.read(TRAIN, as_version=4).cells:
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            assert not re.search(r"^\s*(for|while|def|class|if|try)\b", cell.source, re.M)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of 24 documents, and room for runs and a cache."""
    folder = tmp_path_factory.mktemp("notebooks")
    draw = random.Random(0)
    (folder / "corpus").mkdir()
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "io", "un")]
    vocabulary = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(400)]
    for i in range(24):
        (folder / "corpus" / f"{i}.txt").write_text(" ".join(draw.choices(vocabulary, k=200)))
    return folder


def execute(place: Path, **given: Any) -> tuple[Any, Run]:
    values = {
        "recipe": "demo", "steps": 4, "context_length": 32, "batch_size": 2,
        "corpus": str(place / "corpus"), "overrides": TINY,
    } | given  # fmt: skip
    nb = papermill.execute_notebook(TRAIN, None, values, progress_bar=False)
    return nb, configure(**values)


@pytest.fixture(autouse=True)
def _elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PE_RUNS", str(place / "runs"))
    monkeypatch.setenv("PE_CACHE", str(place / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(place)


def test_the_notebook_trains_records_and_then_shows_without_training_again(place: Path) -> None:
    nb, run = execute(place, pe="pope")
    record = run.read()
    assert (record["status"], record["pe"], record["training"]["steps"]) == ("complete", "pope", 4)
    evaluation = run.evaluation()
    assert evaluation is not None
    assert evaluation["lengths"] == [32, 64]
    for name in ("loss.svg", "perplexity.svg", "metrics.jsonl", "train.ipynb"):
        assert (run.directory / name).stat().st_size > 0
    outputs = [o for cell in nb.cells for o in cell.get("outputs", [])]
    assert not [o for o in outputs if o.output_type in ("stream", "error")], "no chatter on a page"
    pages = [o["data"].get("text/markdown", "") for o in outputs]
    assert any("softplus" in text for text in pages), "the formula of the encoding"
    shown = json.dumps([text for text in pages if str(place / "corpus") not in text])
    assert str(place) not in shown, "an executed notebook says nothing about the machine"

    before = {n: (run.directory / n).read_bytes() for n in ("run.json", "metrics.jsonl")}
    (run.directory / "checkpoint" / "config.json").unlink()  # as in a clone: weights stay behind
    again, _ = execute(place, pe="pope")
    assert {n: (run.directory / n).read_bytes() for n in before} == before
    assert "weights of this run are not" in json.dumps(again)


def write_like(run: Run, pe: str, study: str, **changes: Any) -> Run:
    """A record in ``study`` that differs from that of ``run`` in its encoding and ``changes``."""
    record = run.read()
    recipe = record["recipe"] | {"pe": pe} | changes.pop("recipe", {})
    other = Run(run.directory.parent.parent / study / f"{pe}-s0-{len(str(changes)):08x}")
    other.write(record | {"study": study, "run": other.name, "pe": pe, "recipe": recipe} | changes)
    return other


def test_only_runs_that_differ_fairly_are_drawn_beside_a_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_RUNS", str(place / "fair"))
    run = configure(recipe="demo", pe="pope")
    run.fail("")
    text = {
        "corpus": "stdlib", "fingerprint": "a" * 16, "documents": 3, "train_tokens": 9,
        "validation_tokens": 9, "test_tokens": 9, "tokenizer": "bpe-4096", "vocab_size": 4096,
    }  # fmt: skip
    run.update(status="complete", data=text)
    here = write_like(run, "rope", "local")
    there = write_like(run, "nope", "demo")
    write_like(run, "yarn", "elsewhere")
    write_like(run, "alibi", "demo", recipe={"hidden_size": 64})
    write_like(run, "t5", "demo", data=text | {"fingerprint": "b" * 16})
    write_like(run, "fire", "demo", status="failed")
    damaged = write_like(run, "cope", "demo", created="")
    (damaged.directory / "run.json").write_text("{")
    with pytest.warns(UserWarning, match="left out, damaged: .*cope"):
        found = page.comparable(run)
    assert [r.directory for r in found] == [run.directory, here.directory, there.directory]
