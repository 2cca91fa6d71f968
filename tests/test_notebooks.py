"""The notebooks: pairs, marks, parameters, and each run for real on a tiny model."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import papermill
import pytest
import yaml
from notebook_tools import shown
from study_rows import row

import pe
from pe.notebooks import page
from pe.notebooks.parameters import LAUNCHERS, configure, configure_conversion, parameters
from pe.recipes import Recipe, recipe
from pe.runs import Run

HERE = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))
RUNS = [path for path in NOTEBOOKS if path.stem != "playground"]
"""Those that papermill records; the playground is for hands."""
TRAIN, CONVERT = HERE / "train.ipynb", HERE / "convert.ipynb"
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


def test_notebooks_are_stripped() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nbstripout", "--verify", "--extra-keys", EXTRA, *NOTEBOOKS],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"run nbstripout as .pre-commit-config.yaml does: {done.stdout}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_a_notebook_names_the_usual_kernel(path: Path) -> None:
    nb = nbformat.read(path, as_version=4)
    assert nb.metadata.kernelspec.name == "python3", "any other name belongs to one machine"


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.name)
def test_a_notebook_is_marked_and_has_one_parameters_cell(path: Path) -> None:
    nb = nbformat.read(path, as_version=4)
    assert len(tagged(nb, "parameters")) == 1
    assert tagged(nb, "injected-parameters") == []
    assert nb.metadata.pe.run == path.stem
    assert f"papermill notebooks/{path.name}" in nb.cells[0].source


@pytest.mark.parametrize("kind", ["train", "convert", "study", "speed", "pretrained", "tasks"])
def test_the_parameters_cell_is_the_signature_of_its_function(kind: str) -> None:
    path = HERE / f"{kind}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (call,) = [c.source for c in notebook.cells if " = configure" in c.source]
    assert re.findall(r"^    (\w+)=\1,$", call, re.M) == list(parameters(kind))
    assert list(assigned := papermill.inspect_notebook(path)) == list(parameters(kind))
    hints = typing.get_type_hints(LAUNCHERS[kind])
    for name, parameter in parameters(kind).items():
        hint = next(t for t in (*typing.get_args(hints[name]), hints[name]) if t is not type(None))
        plain = "dict" if "dict" in (str(hints[name])) else hint.__name__
        assert assigned[name]["inferred_type_name"] == plain
        assert ast.literal_eval(assigned[name]["default"]) == parameter.default
        assert len(assigned[name]["help"]) > 10


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_cells_configure_call_and_show(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
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


def values(place: Path, **given: Any) -> dict[str, Any]:
    return {
        "recipe": "demo", "steps": 4, "context_length": 32, "batch_size": 2,
        "corpus": str(place / "corpus"), "overrides": TINY,
    } | given  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PE_RUNS", str(place / "runs"))
    monkeypatch.setenv("PE_CACHE", str(place / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(place)


def test_the_notebook_trains_records_and_then_shows_without_training_again(place: Path) -> None:
    """That a kernel carries it out, and leaves no chatter, is in test_study_notebook."""
    chosen = values(place, pe="pope")
    page = shown(TRAIN, **chosen)
    run = configure(**chosen)
    record = run.read()
    assert (record["status"], record["pe"], record["training"]["steps"]) == ("complete", "pope", 4)
    evaluation = run.evaluation()
    assert evaluation is not None
    assert evaluation["lengths"] == [32, 64]
    for name in ("loss.svg", "perplexity.svg", "metrics.jsonl"):
        assert (run.directory / name).stat().st_size > 0
    assert "softplus" in page, "the formula of the encoding"

    before = {n: (run.directory / n).read_bytes() for n in ("run.json", "metrics.jsonl")}
    (run.directory / "checkpoint" / "config.json").unlink()  # as in a clone: weights stay behind
    again = shown(TRAIN, **chosen)
    assert {n: (run.directory / n).read_bytes() for n in before} == before
    assert "weights of this run are not" in again


def test_cells_without_papermill_train_and_papermill_can_repeat_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Jupyter's kernel, whose command line says nothing: the record has the one that does."""
    kernel = importlib.util.find_spec("ipykernel_launcher")
    assert kernel is not None
    monkeypatch.setattr(sys, "argv", [kernel.origin, "-f", "kernel.json"])
    monkeypatch.delenv("PE_COMMAND", raising=False)  # a worker in this process leaves it behind
    chosen = values(place, pe="alibi")
    shown(TRAIN, **chosen)
    run = configure(**chosen)
    assert run.read()["status"] == "complete"
    *words, line = shlex.split(run.read()["command"])
    assert words == ["papermill", "notebooks/train.ipynb", "-y"]
    assert configure(**yaml.safe_load(line)).directory == run.directory


