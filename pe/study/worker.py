"""One run of a study, as a Dask worker does it: the notebook command in its own process.

A process a run gives its memory back, and an error in one run cannot reach another. The process
watches its parent: when a worker is killed, its run saves a checkpoint and stops, and the worker
that takes the task over goes on from there.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe.runs import Run, RunError
from pe.study.turns import take_turn
from pe.study.zero_shot import ZeroShot, carry_out
from pe.training.recipe import Recipe
from pe.training.start import folder_of, is_again

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "train.ipynb"
# Fields that keep their share of another one unless they are given (`pe.recipe`).
FOLLOWS = {
    "warmup_steps": "steps", "decay_steps": "steps", "min_learning_rate": "learning_rate",
    "evaluation_lengths": "context_length", "target_tokens": "context_length",
}  # fmt: skip
WAIT_FOR_LOCK = 180.0
"""Seconds that a run's folder may still be held by the process of a worker that was killed."""


class RunFailed(RuntimeError):
    """A run ended without a complete record; says why."""


def execute(task: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Train and evaluate one run unless its record is complete; returns its directory.

    Args:
        task: ``directory``, ``recipe`` (as `Recipe.to_dict` gives it), ``study``, and ``notebook``:
            whether by the notebook command, which leaves the executed page, or by `pe.train`. A run
            that is trained again for its weights is neither evaluated nor given a page. With
            ``zero_shot`` (as `ZeroShot.to_dict` gives it) the run there is extended instead.
        environment: variables for the process, such as PE_RUNS and CUDA_VISIBLE_DEVICES.

    Raises:
        RunFailed: with the reason that the record or the last line of the log gives.
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
        if code == 0 and _done(run, task):
            break
        reason = _reason(run, log)
        if "is being written by" in reason and time.monotonic() - begun < WAIT_FOR_LOCK:
            time.sleep(2)
            continue
        raise RunFailed(f"{run.directory}: {reason} (exit code {code}; log: {log})")
    return str(run.directory)


def _done(run: Run, task: Mapping[str, Any]) -> bool:
    if task.get("zero_shot"):
        return not ZeroShot.of(task["zero_shot"]).missing(run)
    return complete(run)


def complete(run: Run) -> bool:
    """Trained and evaluated as its recipe asks; of a run trained again, the weights are there."""
    from pe.evaluation.covers import covers

    if not run.exists() or run.read()["status"] != "complete":
        return False
    if is_again(run):
        return _all_weights(run)
    evaluation = run.evaluation()
    return evaluation is not None and covers(evaluation, run.recipe)


def _all_weights(run: Run) -> bool:
    """The last weights and all that the recipe keeps on the way."""
    kept = run.directory / "checkpoints"
    states = [folder_of(kept, step) for step in run.recipe.keep_states]
    return (
        (run.checkpoint / "config.json").exists()
        and all(folder_of(kept, step) is not None for step in run.recipe.keep_steps)
        and all(state is not None and (state / "optimizer.bin").exists() for state in states)
    )


def _train_again(run: Run) -> None:
    """Train a complete run once more, beside its record, for its weights.

    Raises:
        RunError: the text is no longer the one that it was trained on.
    """
    import pe
    from pe.data import prepare

    first = Run(run.directory.parent.parent / run.name).read()["data"]["fingerprint"]
    r = run.recipe
    text = prepare(r.corpus, r.vocab_size, r.tokenizer).fingerprint
    if text != first:
        raise RunError(
            f"{run.name} was trained on data {first}, and {r.corpus!r} is now {text}; it cannot be "
            "trained again without that text"
        )
    if run.exists() and run.read()["status"] == "complete":  # some of its weights are gone, too
        with run.lock():
            shutil.rmtree(run.directory)
    train = pe.train  # imports all that it needs
    take_turn()
    train(run)


def command(recipe: Recipe, study: str) -> list[str]:
    """Arguments of papermill that train and evaluate ``recipe``, reproducing its hash exactly."""
    import yaml

    from pe.notebooks.parameters import parameters
    from pe.training.recipes import RECIPES

    base, own = RECIPES[recipe.name].to_dict(), parameters()
    new = {name for name, value in recipe.to_dict().items() if value != base[name]}
    values: dict[str, Any] = {"recipe": recipe.name, "study": study}
    overrides = {}
    for name, value in recipe.to_dict().items():
        if name in own:
            values[name] = value
        elif name != "name" and (name in new or FOLLOWS.get(name) in new):
            overrides[name] = value
    values["overrides"] = overrides
    given = {key: value for key, value in values.items() if value not in ({}, "")}
    # In one line, so that it can be pasted; not as JSON, whose 1e-05 is a text in YAML.
    line = yaml.safe_dump(given, default_flow_style=True, width=10**6).strip()
    return [str(NOTEBOOK), "-y", line]


def _reason(run: Run, log: Path) -> str:
    tail = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
    try:
        record = run.read() if run.exists() else {}
    except RunError as error:
        return str(error)
    if record.get("status") in ("failed", "interrupted") and record.get("reason"):
        return str(record["reason"])
    return tail[0][:500] if tail else "no output"


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)


def main(task: Mapping[str, Any]) -> None:
    """What the process of one run does, until it ends or its parent does."""
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    recipe = Recipe.from_dict(dict(task["recipe"]))
    run = Run(task["directory"], recipe=recipe)
    if task.get("zero_shot"):
        import pe.evaluation.extension
        import pe.evaluation.longrope.search

        take_turn()
        carry_out(Run(task["directory"]), ZeroShot.of(task["zero_shot"]))
    elif is_again(run):
        _train_again(run)
    elif task["notebook"]:
        from papermill.cli import papermill

        sys.argv = ["papermill", *command(recipe, task["study"])]
        os.environ["PE_COMMAND"] = shlex.join(["papermill", "notebooks/train.ipynb", *sys.argv[2:]])
        papermill()
    else:
        import pe

        train, evaluate = pe.train, pe.evaluate
        take_turn()
        train(run)
        evaluate(run)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
