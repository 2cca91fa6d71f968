"""The program of one of several processes that train a run together.

`pe.training.processes` starts it with a task in JSON: the run's folder and recipe, the file for an
error, and the id of the process that waits for it.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.training.loop import Trainer
from pe.training.processes import SAVE_SECONDS, stop_with_parent
from pe.training.progress import Progress
from pe.training.train import train


def main(task: Mapping[str, Any]) -> None:
    """Train as one of several processes.

    Standard output is a pipe to the parent, which expects nothing but progress there. So whatever
    libraries print to it is redirected to standard error, which is the log.
    """
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    arguments = task["parent"], SAVE_SECONDS
    threading.Thread(target=stop_with_parent, args=arguments, daemon=True).start()

    def reporting(run: Run, quiet: bool) -> Trainer:
        trainer = Trainer(run, quiet)
        if trainer.main:
            trainer.progress = Progress(
                every_seconds=0.5,
                write=lambda text, last: print(json.dumps([text, last]), file=reports, flush=True),
            )
        return trainer

    run = Run(task["directory"], recipe=Recipe.from_dict(task["recipe"]))
    try:
        train(run, trainer=reporting)
    except BaseException as error:
        traceback.print_exc()
        _hand_over(error, Path(task["error"]))
        sys.stderr.flush()
        # A regular exit would wait for NCCL, which waits for processes that have ended.
        os._exit(1)


def _hand_over(error: BaseException, path: Path) -> None:
    """Write ``error`` into the file in which the parent process looks for it."""
    text = traceback.format_exc()
    try:
        content = pickle.dumps((error, text))
        pickle.loads(content)
    except Exception:  # some libraries raise exceptions that cannot be pickled
        content = pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
