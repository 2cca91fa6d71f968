"""Train a run to its end, or resume one that stopped, and record how it ended.

`pe.training.loop.Trainer` does the work, in this process or in several (`pe.training.processes`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pe import devices
from pe._errors import one_line
from pe.data import is_path
from pe.runs import Run, RunError, checked
from pe.training import memory, processes
from pe.training.loop import Trainer
from pe.training.processes import Interrupted
from pe.training.progress import Progress
from pe.training.start import check_kept, check_source, check_text, text_for


def train(
    run: Run, *, quiet: bool = False, trainer: Callable[[Run, bool], Trainer] | None = None
) -> Run:
    """Train ``run`` to the end of its recipe; a run that is complete returns at once.

    If the environment variable ``PE_PROCESSES`` is set, as many processes train it together
    (`pe.training.processes`).

    Args:
        quiet: show no progress.
        trainer: makes the object that trains, in place of `Trainer`: usually a subclass with
            another `Trainer.step`.

    Returns:
        ``run``, whose record is complete now.

    Raises:
        RunBusy: another process is writing the run's folder.
        ProcessDied: one of several processes was killed.
        NonFiniteLoss: the loss became NaN or infinite; the message names the last good checkpoint.
        RunError: the folder holds another configuration or cannot be written, none of its
            checkpoints can be read, the source of the encoding has changed since the training, or
            the recipe now keeps steps that the run has passed.
        Interrupted: a SIGTERM or SIGINT arrived; a checkpoint was written before.
        ValueError: the recipe does not fit the machine or the corpus.
    """
    if checked(run).exists():
        record = run.read()
        if record["config_hash"] != run.recipe.config_hash():
            raise RunError(
                f"{run.directory} holds a run of another configuration ({record['config_hash']}, "
                f"not {run.recipe.config_hash()}); choose another folder"
            )
        check_source(run)
        check_kept(run)
        if record["status"] == "complete":
            _check_edited(run, record["data"])
            return run
    count = processes.wanted()
    memory.refuse_hopeless(run.recipe, processes.together(), devices.memory())
    if count > 1:
        _train_in_processes(run, count, quiet, trainer)
        return run
    main = int(os.environ.get("RANK", "0")) == 0
    with (
        run.lock() if main else contextlib.nullcontext(),
        _recording_failure(run, main),
        devices.deterministic(run.recipe.deterministic),
    ):
        (trainer or Trainer)(run, quiet).go()
    return run


def _train_in_processes(run: Run, count: int, quiet: bool, trainer: object) -> None:
    """Prepare the text, for which the processes would wait for each other, and start them."""
    if trainer is not None:
        raise ValueError(
            f"trainer: the processes that {processes.PROCESSES} starts do not know the trainer of "
            "this one; start your own script with torchrun instead"
        )
    progress = Progress(enabled=not quiet)
    with run.lock(), _recording_failure(run):
        text_for(run.recipe, progress.show)

    def record(error: BaseException) -> None:
        with run.lock():
            _record_failure(run, error)

    processes.launch(run, count, progress, record)


@contextlib.contextmanager
def _recording_failure(run: Run, main: bool = True) -> Iterator[None]:
    """Record why the run ended if this block raises an error in the main process."""
    try:
        yield
    except BaseException as error:
        if main:
            _record_failure(run, error)
        raise


def _record_failure(run: Run, error: BaseException) -> None:
    """Record why the run ended; if the folder cannot be written, add that to the error."""
    try:
        if isinstance(error, Interrupted):
            run.fail(str(error), "interrupted", error.signal)
        elif isinstance(error, KeyboardInterrupt):
            run.fail("stopped before or after its steps", "interrupted", "SIGINT")
        else:
            run.fail(one_line(error))
            run.keep_traceback(error)
    except RunError as second:
        error.add_note(f"and this could not be recorded: {second}")


def _check_edited(run: Run, recorded: Mapping[str, Any]) -> None:
    """Refuse to show a complete run if its text files have changed since it was trained.

    This matters only for a corpus that is a path. Named corpora are pinned, or are part of the
    Python that runs.
    """
    if is_path(run.recipe.corpus):
        check_text(
            text_for(run.recipe), recorded, str(run.directory),
            "choose another study to train on the present files",
        )  # fmt: skip
