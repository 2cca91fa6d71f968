"""The folder of a trial of a pretrained model (`pe.pretrained.trial`). Imports no torch."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

from pe.runs import Folder
from pe.runs.models import PretrainedSettings


class PretrainedRun(Folder):
    """The folder of one trial. Its record is pretrained.json."""

    notebook = "pretrained.ipynb"
    settings: PretrainedSettings
    path: Path
    """Path of the model on this machine. The record has the model's name only."""
    command: str = ""
    """The command that repeats the trial, if it is not the one that is running."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether training compiles layers; ``auto``: on a GPU. The record says what was done."""

    def read(self) -> dict[str, Any] | None:
        """pretrained.json, validated; None if there is none."""
        return self.part("pretrained")


def run_name(settings: PretrainedSettings) -> str:
    """``smollm2-yarn-1a2b3c4d``: the model, the encoding, all settings."""
    text = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    words = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{settings.model}-{settings.pe}")
    return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
