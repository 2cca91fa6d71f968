"""The engine reads papermill's command line exactly as papermill does."""

from __future__ import annotations

import base64
import os
import threading
from pathlib import Path
from typing import Any

import click
import papermill.cli as cli
import pytest
from click.testing import CliRunner
from papermill_stub import FAILS, write_stub

from pe.notebooks.papermill import command_line
from pe.notebooks.papermill.argv import NONE, ONE, TWO, parse, passed_parameters, resolve_type


def test_the_installed_papermill_has_the_options_we_know() -> None:
    found: dict[int, set[str]] = {0: {"-h", "--help"}, 1: set(), 2: set()}
    for option in cli.papermill.params:
        if isinstance(option, click.Option):
            count = 0 if option.is_flag else option.nargs
            found[count] |= {*option.opts, *option.secondary_opts}
    assert found == {0: NONE, 1: ONE, 2: TWO}


LINES = [
    "nb.ipynb -p pe pope",
    "nb.ipynb out.ipynb -p pe pope -p seed 1",
    "-p pe pope nb.ipynb -r study 007",
    "nb.ipynb -ppe pope -rstudy x --parameters=seed 3 --engine=pe -kpython3",
    "nb.ipynb --parameters_yaml={a: 1} -y {b: [2, 3]} -p a 4",
    "nb.ipynb -- -p",
    "- - -p pe pope",
    "-p pe -x nb.ipynb",
    "--no-progress-bar --log-output nb.ipynb --start_timeout 5 -p x 1e-4 -p y nan -p z 1_000",
    "nb.ipynb -p t True -p n None -p f 0.5 -p i 007 -p s text",
]


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_means_what_papermill_understands(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = line.replace("{a: 1}", "{a:§1}").replace("{b: [2, 3]}", "{b:§[2,§3]}").split()
    words = [word.replace("§", " ") for word in words]
    seen: dict[str, Any] = {}
    monkeypatch.setattr(cli, "execute_notebook", lambda **options: seen.update(options))
    monkeypatch.setattr(cli, "INPUT_PIPED", False)
    result = CliRunner().invoke(cli.papermill, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    command = parse(words)
    assert command is not None
    assert command.paths == [seen["input_path"], seen["output_path"]][: len(command.paths)]
    assert repr(passed_parameters(command)) == repr(seen["parameters"])
    assert command.last("--engine") == seen["engine_name"]


@pytest.mark.parametrize("line", ["nb.ipynb -p pe", "nb.ipynb --nosuch", "nb -k", "nb --version=3"])
def test_what_click_refuses_is_left_to_click(line: str) -> None:
    assert parse(line.split()) is None


@pytest.mark.parametrize(
    "text", ["True", "None", "30", "007", "1_000", "1e-4", "nan", "-3", "", "pope", " 5"]
)
def test_values_are_inferred_as_papermill_infers_them(text: str) -> None:
    mine, theirs = resolve_type(text), cli._resolve_type(text)
    assert (type(mine), repr(mine)) == (type(theirs), repr(theirs))


def test_base64_file_yaml_p_and_r_override_one_another_in_papermills_order(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("a: file\nb: file\nc: file\nd: file\n")
    b = base64.b64encode(b"{a: b64, e: b64}").decode()
    words = ["nb", "-r", "d", "1", "-p", "c", "2", "-y", "{b: 3}", "-f", str(tmp_path / "p.yaml")]
    command = parse([*words, "-b", b])
    assert command is not None
    assert passed_parameters(command) == {"a": "file", "e": "b64", "b": 3, "c": 2, "d": "1"}


@pytest.mark.parametrize(
    ("argv", "original", "expected"),
    [
        (["/v/bin/papermill", "nb"], [], True),
        (["C:/v/Scripts/papermill-script.py"], [], True),
        (["/v/lib/papermill/__main__.py", "nb"], [], True),
        (["-m", "nb"], ["python", "-m", "papermill", "nb"], True),
        (["-m", "papermill"], ["python", "-m", "pytest", "papermill"], False),
        (["/v/bin/pytest", "papermill"], [], False),
        (["/v/bin/jupyter-lab"], [], False),
    ],
)
def test_only_the_papermill_command_is_touched(
    argv: list[str], original: list[str], expected: bool
) -> None:
    assert command_line.is_papermill(argv, original) is expected


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PE_COMMAND", "")
    monkeypatch.setattr("sys.excepthook", lambda *error: None)
    monkeypatch.chdir(tmp_path)
    return write_stub(tmp_path / "nb.ipynb", FAILS)


def prepared(*words: object) -> list[str]:
    argv = ["papermill", *map(str, words)]
    command_line.prepare(argv)
    return argv[1 + len(words) :]


def test_the_runs_own_folder_becomes_the_output_path(notebook: Path, tmp_path: Path) -> None:
    for words in (["-p", "pe", "pope"], ["-y", "{pe: pope}"], ["-r", "pe", "pope"]):
        (added,) = prepared("nb.ipynb", *words)
        assert added.startswith("runs/local/pope-s0-")
        assert added.endswith("/train.ipynb")
    assert prepared(notebook, "-p", "seed", 3)[0].startswith("runs/local/rope-s3-")
    assert not (tmp_path / "runs").exists(), "naming a run must write nothing"


def test_defaults_come_from_the_notebooks_own_cell(notebook: Path) -> None:
    notebook.write_text(notebook.read_text().replace("seed: int = 0", "seed: int = 5"))
    assert "rope-s5-" in prepared("nb.ipynb")[0]


def test_other_command_lines_are_left_alone(notebook: Path, tmp_path: Path) -> None:
    write_stub(tmp_path / "theirs.ipynb", FAILS, mark={"pe": "another project's word"})
    (tmp_path / "broken.ipynb").write_text("{")
    for words in (
        ["theirs.ipynb", "-p", "pee", "pope"],
        ["broken.ipynb"],
        ["missing.ipynb"],
        ["nb.ipynb", "out.ipynb"],
        ["nb.ipynb", "-"],
        ["--help-notebook", "nb.ipynb"],
        ["nb.ipynb", "--version"],
        ["nb.ipynb", "-h"],
        [],
    ):
        assert prepared(*words) == []


def test_prepare_only_in_a_pipe_prints_and_never_writes_onto_its_input(notebook: Path) -> None:
    # pytest's stdout is no terminal
    assert prepared("nb.ipynb", "--prepare-only") == ["-"]


def test_another_engine_finds_the_folder_it_writes_to(notebook: Path, tmp_path: Path) -> None:
    (added,) = prepared("nb.ipynb", "--engine", "nbclient")
    assert (tmp_path / added).parent.is_dir()


def test_braces_in_a_path_survive_papermills_formatting(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "{runs}"))
    assert prepared("nb.ipynb")[0].format().startswith("{runs}/local/")


def test_a_parameter_file_that_can_be_read_once_reaches_papermill(
    notebook: Path, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_text, args=["{pe: pope}"])
    writer.start()
    argv = ["papermill", "nb.ipynb", "-f", str(fifo)]
    command_line.prepare(argv)
    writer.join(10)
    assert argv[2] == "-b"
    assert base64.b64decode(argv[3]) == b"{pe: pope}"
    assert "pope-s0-" in argv[4]
