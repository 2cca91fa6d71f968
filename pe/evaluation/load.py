"""Load the model and the tokenizer of a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from pe import devices
from pe.model import PEForCausalLM
from pe.runs import Run, RunError
from pe.training.build import read_model
from pe.training.start import check_source, retrained_copy


def _checkpoint(run: Run) -> Path:
    if not (run.checkpoint / "config.json").exists():
        raise RunError(
            f"{run.checkpoint} is not on this machine (weights are not stored in git); train the "
            "run again to have it"
        )
    return run.checkpoint


def complete_record(run: Run, doing: str) -> dict[str, Any]:
    """Return the record of a complete run.

    Raises:
        RunError: the run is not complete; ``doing`` says in the message what has to wait.
    """
    record = run.read()
    if record["status"] != "complete":
        raise RunError(f"{run.directory} is {record['status']}; train it before {doing} it")
    return record


def holder(run: Run) -> Run:
    """Return the run that has the weights of ``run``.

    It is ``run`` itself, unless only its second training (`pe.study.parents`) has weights here.
    """
    copy = retrained_copy(run)
    here, there = ((r.checkpoint / "config.json").exists() for r in (run, copy))
    complete = copy.exists() and copy.read()["status"] == "complete"
    return copy if complete and there and not here else run


def load_model(run: Run) -> PEForCausalLM:
    """Load the trained model in evaluation mode, on the device that `pe.devices.choose` returns.

    Raises:
        RunError: the weights are not on this machine or cannot be read, or the source of the
            encoding has changed since the training.
    """
    check_source(run)
    device = devices.choose()
    devices.keep_memory(device)
    return read_model(_checkpoint(run)).to(device).eval()  # type: ignore[no-any-return]


def load_tokenizer(run: Run) -> PreTrainedTokenizerBase:
    """Load the tokenizer with which the run was trained.

    Raises:
        RunError: the run's checkpoint is not on this machine.
    """
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(_checkpoint(run))
    return tokenizer
