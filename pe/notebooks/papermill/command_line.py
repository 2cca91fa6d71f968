"""The command as it is typed: ``papermill notebooks/train.ipynb -p pe pope``.

papermill alone refuses it in a terminal (no output path), prints the notebook on stdout in a pipe,
and takes the one path as the output when stdin is a pipe, over the notebook itself. So the hook
adds `OUTPUT` where no second path was typed: an output path of a scheme of ours, whose handler
writes to the folder of the run once the engine knows it.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from pe.notebooks.papermill import document

OUTPUT = "pe-run://notebook.ipynb"
# The options of papermill that do not take one value; it has not defined them yet when it loads us.
TWO_VALUES = {"--parameters", "-p", "--parameters_raw", "-r"}
FLAGS = {
    "--help-notebook", "--inject-input-path", "--inject-output-path", "--inject-paths",
    "--request-save-on-cell-execute", "--no-request-save-on-cell-execute", "--prepare-only",
    "--prepare-execute", "--progress-bar", "--no-progress-bar", "--log-output", "--no-log-output",
    "--report-mode", "--no-report-mode", "--version", "-h", "--help",
}  # fmt: skip


class RunOutput:
    """papermill's handler for `OUTPUT`: the notebook of the run, or stdout where none is made."""

    path: Path | None = None
    """Set by the engine; None when papermill only prepares the notebook."""

    def write(self, text: str, path: str) -> None:
        """Replace the run's notebook."""
        if self.path is None:
            print(text)
            return
        from pe.runs import write_atomically

        write_atomically(self.path, text)

    def pretty_path(self, path: str) -> str:
        """For papermill's log."""
        return str(self.path or "-")


output = RunOutput()


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


def positional(words: Sequence[str]) -> list[str]:
    """The paths among the words after ``papermill``: neither options nor their values."""
    found: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return found + left
        if not word.startswith("-") or word == "-":
            found.append(word)
            continue
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        values = 2 if name in TWO_VALUES else 0 if name in FLAGS else 1
        del left[: max(0, values - (len(word) > len(name)))]  # one may be joined: -ppe, --cwd=x
    return found


def prepare(argv: list[str]) -> None:
    """Complete ``argv`` in place if it runs one of our notebooks from a local file."""
    paths = positional(argv[1:])
    if not paths or document.kind(document.read(paths[0])) is None:
        return
    os.environ["PE_COMMAND"] = shlex.join(["papermill", *argv[1:]])
    sys.excepthook = _brief
    if not any(word.startswith(("--log-output", "--log-level")) for word in argv):
        logging.getLogger("papermill").setLevel(logging.ERROR)  # the engine reports progress
    if len(paths) == 1:
        argv.append(OUTPUT)


def _brief(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Excepthook of the command: what went wrong in the notebook, without papermill's frames."""
    from papermill.exceptions import PapermillExecutionError

    if isinstance(error, PapermillExecutionError):
        print(str(error).strip(), file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
