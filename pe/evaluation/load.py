"""The model and the tokenizer that a run trained."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from pe import devices
from pe.model import PEForCausalLM
from pe.runs import Run, RunError
from pe.training.build import read_model
from pe.training.start import check_source, retrained_copy


def _checkpoint(run: Run) -> Path:
    if not (run.checkpoint / "config.json").exists():
        raise RunError(
            f"{run.checkpoint} is not on this machine (weights are not kept in git); train the run "
            "again to have it"
        )
    return run.checkpoint


def holder(run: Run) -> Run:
    """``run``, or where it was trained again (`pe.study.parents`) if only that has its weights."""
    second = retrained_copy(run)
    own, other = (r.checkpoint / "config.json" for r in (run, second))
    complete = second.exists() and second.read()["status"] == "complete"
    return second if complete and other.exists() and not own.exists() else run


def load_model(run: Run) -> PEForCausalLM:
    """The trained model in evaluation mode, on the device of `pe.devices.choose`.

    Raises:
        RunError: the weights are not here, cannot be read, or the source of the encoding has
            changed since they were trained.
    """
    check_source(run)
    device = devices.choose()
    devices.keep_memory(device)
    return read_model(_checkpoint(run)).to(device).eval()  # type: ignore[no-any-return]


def load_tokenizer(run: Run) -> PreTrainedTokenizerBase:
    """The tokenizer the run was trained with."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(_checkpoint(run))
    return tokenizer
