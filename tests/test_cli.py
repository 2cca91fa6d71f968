"""The commands of `pe` beside check, study and speed, which have tests of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from programs import Program
from tiny_training import tiny, write_corpus

import pe
from pe import cli
from pe.encodings import about, list_encodings
from pe.encodings.core.presets import PRESETS
from pe.encodings.core.registry import list_keys
from pe.recipes.named import recipe as named_recipe
from pe.runs import Run, find

ROOT = Path(cli.__file__).parents[1]

ENDS = ("steps: expected at least 1, got 0", "do not divide into windows of 0")
"""Mistakes that are found after the encoding."""
PARAMETERS = {"pe", "pe_options", "seed", "steps", "corpus", "context_length", "batch_size",
              "learning_rate", "name"}  # fmt: skip


def test_list_names_every_encoding_with_its_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    encodings, schedules = capsys.readouterr().out.split("\n\n")
    lines = {line.split()[0]: line for line in encodings.splitlines()[2:]}
    assert sorted(lines) == sorted([*list_encodings(), *list_keys()])
    assert [line.split()[0] for line in schedules.splitlines()[2:]] == list(PRESETS)
    assert all((about(name).paper or "") in line for name, line in lines.items())


def test_train_records_the_run_that_its_words_describe_and_runs_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PE_CACHE", str(tmp_path / "cache"))
    write_corpus(tmp_path / "corpus")
    recipe = tiny(tmp_path / "corpus", pe="alibi", steps=3, seed=2, warmup_steps=1)
    words = ["train", "alibi", "--recipe", "demo", "--study", "mine", "--seed", "2"]
    words += ["--steps", "3", "--corpus", str(tmp_path / "corpus")]
    base = named_recipe("demo").to_dict()
    for name, value in recipe.to_dict().items():
        if name in ("context_length", "batch_size", "learning_rate"):
            words += [f"--{name.replace('_', '-')}", str(value)]
        elif name not in PARAMETERS and value != base[name]:
            words += ["--set", f"{name}={value}"]
    assert cli.main(words) == 0
    (run,) = find(study="mine")
    assert Run(run.directory).recipe.config_hash() == recipe.config_hash()
    assert run.evaluation() is not None
    assert str(run.directory) in capsys.readouterr().out
    assert cli.main(["runs", "mine"]) == 0
    assert run.name in capsys.readouterr().out
    (run.checkpoint / "model.safetensors").write_bytes(b"torn")
    (run.directory / "evaluation.json").unlink()
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"(traceback: {run.traceback})" in line
    assert "safetensors" in run.traceback.read_text()
    run.fail("ValueError: as an example")
    assert cli.main(["runs", "mine"]) == 0
    out = capsys.readouterr().out
    assert run.name not in out
    assert "Failed runs left out: 1" in out
    assert cli.main(["runs", "mine", "--failed"]) == 0
    assert f"mine/{run.name}: ValueError: as an example" in capsys.readouterr().out
    assert cli.main(["runs", "mien"]) == 2
    assert "unknown study 'mien' (did you mean 'mine'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "act",
    [
        pe.train, pe.evaluate, pe.evaluate_start, pe.extend, pe.sample,
        lambda run: pe.search_longrope(run, 4.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", ["rope", Path("/no/where"), 3])
def test_what_is_no_run_is_refused_with_the_way_to_one(act: Any, given: Any) -> None:
    with pytest.raises(TypeError, match="expected a run, got .*pe.configure"):
        act(given)


def test_a_study_is_run_by_its_plan_and_not_by_its_name() -> None:
    with pytest.raises(TypeError, match="got 'every'; pe.load_plan makes one of a study's name"):
        pe.run_study("every")  # type: ignore[arg-type]


def test_wrong_words_end_train_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "ropee"]) == 2
    assert capsys.readouterr().err.startswith("pe train: unknown encoding 'ropee' (did you mean")
    assert cli.main(["train", "rope", "--steps", "-5"]) == 2
    assert capsys.readouterr().err == "pe train: steps: expected 0 or more, got -5\n"
    assert cli.main(["train", "rope", "--set", "stepz=3"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    for command in (["train", "rope"], ["memory", "demo", "--gib", "80"]):
        assert cli.main([*command, "--set", "name=mine"]) == 2
        assert "name: a changed recipe keeps its name; leave it out of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "rope", "-o", "theta=1", "-o", "theta=2.0"], "theta is given twice, 1 and 2.0"),
        (["check", "rope", "-o", "theta=1", "-o", "theta=1"], "theta is given twice, 1 and 1"),
        (["train", "rope", *["--set", "dropout=0.1"] * 2], "dropout is given twice, 0.1 and 0.1"),
        (["memory", "demo", *["--set", "fsdp=true"] * 2], "fsdp is given twice, True and True"),
    ],
)
def test_none_of_two_values_of_one_option_is_dropped_silently(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err == f"pe {words[0]}: {said}; give it once\n"


def test_a_study_and_papermill_find_an_encoding_in_the_working_folder(tmp_path: Path) -> None:
    """A console script does not look for modules where it is called (`pe train` did)."""
    (tmp_path / "hidden_here.py").write_text(
        "from pe.encodings import Encoding\n\n\nclass Mine(Encoding):\n    pass\n"
    )
    study = "title: Mine?\nrecipe: demo\nseeds: [0]\nruns:\n  mine: {pe: 'hidden_here:Mine'}\n"
    (tmp_path / "mine.yaml").write_text(study)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PE_RUNS": str(tmp_path / "runs")}
    notebook = ROOT / "notebooks" / "train.ipynb"
    for words in (
        ["pe", "study", "mine.yaml", "--dry-run"],
        ["pe", "memory", "demo", "--gib", "8", "--set", "pe=hidden_here:Mine", "--set", "steps=0"],
        ["pe", "speed", "--encodings", "hidden_here:Mine", "--lengths", "0"],
        ["papermill", notebook, "-p", "pe", "hidden_here:Mine", "-p", "corpus", "nowhere"],
    ):
        log = tmp_path / words[0]
        ended = Program(*words, cwd=tmp_path, log=log, environment=environment).end()
        assert "cannot be imported" not in ended.stderr, ended.stderr
        # papermill ends at the corpus, which is looked for after the encoding is made
        said = ended.stdout + ended.stderr
        assert any(end in said for end in ("mine ", "unknown corpus 'nowhere'", *ENDS)), said


def test_a_temperature_is_not_listed_among_what_hides_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["list"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert "scale" in rows["temperature"]
    assert "keys" in rows["window"]
