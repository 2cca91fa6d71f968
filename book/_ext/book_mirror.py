"""Copy notebooks and executed runs into book/, where Sphinx reads them.

Paths below book/ equal those below the root, so `runs/demo/<run>/train` is both a page and the
place of its record. git ignores the copies, and those without a source are removed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from book_studies import Snapshot

from pe.results.rows import named


def write(target: Path, data: str | bytes) -> bool:
    """Write a file unless it already holds these bytes."""
    content = data.encode() if isinstance(data, str) else data
    if target.exists() and target.read_bytes() == content:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return True


def mirror(root: Path, book: Path, complete: Iterable[Snapshot]) -> None:
    """Copy notebooks/*.ipynb and each complete run's train.ipynb and pictures."""
    wanted: dict[Path, bytes] = {}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        wanted[book / "notebooks" / path.name] = path.read_bytes()
    for run in complete:
        target = book / "runs" / run.study / run.name
        if (run.directory / "train.ipynb").exists():
            wanted[target / "train.ipynb"] = run_page(run)
        for path in run.directory.glob("*.svg"):
            wanted[target / path.name] = path.read_bytes()
    for path, data in wanted.items():
        write(path, data)
    for top in (book / "notebooks", book / "runs"):
        _prune(top, set(wanted))


def run_page(run: Snapshot) -> bytes:
    """Return the executed notebook with a title that names the run."""
    record = run.read()
    notebook: dict[str, Any] = json.loads((run.directory / "train.ipynb").read_text("utf-8"))
    name, _ = named(record["recipe"])
    title = f"# {name}, seed {record['seed']} ({run.study})\n"
    for cell in notebook["cells"]:
        text = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        if cell["cell_type"] == "markdown" and text.lstrip().startswith("# "):
            _, _, rest = text.lstrip().partition("\n")
            cell["source"] = title + rest
            break
    else:
        cell = {"cell_type": "markdown", "metadata": {}, "source": title, "id": "title"}
        notebook["cells"].insert(0, cell)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = [out for out in cell.get("outputs", []) if not _is_progress(out)]
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _is_progress(output: dict[str, Any]) -> bool:
    return bool(output.get("metadata", {}).get("pe_progress"))


def _prune(top: Path, wanted: set[Path]) -> None:
    """Remove mirrored files whose source is gone, and folders left empty."""
    if not top.is_dir():
        return
    for path in sorted(top.rglob("*"), reverse=True):
        if path.is_file() and path not in wanted:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    if not any(top.iterdir()):
        shutil.rmtree(top)
