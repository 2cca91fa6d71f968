"""The folder and the settings of a trial of a pretrained model. Imports no torch at first."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

from pe.recipes.named import spaced
from pe.runs import Folder, root
from pe.runs.models import PretrainedSettings
from pe.runs.parameters import (
    Count,
    Options,
    Positive,
    Switch,
    Whole,
    Words,
    launcher,
    refuse_strange_study,
    whole_numbers_in,
)

BATCH_SIZE, LEARNING_RATE = 8, 1e-4


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
        """Read and validate pretrained.json; None if there is none."""
        return self.part("pretrained")

    @property
    def complete(self) -> bool:
        """Whether the trial was carried out to its end."""
        record = self.read()
        return record is not None and record["status"] == "complete"


def run_name(settings: PretrainedSettings) -> str:
    """Return ``smollm2-yarn-1a2b3c4d``: the model, the encoding, a hash of all settings."""
    text = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    words = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{settings.model}-{settings.pe}")
    return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@launcher()
def configure_pretrained(
    model: str | None = None,
    pe: str = "yarn",
    factor: Positive | None = None,
    pe_options: Options | None = None,
    corpus: str = "stdlib",
    lengths: Words | None = None,
    windows: Count | None = None,
    target_tokens: Count = 256,
    prompts: Whole = 11,
    steps: Whole = 0,
    context_length: Count | None = None,
    batch_size: Count = BATCH_SIZE,
    learning_rate: Positive = LEARNING_RATE,
    seed: Whole = 0,
    compiled: Switch | None = None,
    study: str = "pretrained",
) -> PretrainedRun:
    """Return the folder and settings of a trial of somebody else's model. Writes nothing.

    Args:
        model: a folder or a gguf file. lengths: in tokens, with commas between; None: a quarter of
            the training length to what ``factor`` reaches. windows: texts of each length; None: 16
            on a GPU, else 4. context_length: in training; None: the model's own, at most 2,048.

    Raises:
        ValueError: the model cannot be explained (`pe.explain` says why), an unknown encoding or
            option, lengths that are too short, or a setting of training without steps.
    """
    from pe.encodings.core.options import refuse_unknown_options
    from pe.encodings.core.parts import part_classes
    from pe.pretrained.explain import explain

    refuse_strange_study(study)
    if not model:
        raise ValueError("model: expected a folder or a gguf file, as in -p model PATH")
    trained = explain(model).training.tokens
    parts = part_classes(pe := spaced(pe))  # refuses unknown names
    options = dict(pe_options or {})
    if factor is not None:
        if "factor" in options:
            raise ValueError("factor: it is also in pe_options; give it once")
        options["factor"] = factor
    refuse_unknown_options(pe, list(parts.values()), options)
    if not steps:
        for name, value, usual in (
            ("context_length", context_length, None), ("batch_size", batch_size, BATCH_SIZE),
            ("learning_rate", learning_rate, LEARNING_RATE), ("compiled", compiled, None),
        ):  # fmt: skip
            if value != usual:
                raise ValueError(
                    f"{name}: {value!r} has no effect without training; give steps, or leave it out"
                )
    asked = sorted(set(whole_numbers_in(lengths, "lengths")))
    asked = asked or _lengths(trained, factor, target_tokens)
    if short := [length for length in asked if length <= target_tokens]:
        raise ValueError(
            f"lengths: {short[0]} leaves no context before the {target_tokens} tokens that are "
            "scored; use more, or fewer target_tokens"
        )
    path = Path(model).expanduser().resolve()
    settings = PretrainedSettings(
        model=path.stem if path.suffix == ".gguf" else path.name,
        pe=pe,
        options=options,
        corpus=corpus,
        lengths=asked,
        windows=windows or (16 if _on_gpu() else 4),
        target_tokens=target_tokens,
        prompts=prompts,
        steps=steps,
        context_length=context_length or min(trained, 2048),
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    run = PretrainedRun(root() / study / run_name(settings))
    run.settings, run.path = settings, path
    if compiled is not None:
        run.compile = "on" if compiled else "off"
    return run


def _on_gpu() -> bool:
    from pe.devices import choose

    return choose().type == "cuda"


def _lengths(trained: int, factor: float | None, target_tokens: int) -> list[int]:
    """Return a quarter of the training length and its doublings up to what the factor reaches.

    On a CPU at most 4,096 tokens: within the training length of most models, where the question is
    what the encoding costs short texts.
    """
    longest = int(trained * (factor or 4))
    if not _on_gpu():
        longest = min(longest, 4096)
    lengths = [longest]
    while lengths[0] // 2 > max(target_tokens, min(trained, longest) // 8):
        lengths.insert(0, lengths[0] // 2)
    return lengths
