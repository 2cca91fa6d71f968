"""Carry out one run of a study in a process of its own.

The process returns its memory when it ends, and an error in it does not affect other runs. It
watches the Dask worker that started it. If the worker is killed, the run saves a checkpoint and
stops, and the worker that takes over the task continues from there.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe._files import shipped
from pe.recipes.command import notebook_command, notebook_parameters
from pe.recipes.recipe import Recipe
from pe.runs import Run, RunBusy, RunError
from pe.study.devices import wait_for_device
from pe.study.planned import complete
from pe.study.zero_shot import ZeroShot, carry_out
from pe.training.processes import stop_with_parent
from pe.training.start import is_retrained_copy

NOTEBOOK = shipped("notebooks") / "train.ipynb"
WAIT_FOR_LOCK = 180.0
"""Seconds for which the process of a killed worker may still hold a run's folder."""


class RunFailed(RuntimeError):
    """A run ended without a complete record; the message is the reason."""


def execute(task: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Train and evaluate one run in a new process, unless it is done; return its directory.

    Args:
        task: what `Planned.task` returns: ``directory``, ``recipe``, ``study``, ``zero_shot``, and
            ``notebook``, whether the run is carried out as train.ipynb, which stays in its folder.
            With ``zero_shot`` the run in that folder is extended. A run that is retrained for its
            weights is not evaluated and has no notebook.
        environment: variables for the process, such as PE_RUNS and CUDA_VISIBLE_DEVICES.

    Raises:
        RunFailed: the run is not complete; the reason is that in its record, or the last line of
            its log.
    """
    run = Run(Path(task["directory"]), recipe=Recipe.from_dict(dict(task["recipe"])))
    log = run.directory.parent / ".logs" / f"{run.directory.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    while not _done(run, task):
        with open(log, "ab") as out:
            code = subprocess.run(
                [sys.executable, "-m", "pe.study.worker", json.dumps(dict(task))],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False,
                env={**os.environ, **environment},
            ).returncode  # fmt: skip
        if code == 0:  # the process has looked; here that would take torch, and its memory
            break
        if code == RunBusy.EXIT_CODE and time.monotonic() - begun < WAIT_FOR_LOCK:
            time.sleep(2)
            continue
        raise RunFailed(f"{run.directory}: {_reason(run, log)} (exit code {code}; log: {log})")
    return str(run.directory)


def _done(run: Run, task: Mapping[str, Any]) -> bool:
    if task.get("zero_shot"):
        return not ZeroShot.model_validate(task["zero_shot"]).missing(run)
    return complete(run)


def _retrain(run: Run) -> None:
    """Retrain a complete run beside its record, for its weights.

    Raises:
        RunError: the text, or the source of its encoding, is no longer what it was trained with.
    """
    from pe.training.start import check_source, check_text, steps_gone, text_for
    from pe.training.train import train

    first = Run(run.directory.parent.parent / run.name)
    check_source(first)
    check_text(
        text_for(run.recipe),
        first.read()["data"],
        run.name,
        "it cannot be retrained without that text",
    )
    trained = run.exists() and run.read()["status"] == "complete"
    if trained or steps_gone(run):  # it lacks weights that are wanted now, so it starts over
        with run.lock():
            for path in run.directory.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != ".lock":
                    path.unlink()
    wait_for_device()
    train(run)


def _reason(run: Run, log: Path) -> str:
    tail = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
    try:
        record = run.read() if run.exists() else {}
    except RunError as error:
        return str(error)
    if record.get("status") in ("failed", "interrupted") and record.get("reason"):
        return str(record["reason"])
    return tail[0][:500] if tail else "no output"


def main(task: Mapping[str, Any]) -> None:
    """Carry out one run in this process, which stops if its parent process dies.

    Raises:
        RunFailed: the process came to its end, and the run is not complete.
    """
    threading.Thread(target=stop_with_parent, args=(os.getppid(),), daemon=True).start()
    carry_out_task(task)
    run = Run(task["directory"], recipe=Recipe.from_dict(dict(task["recipe"])))
    if not _done(run, task):
        raise RunFailed(f"{run.directory}: it ended without a complete record")


def carry_out_task(task: Mapping[str, Any]) -> None:
    """Carry out one run in this process; all imports come before it waits for the device."""
    recipe = Recipe.from_dict(dict(task["recipe"]))
    run = Run(task["directory"], recipe=recipe)
    if task.get("zero_shot"):
        for module in ("pe.evaluation.extension", "pe.evaluation.longrope.search"):
            importlib.import_module(module)
        wait_for_device()
        carry_out(Run(task["directory"]), ZeroShot.model_validate(task["zero_shot"]))
    elif is_retrained_copy(run):
        _retrain(run)
    elif task["notebook"]:
        _run_notebook(notebook_parameters(recipe, task["study"]))
    else:
        from pe.evaluation.evaluate import evaluate
        from pe.training.train import train

        command = notebook_command(notebook_parameters(recipe, task["study"]))
        os.environ["PE_COMMAND"] = command
        wait_for_device()
        train(run)
        evaluate(run)


def _run_notebook(parameters: Mapping[str, Any]) -> None:
    """Execute train.ipynb, whose kernel waits for the device (`pe.notebooks.page.plan`)."""
    import papermill
    from papermill.exceptions import PapermillExecutionError

    os.environ["PE_COMMAND"] = notebook_command(parameters)
    try:
        papermill.execute_notebook(NOTEBOOK, None, parameters)
    except PapermillExecutionError as error:
        if error.ename != RunBusy.__name__:  # papermill passes on only the name of the type
            raise
        print(f"pe: {error.evalue}", file=sys.stderr)
        raise SystemExit(RunBusy.EXIT_CODE) from None


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except RunBusy as error:
        print(f"pe: {error}", file=sys.stderr)
        raise SystemExit(RunBusy.EXIT_CODE) from None
