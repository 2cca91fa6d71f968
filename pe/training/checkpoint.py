"""Checkpoints from which training continues as if it had never stopped.

    checkpoints/step-000130/        model.safetensors, config.json, optimizer.bin, random states,
                                    state.json; the last two checkpoints of a run are of this kind
    checkpoints/kept/step-000300/   never pruned; for ``keep_states`` the same files, from which a
                                    branch can start, for ``keep_steps`` without optimizer and
                                    random states, for any other run that starts from this one
    best/                           with ``keep_best``: the weights with the least validation loss,
                                    and the tokenizer

A checkpoint is written under a temporary name, flushed to disk and renamed, so it is complete or
absent. All of them load with ``AutoModelForCausalLM.from_pretrained``. The files do not depend on
how many processes wrote them or how these divided the model, so any number of processes can resume
from them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor, nn

from pe._errors import one_line
from pe._files import write_atomically
from pe._quiet import quiet_libraries
from pe.model.config import PEConfig
from pe.runs import RunError, writing
from pe.training import sharding
from pe.training.start import KEPT, TrainState, checkpoints, read_state

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

KEEP = 2
"""How many checkpoints of the first kind stay."""
WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.bin"


def hold_whole_tensors(
    accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Make Accelerate write and read the same files in several processes as in one.

    By default it would use the names of parameters in the wrapper with which several processes
    train a model, and write shares of a divided one.
    """

    def save(models: list[nn.Module], weights: list[dict[str, Tensor]], folder: str) -> None:
        weights[:] = [sharding.whole_weights(accelerator, model)]
        if sharding.is_sharded(model):
            state = sharding.whole_optimizer(accelerator, optimizer)
            accelerator.save(state, Path(folder) / OPTIMIZER)

    def load(models: list[nn.Module], folder: str) -> None:
        if sharding.is_sharded(model):
            sharding.load_weights(model, Path(folder) / WEIGHTS)
            sharding.load_optimizer(optimizer, Path(folder) / OPTIMIZER)
        else:
            models[:] = [accelerator.unwrap_model(model)]

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def save(
    accelerator: Accelerator, directory: Path, state: TrainState, config: PEConfig, *, keep: bool
) -> None:
    """Write a checkpoint with everything that resuming needs; every process calls this.

    Args:
        directory: the folder of the run's checkpoints.
        keep: write it into the folder `KEPT`, where it stays. Otherwise it is the run's last
            checkpoint, and older ones are removed.
    """
    parent = directory / KEPT if keep else directory
    with _folder(accelerator, parent / f"step-{state.step:06d}", state) as folder:
        accelerator.save_state(str(folder))
        if accelerator.is_main_process:
            config.save_pretrained(folder)
    if accelerator.is_main_process and not keep:
        _prune(directory)


