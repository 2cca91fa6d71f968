"""Which run a notebook is about to make: checked before anything is started or written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pe.notebooks.papermill import document
from pe.notebooks.parameters import LAUNCHERS, launch
from pe.runs import Folder


class Refused(ValueError):
    """The notebook's parameters describe no run; the message says which and why."""


def plan(notebook: Mapping[str, Any], passed: Mapping[str, Any] | None = None) -> Folder:
    """The run that ``notebook`` describes, or the study as a folder.

    Args:
        notebook: one of ours (`pe.notebooks.papermill.document.kind`).
        passed: parameters from the command line. None or empty: those papermill stored in the
            notebook, which is what the kernel will see.

    Raises:
        Refused: a name or value that is not right.
    """
    kind = document.kind(notebook)
    if kind not in LAUNCHERS:
        raise Refused(f"this version of pe knows no notebook of the kind {kind!r}")
    values = document.defaults(notebook) | dict(passed or document.stored(notebook))
    try:
        return launch(kind, values, document.declared(notebook))
    except ValueError as error:
        raise Refused(str(error)) from error
