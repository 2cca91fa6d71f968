"""A made-up record of a speed run on one H100, for tests of tables and the page."""

from __future__ import annotations

import re
from typing import Any

from pe.speed.names import PEERS

# Tokens/s of NoPE, and of others over it, at 1,024 and at 16,384 tokens.
NOPE = {1024: 1_800_000.0, 16384: 800_000.0}
OVER_NOPE: dict[str, tuple[float | None, float | None]] = {
    "rope": (0.98, 0.99), "alibi": (0.97, 0.95), "kerple_log": (0.96, 0.94), "t5": (0.95, 0.89),
    "sandwich": (0.97, 0.93), "pope": (0.93, 0.85), "xpos": (0.97, 0.97), "fope": (0.95, 0.96),
    "fire": (0.80, None), "fox": (0.95, 0.90), "cope": (0.60, 0.40), "dape": (0.66, 0.44),
    "path": (0.66, 0.44), "stickbreaking": (0.90, 0.88),
    "transformers/rope": (0.60, 0.50), "x-transformers/alibi": (0.30, 0.10),
}  # fmt: skip
SHORT = "out of memory at batch 4 (32.00 GiB more asked for)"


def row(system: str, length: int, rate: float | None, **changes: Any) -> dict[str, Any]:
    """Return a cell; without a rate it could not be measured."""
    there = rate is not None
    values = {
        "system": system, "mode": "train", "length": length, "batch": 65536 // length,
        "session": 0, "round": 0, "tokens_per_second": rate,
        "least": rate and rate * 0.99, "most": rate and rate * 1.01,
        "repeats": 5 if there else 0, "steps_a_repeat": 8 if there else 0,
        "mfu": 0.4 if there else None, "peak_memory_gib": 12.0 if there else None,
        "first_step_seconds": 11.0 if there else None, "parameters": 34_087_424 if there else None,
        "compiled": True if there else None, "path": "torch SDPA" if there else None,
        "reason": None if there else SHORT, "seconds": 14.0,
    }  # fmt: skip
    return values | changes


def session(**changes: Any) -> dict[str, Any]:
    return {
        "created": "2026-01-02T03:04:05+00:00", "finished": "2026-01-02T03:18:05+00:00",
        "command": "speed.py --name h100",
        "code": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False,
                 "version": "0.1.0"},
        "versions": {"python": "3.11.7", "torch": "2.11.0", "transformers": "5.17.0"},
        "hardware": {"device": "cuda", "name": "NVIDIA H100 80GB HBM3", "count": 1, "cores": 16,
                     "memory_gib": 128.0, "platform": "Linux"},
        "helpers": 0,
    } | changes  # fmt: skip


def record(**changes: Any) -> dict[str, Any]:
    """Return a record of training at two lengths, with FIRE out of memory at the longer one."""
    cells = []
    for place, (length, rate) in enumerate(NOPE.items()):
        cells.append(row("nope", length, rate))
        for system, over in OVER_NOPE.items():
            found = over[place]
            cells.append(row(system, length, found and found * rate))
        cells.append(row("nope", length, rate, round=1))
    values = {
        "schema": 1, "study": "speed", "run": "h100", "status": "complete",
        "settings": {
            "recipe": "tiny", "tokens": 65536, "lengths": [1024, 16384], "modes": ["train"],
            "systems": ["nope", *(s for s in OVER_NOPE if s not in PEERS),
                        *(s for s in OVER_NOPE if s in PEERS)],
            "repeats": 5, "compiled": True,
        },
        "sessions": [session()],
        "cells": cells,
    }  # fmt: skip
    return values | changes


def squeezed(text: str) -> str:
    """Remove the spaces that align the columns of a table."""
    return re.sub(" +", " ", text)
