"""A notebook's cells in this process: what its page would show, without a kernel."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat


def shown(path: Path, **parameters: Any) -> str:
    """Run the cells with these parameters; the Markdown and SVG that their last lines give."""
    names: dict[str, Any] = {}
    texts = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        tree = ast.parse(cell.source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            names |= parameters
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
            texts.append(str(getattr(value, "data", "")))
    return "\n".join(texts)
