"""Small, valid, made-up records for tests of tables, figures and the book. No training needed."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

from pe.runs import Run

ROOT = Path(__file__).resolve().parents[2]

# Perplexity at 1, 2, 4, 8 times the training length; None: the encoding cannot go there.
PERPLEXITY: dict[str, tuple[float | None, ...]] = {
    "nope": (44.0, 60.0, 180.0, 900.0),
    "rope": (40.0, 80.0, 400.0, 2100.0),
    "yarn": (40.0, 42.0, 55.0, 90.0),
    "pope": (38.0, 38.5, 39.5, 41.0),
    "learned": (43.0, None, None, None),
}


@functools.cache
def committed() -> Any:
    """The checkout's records as the book reads them, read once per process. Tests only look."""
    from book_studies import Studies

    return Studies.load(ROOT / "runs", ROOT / "runs", "demo")


def recipe(pe: str, seed: int, **changes: Any) -> dict[str, Any]:
    """Return the fields of a recipe that tables, figures and the book look at."""
    values = {
        "name": "demo", "pe": pe, "pe_options": {}, "seed": seed, "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "context_length": 256, "steps": 100,
        "batch_size": 8, "learning_rate": 4e-3, "vocab_size": 512,
        "evaluation_lengths": [256, 512, 1024, 2048],
    }  # fmt: skip
    return values | changes


def record(study: str, pe: str, seed: int, **changes: Any) -> dict[str, Any]:
    """Return the record of a complete run."""
    name = f"{pe.replace('+', '_')}-s{seed}-{abs(hash_of(pe)) % 16**8:08x}"
    values = {
        "schema": 1, "study": study, "run": name, "status": "complete", "reason": None, "pe": pe,
        "seed": seed, "recipe": recipe(pe, seed), "config_hash": name.rsplit("-", 1)[1],
        "created": "2026-01-02T03:04:05+00:00", "finished": "2026-01-02T03:06:05+00:00",
        "command": f"papermill notebooks/train.ipynb -p pe {pe}",
        "code": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False,
                 "version": "0.1.0"},
        "versions": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.24.0"},
        "hardware": {"device": "cpu", "name": "Test processor", "count": 1, "cores": 2,
                     "memory_gib": 8.0, "platform": "Linux"},
        "data": {"corpus": "stdlib", "fingerprint": "feedfacefeedface", "documents": 10,
                 "train_tokens": 90000, "validation_tokens": 5000, "test_tokens": 5000,
                 "tokenizer": "bpe", "vocab_size": 512},
        "model": {"parameters": 123456, "encoding_parameters": 64 if pe == "pope" else 0},
        "training": {"steps": 100, "tokens": 204800, "passes": 2.2, "wall_seconds": 125.0,
                     "tokens_per_second": 9812.3, "mfu": None, "peak_memory_gib": None,
                     "final_loss": 3.25 + seed / 10, "validation_loss": 3.5, "resumes": 0},
    }  # fmt: skip
    return values | changes


def hash_of(text: str) -> int:
    """Return a hash that does not change between processes."""
    value = 5381
    for letter in text.encode():
        value = value * 33 + letter
    return value


def evaluation(pe: str, scale: float = 1.0) -> dict[str, Any]:
    """Return an evaluation with `PERPLEXITY` times ``scale``, for others that of RoPE."""
    numbers = PERPLEXITY.get(pe, PERPLEXITY["rope"])
    table = {}
    for length, value in zip((256, 512, 1024, 2048), numbers, strict=True):
        if value is None:
            table[str(length)] = {
                "value": None, "nll": None, "window_nll": None,
                "reason": "no value: longest position 256",
            }  # fmt: skip
        else:
            nll = math.log(value * scale)
            table[str(length)] = {
                "value": value * scale, "nll": nll, "window_nll": [nll, nll], "reason": None,
            }  # fmt: skip
    reached = [value for value in numbers if value is not None]
    edges = [0, 256, 512, 1024, 2048][: len(reached) + 1]
    return {
        "schema": 1, "created": "2026-01-02T03:07:05+00:00", "lengths": [256, 512, 1024, 2048],
        "target_tokens": 128, "windows": 2, "seconds": 1.5, "perplexity": table,
        "window_perplexity": table,
        "loss_by_position": {
            "length": edges[-1], "edges": edges, "nll": [math.log(value) for value in reached],
        },
    }  # fmt: skip


def lines(markdown: str) -> list[list[str]]:
    """Return the cells of a pipe table, its heads first, without the rule below them."""
    found = [line.strip().strip("|").split("|") for line in markdown.splitlines() if "|" in line]
    cells = [[cell.strip() for cell in line] for line in found]
    return [cells[0], *cells[2:]]


def write(
    root: Path, pe: str, seed: int = 0, study: str = "demo", scale: float = 1.0, **changes: Any
) -> Run:
    """Write one run below ``root`` and return it."""
    values = record(study, pe, seed, **changes)
    run = Run(root / study / values["run"])
    run.write(values)
    if values["status"] == "complete":
        run.write_evaluation(evaluation(pe, scale))
    lines: list[dict[str, Any]] = [
        {"step": step, "loss": 6.0 * math.exp(-step / 60) + 3.0, "grad_norm": 1.0, "lr": 1e-3,
         "tokens": step * 2048, "tokens_per_second": 9812.3, "mfu": None, "seconds": 0.2}
        for step in range(5, 101, 5)
    ]  # fmt: skip
    lines.append({"step": 100, "validation_loss": 3.5})
    (run.directory / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (run.directory / "train.ipynb").write_text(json.dumps(notebook(pe)))
    return run


def notebook(pe: str) -> dict[str, Any]:
    """Return an executed notebook as papermill leaves it, with the output of a progress display."""
    return {
        "cells": [
            {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Train\n\nText."},
            {"cell_type": "code", "id": "b", "execution_count": 1,
             "metadata": {"tags": ["parameters"]}, "source": f"pe = {pe!r}",
             "outputs": [{"output_type": "display_data", "metadata": {"pe_progress": True},
                          "data": {"text/plain": "step 100/100 gone in the book"}}]},
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3",
                                    "language": "python"},
                     "language_info": {"name": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
