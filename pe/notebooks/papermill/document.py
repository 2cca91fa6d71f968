"""What a notebook file declares: whether it is ours, and its parameters."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(path: str | Path) -> dict[str, Any] | None:
    """The notebook at ``path`` as JSON, or None if there is none."""
    try:
        loaded = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return loaded if isinstance(loaded, dict) else None


def kind(notebook: Mapping[str, Any] | None) -> str | None:
    """``"train"`` for a notebook marked ``{"pe": {"run": "train"}}`` in its metadata, else None.

    The mark travels with copies, so a notebook that was moved or renamed still records itself.
    """
    if not isinstance(notebook, Mapping):
        return None
    mark = (notebook.get("metadata") or {}).get("pe")
    found = mark.get("run") if isinstance(mark, Mapping) else None
    return found if isinstance(found, str) else None


def defaults(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """Names and values of the ``parameters`` cell; values that are no literals are left out."""
    found = {}
    for name, value in _assignments(notebook):
        try:
            found[name] = ast.literal_eval(value)
        except ValueError:
            continue
    return found


def declared(notebook: Mapping[str, Any]) -> list[str]:
    """Names that the ``parameters`` cell assigns."""
    return [name for name, _ in _assignments(notebook)]


def stored(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that papermill injected into this notebook, now or in an earlier run."""
    papermill = (notebook.get("metadata") or {}).get("papermill") or {}
    return dict(papermill.get("parameters") or {})


def _assignments(notebook: Mapping[str, Any]) -> list[tuple[str, ast.expr]]:
    for cell in notebook.get("cells", []):
        if "parameters" in (cell.get("metadata") or {}).get("tags", []):
            break
    else:
        return []
    try:
        body = ast.parse("".join(cell["source"])).body
    except SyntaxError:
        return []  # the kernel will report it
    found: list[tuple[str, ast.expr]] = []
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found.append((node.target.id, node.value))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.append((node.targets[0].id, node.value))
    return found


def heading(notebook: Mapping[str, Any], index: int) -> str:
    """The last markdown heading above a cell: a short name for what the cell does."""
    for cell in reversed(notebook["cells"][:index]):
        if cell["cell_type"] == "markdown":
            for line in reversed("".join(cell["source"]).splitlines()):
                if line.startswith("#"):
                    return line.lstrip("#").strip()
    return ""