def test_the_convert_notebook_goes_on_from_a_run_and_shows_before_and_after(place: Path) -> None:
    parent = configure(**values(place, pe="rope", overrides=TINY | {"keep_steps": [2]}))
    pe.evaluate(pe.train(parent, quiet=True), quiet=True)
    given = {"run": parent.name, "step": 2, "steps": 3, "pe": "nope"}
    pages = shown(CONVERT, **given)
    run = configure_conversion(**given)
    record = run.read()
    assert (record["status"], record["pe"], record["training"]["steps"]) == ("complete", "nope", 3)
    assert record["parent"]["run"] == parent.name
    assert record["conversion"]["lengths"] == [32, 64]
    before, converted = record["conversion"]["before"], record["conversion"]["converted"]
    assert before["64"]["value"] != converted["64"]["value"]
    for name in ("loss.svg", "perplexity.svg", "evaluation.json"):
        assert (run.directory / name).stat().st_size > 0
    assert f"weights of `{parent.name}` after step 2" in pages
    assert re.search(r"\| RoPE, step 2 +\|", pages)
    assert re.search(r"\| trained on for 3 steps +\|", pages)
    assert "dropped at 2" in (run.directory / "loss.svg").read_text()

    shutil.rmtree(parent.directory / "checkpoints")  # as in a clone: weights stay behind
    (run.directory / "checkpoint" / "config.json").unlink()
    assert re.search(r"\| RoPE, step 2 +\|", shown(CONVERT, **given))
    assert run.read() == record
    shutil.rmtree(parent.directory)  # for the tests below to train it again


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "run: name the run to convert"),
        ({"run": "rope-s0-00000000"}, "there is no run 'rope-s0-00000000'"),
        ({"step": 3}, "no weights of step 3; steps it has: 2, 4"),
        ({"step": 4}, "steps: rope-.* has no steps left after step 4; say how many"),
        ({"step": 2, "pe": "yarm"}, "unknown encoding 'yarm'"),
        (
            {"step": 2, "overrides": {"steps": 3}},
            "steps has a parameter of its own; give it there, not among the overrides",
        ),
        ({"step": 2, "joint_norm": "v"}, "unknown joint_norm 'v'"),
        ({"step": 2, "recipe": "demo"}, "unknown parameter 'recipe'"),
        ({"step": 2, "clip": 1}, "unknown parameter 'clip'.*; choose from"),
        ({"step": 2, "dropout": 0.1}, "'dropout': it is one of the overrides; pass it as -y 'over"),
    ],
)
def test_a_mistaken_conversion_stops_before_anything_starts(
    place: Path, given: dict[str, Any], message: str
) -> None:
    chosen = values(place, pe="rope", overrides=TINY | {"keep_steps": [2]})
    parent = pe.train(configure(**chosen), quiet=True)  # no kernel: it is the mistake that counts
    if given:
        given = {"run": parent.name} | given
    before = sorted(parent.directory.parent.iterdir())
    with pytest.raises(ValueError, match=message):
        papermill.execute_notebook(CONVERT, None, given, progress_bar=False)
    assert sorted(parent.directory.parent.iterdir()) == before