def keep_weights(
    accelerator: Accelerator,
    model: nn.Module,
    final: Path,
    state: TrainState,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> None:
    """Write weights, configuration and ``tokenizer`` into ``final``; every process calls this."""
    weights = sharding.whole_weights(accelerator, model)
    with _folder(accelerator, final, state) as folder:
        if accelerator.is_main_process:
            accelerator.unwrap_model(model).save_pretrained(folder, state_dict=weights)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def _folder(accelerator: Accelerator, final: Path, state: TrainState) -> Iterator[Path]:
    """Give the block an empty folder to fill; then flush it to disk and rename it ``final``.

    If the block fails, the folder is removed.
    """
    temporary = final.with_name(f".{final.name}.partial")
    main = accelerator.is_main_process
    with writing_weights(final):
        try:
            if main:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
            accelerator.wait_for_everyone()
            yield temporary
            accelerator.wait_for_everyone()
            if main:
                (temporary / "state.json").write_text(json.dumps(asdict(state)))
                for path in temporary.rglob("*"):
                    if path.is_file():
                        with open(path, "rb+") as file:
                            os.fsync(file.fileno())
                discard(final)
                os.rename(temporary, final)
            accelerator.wait_for_everyone()
        except BaseException:
            if main:  # so that a full disk has room to record why
                shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextlib.contextmanager
def writing_weights(path: Path) -> Iterator[None]:
    """Write weights below ``path`` in this block.

    Raises:
        RunError: they cannot be written, for example because the disk is full.
    """
    # On a full disk torch.save raises RuntimeError.
    with quiet_libraries(), writing(path, (OSError, RuntimeError, SafetensorError)):
        yield


def keep_saved(directory: Path, steps: Sequence[int]) -> None:
    """Copy the run's last checkpoints of these steps, where there are any, into the folder `KEPT`.

    This is for a run that was stopped after such a step and is to keep it only since then.
    """
    for step in steps:
        saved = directory / f"step-{step:06d}"
        final = directory / KEPT / saved.name
        if saved in checkpoints(directory) and final not in checkpoints(directory / KEPT):
            temporary = final.with_name(f".{final.name}.partial")
            with writing_weights(final):
                shutil.rmtree(temporary, ignore_errors=True)
                shutil.copytree(saved, temporary)
                os.rename(temporary, final)


def discard(folder: Path) -> None:
    """Remove a folder of weights, if it exists.

    It is renamed first, so that a crash while it is removed does not leave half of it.
    """
    if folder.exists():
        hidden = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(folder, hidden)
        shutil.rmtree(hidden)


def _prune(directory: Path) -> None:
    """Remove all but the last `KEEP` checkpoints, and unfinished ones that crashes have left."""
    for old in checkpoints(directory)[:-KEEP]:
        discard(old)
    for leftover in directory.glob(".step-*"):
        shutil.rmtree(leftover)


def restore(
    accelerator: Accelerator, directory: Path, log: Callable[[str], None]
) -> TrainState | None:
    """Load the newest checkpoint into the prepared model and optimizer; every process calls this.

    If it is damaged, the one before it is loaded, and ``log`` is called with a sentence that names
    the damaged one.

    Returns:
        The counters of the checkpoint, or None if the run has no checkpoint.

    Raises:
        RunError: the run has checkpoints, but none can be read. It does not start over by itself,
            because the user may want to repair them.
    """
    damaged: list[str] = []
    for path in reversed(checkpoints(directory)):
        state, reason = _load(accelerator, path)
        if state is not None:
            state.resumes += 1
            # Written at once, so that the resume is counted even if this process is killed.
            if accelerator.is_main_process:
                write_atomically(path / "state.json", json.dumps(asdict(state)))
            return state
        damaged.append(f"{path} cannot be read ({reason})")
        log(f"{damaged[-1]}; going on from the checkpoint before it")
    if damaged:
        raise RunError(
            f"{'; '.join(damaged)}; no checkpoint is left to go on from: delete {directory} to "
            "train from the beginning"
        )
    return None


def begin_from(accelerator: Accelerator, path: Path) -> None:
    """Load weights, optimizer and random states from the checkpoint of another run.

    Raises:
        RunError: the checkpoint cannot be read.
    """
    state, reason = _load(accelerator, path)
    if state is None:
        raise RunError(f"{path} cannot be read ({reason}); train its run once more")


def _load(accelerator: Accelerator, path: Path) -> tuple[TrainState | None, str]:
    """Load a checkpoint in all processes; return its counters, or None and the reason.

    If one process cannot read it, none of them uses it.
    """
    state, reason = None, "another process could not read it"
    try:
        counters = read_state(path)
        accelerator.load_state(str(path))
        state = counters
    except Exception as error:  # a damaged file makes its reader raise errors of many types
        reason = one_line(error)[:200]
    is_read = torch.full((), float(state is not None), device=accelerator.device)
    all_read = accelerator.reduce(is_read, "sum").item() == accelerator.num_processes
    return (state if all_read else None), reason
