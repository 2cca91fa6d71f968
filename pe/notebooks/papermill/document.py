"""A notebook's mark, its parameters, and the place where the executed notebook is written."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OUTPUT = "pe-run://notebook.ipynb"
"""The output path of a command that names none."""


class RunOutput:
    """papermill's handler for `OUTPUT`: the notebook of the run, or stdout where none is made."""

    path: Path | None = None
    """Set by the engine; None when papermill only prepares the notebook."""

    def write(self, text: str, path: str) -> None:
        """Replace the run's notebook."""
        if self.path is None:
            print(text)
            return
        from pe._files import write_atomically

        write_atomically(self.path, text)

    def pretty_path(self, path: str) -> str:
        """Return the path for papermill's log."""
        return str(self.path or "-")


output = RunOutput()


def kind(notebook: Any) -> str | None:
    """Return ``"train"`` for a notebook with ``{"pe": {"run": "train"}}`` in its metadata.

    The mark travels with copies, so a notebook that was moved or renamed still records itself.
    """
    mark = notebook.get("metadata", {}).get("pe") if isinstance(notebook, Mapping) else None
    name = mark.get("run") if isinstance(mark, Mapping) else None
    return name if isinstance(name, str) else None


def declared(notebook: Any) -> dict[str, ast.expr]:
    """Return the names that the ``parameters`` cell assigns, and what it assigns to them."""
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            break
    else:
        return {}
    try:
        body = ast.parse(cell.source).body
    except SyntaxError:
        return {}  # the kernel will report it
    values = {}
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                values[target.id] = node.value
    return values


def parameters(notebook: Any) -> dict[str, Any]:
    """Return the kernel's parameters: the cell's literals, and what papermill injected."""
    values = {}
    for name, value in declared(notebook).items():
        try:
            values[name] = ast.literal_eval(value)
        except ValueError:
            continue
    return values | dict(notebook.metadata.get("papermill", {}).get("parameters", {}))
