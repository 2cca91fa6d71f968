"""Checkpoints from which training goes on as if it had never stopped.

    checkpoints/step-000130/   model.safetensors, config.json, optimizer, random states, state.json

Each is written under another name, flushed to disk and renamed, so it is whole or it is not there.
Any of them loads with ``AutoModelForCausalLM.from_pretrained``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from accelerate import Accelerator

from pe.config import PEConfig

KEEP = 2


@dataclass
class TrainState:
    """Loop counters: everything else is a pure function of the recipe and the step."""

    step: int = 0
    """Optimizer steps done."""
    tokens: int = 0
    seconds: float = 0.0
    resumes: int = 0
    data_fingerprint: str = ""


def checkpoints(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    found = [p for p in directory.glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    return sorted(p for p in found if (p / "state.json").exists())


def save(accelerator: Accelerator, directory: Path, state: TrainState, config: PEConfig) -> Path:
    """Write a checkpoint and prune older ones. All processes call this together."""
    final = directory / f"step-{state.step:06d}"
    temporary = directory / f".{final.name}.partial"
    if accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(temporary))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        config.save_pretrained(temporary)
        (temporary / "state.json").write_text(json.dumps(asdict(state)))
        for path in temporary.rglob("*"):
            if path.is_file():
                with open(path, "rb+") as file:
                    os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
        for old in checkpoints(directory)[:-KEEP]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()
    return final


def restore(accelerator: Accelerator, directory: Path) -> TrainState | None:
    """Load the newest checkpoint into the prepared model and optimizer, if there is one."""
    found = checkpoints(directory)
    if not found:
        return None
    accelerator.load_state(str(found[-1]))
    state = TrainState(**json.loads((found[-1] / "state.json").read_text()))
    state.resumes += 1
    return state
