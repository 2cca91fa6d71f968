"""Print which of the named encodings have no finished demo run on this machine.

    python tools/unrecorded.py nope rope

`make demo` calls this once, so that it starts no kernel for runs that are finished. A run is
finished when it is trained and evaluated and its executed notebook exists. Runs with missing or
unreadable files count as unfinished, and the notebook then explains what is wrong.
"""

from __future__ import annotations

import contextlib
import sys

import pe


def finished(name: str) -> bool:
    """Return whether the demo run of an encoding has nothing left to do."""
    with contextlib.suppress(ValueError):
        run = pe.configure(pe=name, recipe="demo")
        if not run.exists() or run.read()["status"] != "complete":
            return False
        known = run.evaluation()
        wanted = sorted(run.recipe.evaluation_lengths)
        if known and known["lengths"] == wanted and (run.directory / "train.ipynb").exists():
            print(f"{name}: recorded in {run.directory}", file=sys.stderr)
            return True
    return False


if __name__ == "__main__":
    print(*(name for name in sys.argv[1:] if not finished(name)))
