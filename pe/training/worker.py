"""One of the processes that train a run together, as `pe.training.processes` starts them."""

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
    """One of the processes. Progress goes to what was standard output, all else to the log."""
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    watched = task["parent"], SAVE_SECONDS
    threading.Thread(target=stop_with_parent, args=watched, daemon=True).start()

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
        os._exit(1)  # a communicator whose partner is gone would wait for it


def _hand_over(error: BaseException, path: Path) -> None:
    """Write ``error`` where the process that started this one looks for it."""
    text = traceback.format_exc()
    try:
        content = pickle.dumps((error, text))
        pickle.loads(content)
    except Exception:  # an exception of another library, with arguments of its own
        content = pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
