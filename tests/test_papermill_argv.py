"""The hook finds the paths of a papermill command where papermill's own parser (click) does."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

import click
import papermill.cli as cli
import pytest
from click.testing import CliRunner
from papermill_stub import FAILS, write_stub

from pe.notebooks.papermill import entry
from pe.notebooks.papermill.document import OUTPUT, RunOutput
from pe.notebooks.papermill.entry import FLAGS, TWO_VALUES, positional


def test_the_installed_papermill_has_the_options_we_know() -> None:
    found: dict[int, set[str]] = {0: {"-h", "--help"}, 1: set(), 2: set()}
    for option in cli.papermill.params:
        if isinstance(option, click.Option):
            count = 0 if option.is_flag else option.nargs
            found[count] |= {*option.opts, *option.secondary_opts}
    assert (found[0], found[2]) == (FLAGS, TWO_VALUES)


@pytest.mark.parametrize(
    "line",
    [
        "nb.ipynb -p pe pope",
        "nb.ipynb out.ipynb -p pe pope -p seed 1",
        "-p pe pope nb.ipynb -r study 007 out.ipynb",
        "nb.ipynb -ppe pope -rstudy x --parameters=seed 3 --engine=pe -kpython3",
        "nb.ipynb -- -p",
        "- - -p pe pope",
        "-p pe -x nb.ipynb",
        "--no-progress-bar --log-output nb.ipynb --start_timeout 5 --cwd= -p x 1e-4",
    ],
)
def test_paths_are_those_that_papermill_understands(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(cli, "execute_notebook", lambda **options: seen.update(options))
    monkeypatch.setattr(cli, "INPUT_PIPED", False)
    result = CliRunner().invoke(cli.papermill, line.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = positional(line.split())
    assert found == [seen["input_path"], seen["output_path"]][: len(found)]


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
    assert entry.is_papermill(argv, original) is expected


def test_an_output_is_added_to_our_notebooks_where_none_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_COMMAND", "")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(logging.getLogger("papermill"), "level", logging.NOTSET)
    monkeypatch.chdir(tmp_path)
    write_stub(tmp_path / "nb.ipynb", FAILS)
    write_stub(tmp_path / "theirs.ipynb", FAILS, mark={"pe": "another project's word"})
    (tmp_path / "broken.ipynb").write_text("{")

    def added(*words: str) -> list[str]:
        argv = ["papermill", *words]
        entry.prepare(argv)
        return argv[1 + len(words) :]

    assert added("nb.ipynb", "-p", "pe", "pope") == [OUTPUT]
    assert added("-y", "{pe: pope}", "nb.ipynb") == [OUTPUT]
    for words in (
        ["theirs.ipynb", "-p", "pee", "pope"],
        ["broken.ipynb"],
        ["missing.ipynb"],
        ["nb.ipynb", "out.ipynb"],
        ["nb.ipynb", "-p", "pe", "pope", "-"],
        [],
    ):
        assert added(*words) == []


def test_what_papermill_only_prepares_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    RunOutput().write("{}", OUTPUT)
    assert capsys.readouterr().out == "{}\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "tain.ipynb",
            None,
            r"there is no notebook .*tain.ipynb \(did you mean '.*train.ipynb'\?\)",
        ),
        ("mine.ipynb", "no notebook", r".*mine.ipynb is no notebook \(JSONDecodeError: "),
    ],
)
def test_a_notebook_that_cannot_be_read_is_one_line(
    name: str,
    text: str | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    write_stub(tmp_path / "train.ipynb", FAILS)
    if text is not None:
        (tmp_path / name).write_text(text)
    entry.prepare(["papermill", str(tmp_path / name), "-p", "pe", "rope"])
    error = FileNotFoundError("as papermill raises it")
    sys.excepthook(type(error), error, None)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"papermill: {expected}", line)
