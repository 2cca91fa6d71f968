"""The command as it is typed: ``papermill notebooks/train.ipynb -p pe pope``.

papermill alone refuses it in a terminal (no output path), prints the notebook on stdout in a pipe,
and takes the one path as the output when stdin is a pipe, over the notebook itself. For notebooks
of this project the run's own folder is therefore appended as the output path, and wrong parameters
stop the command with one line. Every other command line is left alone.
"""

from __future__ import annotations

import base64
import os
import shlex
import stat
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from pe.notebooks.papermill import document
from pe.notebooks.papermill.argv import Command, parse, passed_parameters


def is_papermill(argv: list[str], original: list[str]) -> bool:
    """Whether this process is ``papermill ...`` or ``python -m papermill ...``."""
    if not argv:
        return False
    if argv[0] == "-m":  # python is still importing the package that it will run
        return "-m" in original and original[original.index("-m") + 1 :][:1] == ["papermill"]
    path = Path(argv[0])
    return path.stem.removesuffix("-script") == "papermill" or (
        path.name == "__main__.py" and path.parent.name == "papermill"
    )


def prepare(argv: list[str]) -> None:
    """Complete ``argv`` in place, or stop the process with one line on stderr.

    Does nothing unless the command runs one of our notebooks from a local file.
    """
    command = parse(argv[1:])
    if command is None or not command.paths or command.has("-h", "--help", "--version"):
        return
    notebook = document.read(command.paths[0])
    if document.kind(notebook) is None or command.has("--help-notebook"):
        return
    assert notebook is not None
    _keep_streams(argv, command)
    typed = shlex.join(["papermill", *argv[1:]])
    from pe.notebooks.papermill import holding
    from pe.notebooks.papermill.plan import Refused, plan

    try:
        run = plan(notebook, passed_parameters(command))
    except (Refused, ValueError) as error:
        stop(str(error), 2)
    if command.prepare_only:
        if len(command.paths) == 1 and (_is_fifo(sys.stdin) or not sys.stdout.isatty()):
            argv.append("-")  # as papermill documents; never onto the notebook itself
        return
    busy = holding.busy(run)
    if busy:
        stop(str(busy), busy.EXIT_CODE)
    os.environ["PE_COMMAND"] = typed
    sys.excepthook = _brief
    if len(command.paths) == 1:
        argv.append(_as_output_path(run.directory / run.notebook))
        if command.last("--engine", "pe") != "pe":  # another engine will not make the folder
            run.directory.mkdir(parents=True, exist_ok=True)


def stop(message: str, status: int) -> NoReturn:
    """End the process with one line on stderr."""
    print(f"pe: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def _as_output_path(path: Path) -> str:
    """``path`` from here if it is below here; braces doubled, since papermill formats paths."""
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return str(shown).replace("{", "{{").replace("}", "}}")


def _is_fifo(stream: Any) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False


def _keep_streams(argv: list[str], command: Command) -> None:
    """Turn ``-f`` of something that can be read only once, ``<(...)``, into ``-b`` of its text."""
    for index, (option, values) in enumerate(command.options):
        path = Path(values[0]) if option == "--parameters_file" else None
        if path is None or path.is_file() or not path.exists():
            continue
        text = base64.b64encode(path.read_bytes()).decode()
        command.options[index] = ("--parameters_base64", (text,))
        for at, word in enumerate(argv):
            if word in (f"-f{values[0]}", f"--parameters_file={values[0]}"):
                argv[at] = f"-b{text}"
            elif word in ("-f", "--parameters_file") and argv[at + 1] == values[0]:
                argv[at : at + 2] = ["-b", text]


def _brief(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Excepthook of the command: what went wrong in the notebook, without papermill's frames."""
    from papermill.exceptions import PapermillExecutionError

    from pe.notebooks.papermill.plan import Refused
    from pe.runs import RunBusy

    if isinstance(error, (Refused, RunBusy)):
        print(f"pe: {' '.join(str(error).split())}", file=sys.stderr)
    elif isinstance(error, PapermillExecutionError):
        print(str(error).strip(), file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