def kept_at_step_10000(place: Path, old: Recipe) -> Run:
    """A run that was stopped, and has weights of this step."""
    parent = Run(place / "runs" / "local" / old.run_name(), old)
    parent.fail("", status="interrupted")
    kept = parent.directory / "checkpoints" / "kept" / "step-010000"
    kept.mkdir(parents=True)
    (kept / "state.json").write_text('{"data_fingerprint": "a"}')
    (kept / "config.json").write_text("{}")
    return parent


def test_another_encoding_does_not_learn_at_the_rate_of_the_old_one(place: Path) -> None:
    old = recipe("demo", pe="t5", steps=16000, encoding_rate=10.0)
    parent = kept_at_step_10000(place, old)
    rates = [
        configure_conversion(run=parent.name, step=10000, pe=pe).recipe.encoding_rate
        for pe in ("nope", "t5")
    ]
    assert rates == [1.0, 10.0]


def test_what_is_not_given_is_as_in_the_run_before(place: Path) -> None:
    """The rates of the scaffold study are the defaults: a third, a tenth of that, 3% of warmup."""
    old = recipe("demo", pe="rope", steps=16000, pe_options={"theta": 500.0}, learning_rate=3e-4)
    parent = kept_at_step_10000(place, old)
    new = configure_conversion(run=parent.name, step=10000).recipe
    assert (new.steps, new.warmup_steps, new.schedule) == (6000, 180, "cosine")
    assert (new.learning_rate, new.min_learning_rate) == (1e-4, 1e-5)
    assert (new.start_from, new.start_step, new.pe_options) == (parent.name, 10000, {})
    changed = ("pe", "pe_options", "steps", "warmup_steps", "learning_rate", "min_learning_rate",
               "start_from", "start_step")  # fmt: skip
    assert new == dataclasses.replace(old, **{name: getattr(new, name) for name in changed})
    flat = configure_conversion(
        run=parent.name, step=10000, warmup_steps=0, min_learning_rate=0.0, softmax_scale=0.0
    ).recipe  # 0 is a value, not the default
    assert (flat.warmup_steps, flat.min_learning_rate, flat.softmax_scale) == (0, 0.0, 0.0)
    longer = configure_conversion(
        run=f"local/{parent.name}", step=10000, pe="yarn", study="extend", context_length=1024,
        batch_size=2, pe_options={"factor": 4.0},
    )  # fmt: skip
    assert longer.study == "extend"
    assert longer.recipe.start_from == f"local/{parent.name}"
    assert longer.recipe.pe_options == {"factor": 4.0, "theta": 500.0, "original_length": 256}


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


def test_a_page_shows_hidden_numbers_as_a_figure_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = row(tmp_path, "rope", right=7).runs[0]
    run = Run(tmp_path / "made-up" / one.name)
    text = page.retrieval([run], run).data
    assert "70%<br>(48–85)" in text
    assert "passkey" in text
    svg = (run.directory / "retrieval.svg").read_text()
    assert "needle" in svg
    assert "prompts answered" in svg
    assert "SVG" in capsys.readouterr().out
    evaluation = run.evaluation()
    assert evaluation is not None
    run.write_evaluation(evaluation | {"retrieval": None})
    assert "asks for no hidden numbers" in page.retrieval([run], run).data


def test_paths_and_snippets_of_a_page_work_wherever_the_runs_are(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = configure(recipe="demo", pe="pope")
    run.fail("")
    assert page.shown(run) == f"runs/local/{run.name}"
    assert Path(page.shown(run)).is_dir()
    monkeypatch.chdir(tmp_path)
    assert page.shown(run) == f"$PE_RUNS/local/{run.name}"
    assert Path(os.path.expandvars(page.shown(run))).is_dir()
    text = page.record(run).data
    (line,) = [line for line in text.splitlines() if line.startswith("folder = ")]
    names: dict[str, Any] = {"pe": pe}
    exec(f"import pe.runs\n{line}", names)
    assert names["folder"] == run.checkpoint
    shutil.rmtree(run.directory)
