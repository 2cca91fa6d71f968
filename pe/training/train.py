"""Train a run to its end, or go on with one that stopped, and record how it ended.

The steps are those of `pe.training.loop.Trainer`, in this process or in several
(`pe.training.processes`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pe import devices
from pe._errors import one_line
from pe.data import is_path, prepare
from pe.runs import Run, RunError, checked
from pe.training import processes
from pe.training.loop import Trainer
from pe.training.processes import Interrupted
from pe.training.progress import Progress
from pe.training.start import check_source, check_text


def train(
    run: Run, *, quiet: bool = False, trainer: Callable[[Run, bool], Trainer] | None = None
) -> Run:
    """Train ``run`` to the end of its recipe; a complete run returns at once.

    With ``PE_PROCESSES`` in the environment so many processes do it together
    (`pe.training.processes`).

    Args:
        trainer: what carries it out, in place of `Trainer`: a subclass with another `Trainer.step`.

    Raises:
        RunBusy: another process holds the run's folder.
        ProcessDied: one of several processes was killed.
        NonFiniteLoss: the loss became NaN or infinite; names the last good checkpoint.
        RunError: the folder holds another configuration or cannot be written, no checkpoint of it
            can be read, or the source of the encoding has changed since it was trained.
        Interrupted: a SIGTERM or SIGINT arrived; a checkpoint was written first.
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
        if record["status"] == "complete":
            _check_edited(run, record["data"])
            return run
    count = processes.wanted()
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
    """Prepare the text, which the others would wait for, and start them."""
    if trainer is not None:
        raise ValueError(
            f"trainer: {processes.PROCESSES} starts processes that do not know this one's trainer; "
            "start your own script with torchrun instead"
        )
    r, progress = run.recipe, Progress(enabled=not quiet)
    with run.lock(), _recording_failure(run):
        prepare(
            r.corpus, r.vocab_size, r.tokenizer, separator=r.separator, on_progress=progress.show
        )

    def record(error: BaseException) -> None:
        with run.lock():
            _record_failure(run, error)

    processes.launch(run, count, progress, record)


@contextlib.contextmanager
def _recording_failure(run: Run, main: bool = True) -> Iterator[None]:
    """Write into the record why the run ended, if it ends with an error in the main process."""
    try:
        yield
    except BaseException as error:
        if main:
            _record_failure(run, error)
        raise


def _record_failure(run: Run, error: BaseException) -> None:
    """Write why the run ended, as far as the folder can be written."""
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
    """Refuse to show a complete run for files that have changed since it was trained.

    Only files are looked at: corpora with a name are pinned, or belong to the Python that runs.
    """
    r = run.recipe
    if is_path(r.corpus):
        check_text(
            prepare(r.corpus, r.vocab_size, r.tokenizer, separator=r.separator), recorded,
            str(run.directory), "choose another study to train on what is there now",
        )  # fmt: skip
