"""Checkpoints from which training goes on as if it had never stopped.

    checkpoints/step-000130/   model.safetensors, config.json, optimizer, random states, state.json

    checkpoints/kept/step-000300/   model.safetensors, config.json, state.json

The last two of the first kind stay. Those of the second stay for good: with ``keep_steps`` they
hold what another run needs to start from, and no optimizer; with ``keep_states`` they hold
everything, for a branch. With ``keep_best`` the run's folder ``best/`` holds the weights with the
least validation loss, no optimizer, and the tokenizer. Each is written under another name, flushed
to disk and renamed, so it is whole or it is not there. Any of them loads with
``AutoModelForCausalLM.from_pretrained``. The files are the same whatever number of processes wrote
them and however they divided the model, so that any number can go on from them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
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
WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.bin"


def hold_whole_tensors(
    accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Let several processes write and read what one process would.

    Accelerate would save a model that runs in several processes under the names of what wraps it.
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
    """Write a checkpoint. All processes call this together.

    Args:
        keep: for good, to branch other runs from; otherwise as the last one, and older ones go.
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
    """Write a folder ``final`` of weights alone. All processes call this together."""
    weights = sharding.whole_weights(accelerator, model)
    with _folder(accelerator, final, state) as folder:
        if accelerator.is_main_process:
            accelerator.unwrap_model(model).save_pretrained(folder, state_dict=weights)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def _folder(accelerator: Accelerator, final: Path, state: TrainState) -> Iterator[Path]:
    """An empty folder for a checkpoint; filled, it is flushed to disk and named ``final``."""
    temporary = final.with_name(f".{final.name}.partial")
    with writing_weights(final):
        if accelerator.is_main_process:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        accelerator.wait_for_everyone()
        yield temporary
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (temporary / "state.json").write_text(json.dumps(asdict(state)))
            for path in temporary.rglob("*"):
                if path.is_file():
                    with open(path, "rb+") as file:
                        os.fsync(file.fileno())
            shutil.rmtree(final, ignore_errors=True)
            os.rename(temporary, final)
        accelerator.wait_for_everyone()


@contextlib.contextmanager
def writing_weights(path: Path) -> Iterator[None]:
    """Write weights below ``path``; RunError if they cannot be written, as on a full disk."""
    # torch.save raises RuntimeError where there is no room.
    with quiet_libraries(), writing(path, (OSError, RuntimeError, SafetensorError)):
        yield


def _prune(directory: Path) -> None:
    """Keep the last checkpoints; remove older ones and what crashes left behind."""
    for old in checkpoints(directory)[:-KEEP]:
        os.rename(old, old.with_name(f".{old.name}.partial"))  # never half a checkpoint
    for partial in directory.glob(".step-*.partial"):
        shutil.rmtree(partial)


def restore(
    accelerator: Accelerator, directory: Path, log: Callable[[str], None]
) -> TrainState | None:
    """Load the newest checkpoint into the prepared model and optimizer, if there is one.

    A damaged one costs the steps since the one before it, which is loaded instead; ``log`` gets a
    sentence that names it.

    Raises:
        RunError: there are checkpoints and none can be read. Whether to start over is for the user
            to decide.
    """
    damaged: list[str] = []
    for path in reversed(checkpoints(directory)):
        state, reason = _load(accelerator, path)
        if state is not None:
            state.resumes += 1
            if accelerator.is_main_process:  # counted even if this process is killed as well
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
    """Load weights, optimizer and random states of another run's checkpoint.

    Raises:
        RunError: it cannot be read.
    """
    state, reason = _load(accelerator, path)
    if state is None:
        raise RunError(f"{path} cannot be read ({reason}); train its run once more")


def _load(accelerator: Accelerator, path: Path) -> tuple[TrainState | None, str]:
    """The state of a checkpoint loaded by all processes, or None and why it could not be."""
    state, reason = None, "another process could not read it"
    try:
        counters = read_state(path)
        accelerator.load_state(str(path))
        state = counters
    except Exception as error:  # whatever the readers of three formats raise at damaged files
        reason = one_line(error)[:200]
    read = torch.full((), float(state is not None), device=accelerator.device)
    everyone = accelerator.reduce(read, "sum").item() == accelerator.num_processes
    return (state if everyone else None), reason
