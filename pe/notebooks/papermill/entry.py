"""The entry point that papermill loads: records and progress for this project's notebooks.

papermill looks up `PeEngine` while it is being imported, in every process of an environment that
holds pe. That makes the engine papermill's default and, if the process is the command
``papermill notebooks/train.ipynb -p pe pope``, completes its command line. papermill alone refuses
it in a terminal (no output path), prints the notebook on stdout in a pipe, and takes the one path
as the output when stdin is a pipe, over the notebook itself. Where no second path was typed we add
`OUTPUT`, a path of a scheme of ours: its handler writes to the folder of the run once the engine
knows it. Notebooks without our mark are executed by papermill's own engine, unchanged.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pe._errors import nearest, one_line
from pe.notebooks.papermill import document
from pe.notebooks.papermill.document import OUTPUT, output

# The options of papermill that do not take one value; it has not defined them yet when it loads us.
TWO_VALUES = {"--parameters", "-p", "--parameters_raw", "-r"}
FLAGS = {
    "--help-notebook", "--inject-input-path", "--inject-output-path", "--inject-paths",
    "--request-save-on-cell-execute", "--no-request-save-on-cell-execute", "--prepare-only",
    "--prepare-execute", "--progress-bar", "--no-progress-bar", "--log-output", "--no-log-output",
    "--report-mode", "--no-report-mode", "--version", "-h", "--help",
}  # fmt: skip


def is_papermill(argv: list[str], original: list[str]) -> bool:
    """Return whether this process is ``papermill ...`` or ``python -m papermill ...``."""
    path = Path(argv[0] if argv else "")
    if str(path) == "-m":  # python is still importing the package that it will run
        return "-m" in original and original[original.index("-m") + 1 :][:1] == ["papermill"]
    name = path.parent.name if path.name == "__main__.py" else path.stem
    return name.removesuffix("-script") == "papermill"


def positional(words: Sequence[str]) -> list[str]:
    """Return the paths among the words after ``papermill``: neither options nor their values."""
    paths: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return paths + left
        if not word.startswith("-") or word == "-":
            paths.append(word)
            continue
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        values = 2 if name in TWO_VALUES else 0 if name in FLAGS else 1
        del left[
            : max(0, values - (len(word) > len(name)))
        ]  # one value may be joined to its option: -ppe, --cwd=x
    return paths


def prepare(argv: list[str]) -> None:
    """Complete ``argv`` in place if it runs one of our notebooks from a local file."""
    paths = positional(argv[1:])
    try:
        notebook = json.loads(Path(paths[0]).read_text(encoding="utf-8")) if paths else None
    except (OSError, ValueError) as error:
        if paths[0] != "-" and "://" not in paths[0]:  # papermill reads those
            sys.excepthook = functools.partial(_unreadable, Path(paths[0]), error)
        return
    if document.kind(notebook) is None:
        return
    os.environ["PE_COMMAND"] = shlex.join(["papermill", *argv[1:]])
    sys.excepthook = _brief
    sys.path.insert(0, os.getcwd())  # the folder of `-p pe my_module:MyEncoding`, as in the kernel
    if not any(word.startswith(("--log-output", "--log-level")) for word in argv):
        logging.getLogger("papermill").setLevel(logging.ERROR)  # the engine reports progress
    if len(paths) == 1:
        argv.append(OUTPUT)


def _unreadable(
    path: Path,
    reason: Exception,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Report, as excepthook, a notebook ``path`` that could not be read for ``reason``."""
    if not isinstance(error, Exception):
        sys.__excepthook__(kind, error, trace)
    elif isinstance(reason, FileNotFoundError):
        there = [*path.parent.glob("*.ipynb"), *Path("notebooks").glob("*.ipynb")]
        hint = nearest(path, sorted({str(other) for other in there}))
        print(f"papermill: there is no notebook {path}{hint}", file=sys.stderr)
    else:
        print(f"papermill: {path} is no notebook ({one_line(reason)})", file=sys.stderr)


def _brief(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report, as excepthook, what went wrong in the notebook, as its cell shows it."""
    from papermill.exceptions import PapermillExecutionError, strip_color

    if isinstance(error, PapermillExecutionError):
        shown = strip_color("\n".join(error.traceback)) or f"{error.ename}: {error.evalue}"
        print(shown.strip(), file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


@functools.cache
def _engine() -> type:
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.iorw import papermill_io

    class PeEngine(NBClientEngine):
        """papermill's engine, which records one of ours in its run's folder."""

        @classmethod
        def execute_notebook(cls, nb: Any, kernel_name: str, **options: Any) -> Any:
            """Execute ``nb``."""
            if document.kind(nb) is None:
                return NBClientEngine.execute_notebook(nb, kernel_name, **options)
            from pe.notebooks.papermill.engine import execute

            return execute(nb, kernel_name, **options)

    papermill_engines.register(None, PeEngine)
    papermill_io.register(OUTPUT, output)
    try:
        if is_papermill(sys.argv, sys.orig_argv):
            prepare(sys.argv)
    except Exception as error:  # whatever happens here must not break papermill for others
        print(f"pe: papermill runs without records: {error!r}", file=sys.stderr)
    return PeEngine


def __getattr__(name: str) -> Any:
    if name != "PeEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("papermill.engines")  # papermill looks up its entry points there
    return _engine()
