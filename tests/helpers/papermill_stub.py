"""A notebook with the mark and the parameters of train.ipynb, and a body that needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

TRAIN = Path(__file__).resolve().parents[2] / "notebooks" / "train.ipynb"

REPORTS = """
import os, time
from IPython.display import display

handle = display({"text/plain": "step 0/5"}, raw=True, metadata={"pe_progress": True}, display_id=1)
for step in range(1, 6):
    handle.update({"text/plain": f"step {step}/5"}, raw=True, metadata={"pe_progress": True})
    time.sleep(0.05)
os.environ.pop("PE_RUN_DIR")  # as pe.configure does
print(os.environ["PE_RUNS"])
"""
# Ends with a file "saved" in the run's folder when it is interrupted.
SLEEPS = """
import os, pathlib, time
(folder,) = pathlib.Path(os.environ["PE_RUNS"]).glob("*/*")
(folder / "begun").touch()
try:
    time.sleep(120)
except KeyboardInterrupt:
    (folder / "saved").touch()
    raise
"""
STUBBORN = """
import os, pathlib, time
(folder,) = pathlib.Path(os.environ["PE_RUNS"]).glob("*/*")
(folder / "begun").touch()
while True:
    try:
        time.sleep(120)
    except KeyboardInterrupt:
        pass
"""
FAILS = 'raise ValueError("no such luck")'
DIES = "import os; os._exit(3)"


def write_stub(path: Path, body: str, mark: dict[str, Any] | None = None) -> Path:
    """Write the notebook; ``mark`` {} makes it somebody else's."""
    cells = nbformat.read(TRAIN, as_version=4).cells
    (parameters,) = [c for c in cells if "parameters" in c.metadata.get("tags", [])]
    nb = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# Stub"),
            parameters,
            nbformat.v4.new_markdown_cell("## Training"),
            nbformat.v4.new_code_cell(body),
        ]
    )
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nb.metadata.update(kernelspec=kernel)
    nb.metadata.update({"pe": {"run": "train"}} if mark is None else mark)
    nbformat.write(nb, path)
    return path


def papermill(*words: object) -> list[str]:
    """Return the command, without relying on a program on PATH."""
    return [sys.executable, "-m", "papermill", *map(str, words)]


def environment(runs: Path, **more: str) -> dict[str, str]:
    """Return an environment whose records go to ``runs``."""
    return os.environ | {"PE_RUNS": str(runs), "OMP_NUM_THREADS": "1"} | more


def run(*words: object, runs: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run papermill in a pipe."""
    return subprocess.run(
        papermill(*words), capture_output=True, text=True, timeout=120,
        env=environment(runs, **options.pop("env", {})), **options,
    )  # fmt: skip


def folder(runs: Path) -> Path:
    """Return the one run below ``runs``."""
    (found,) = runs.glob("*/*")
    return found
