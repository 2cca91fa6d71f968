"""The end of a run: the trained model in its folder, and what training did in its record."""

from __future__ import annotations

import resource
import sys
from typing import Any

import torch

from pe._quiet import quiet_libraries
from pe.data import TokenData
from pe.model import PEForCausalLM
from pe.runs import Run
from pe.runs.provenance import now
from pe.training.checkpoint import TrainState
from pe.training.metrics import Metrics


def finish(
    run: Run, model: PEForCausalLM, weights: dict[str, Any], data: TokenData, training: Any
) -> None:
    """Save model and tokenizer, and declare the run complete."""
    with quiet_libraries():
        model.save_pretrained(run.checkpoint, state_dict=weights)
    data.load_tokenizer().save_pretrained(run.checkpoint)
    run.update(status="complete", reason=None, finished=now(), training=training)


def summary(
    state: TrainState, metrics: Metrics, train_tokens: int, validation: float, device: torch.device
) -> dict[str, Any]:
    """The ``training`` part of the record."""
    mfu = None
    if metrics.peak is not None:
        mfu = round(metrics.speed() * metrics.flops / metrics.peak, 4)
    return {
        "steps": state.step,
        "tokens": state.tokens,
        "passes": round(state.tokens / train_tokens, 4),
        "wall_seconds": round(state.seconds, 2),
        "tokens_per_second": round(metrics.speed(), 1),
        "mfu": mfu,
        "peak_memory_gib": round(peak_memory(device), 3),
        "final_loss": round(metrics.final_loss(state.step), 6),
        "validation_loss": round(validation, 6),
        "resumes": state.resumes,
    }


def peak_memory(device: torch.device) -> float:
    """GiB: allocated on the GPU, or resident in main memory, at most so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
