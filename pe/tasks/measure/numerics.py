"""Put position and token inversion and aliasing on record.

    python -m pe.tasks.measure.numerics

writes runs/numerics/inversion/numerics.json, in a few minutes on a CPU. Nothing is trained: the
numbers follow from the encodings' formulas and normal queries and keys (`inversion`).
"""

from __future__ import annotations

import time
from typing import Any

import pe
from pe.runs import SCHEMA_VERSION, Folder, provenance, root
from pe.tasks.measure import inversion

HEAD_DIM = 64
INVERSION_LENGTHS = (128, 1024, 8192, 65536, 524288)
ALIASING_LENGTHS = (128, 1024, 8192)
ENCODINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "rope@theta=10000": ("rope", {}),
    "rope@theta=500000": ("rope", {"theta": 5e5}),
    "rope@theta=10000000": ("rope", {"theta": 1e7}),
    "pope": ("pope", {}),
    "alibi": ("alibi", {}),
    "nope": ("nope", {}),
}


def measure() -> dict[str, Any]:
    """The record."""
    began, created = time.monotonic(), provenance.now()
    values: dict[str, dict[str, float]] = {}
    for name, (encoding, options) in ENCODINGS.items():
        enc = pe.encoding(encoding, head_dim=HEAD_DIM, num_heads=1, hidden_size=HEAD_DIM, **options)
        own = values[name] = {}
        for length in INVERSION_LENGTHS:
            own[f"position-inversion@{length}"] = inversion.position_inversion(
                enc, HEAD_DIM, length
            )
            own[f"token-inversion@{length}"] = inversion.token_inversion(enc, HEAD_DIM, length)
        for length in ALIASING_LENGTHS:
            own[f"position-aliasing@{length}"] = inversion.position_aliasing(enc, HEAD_DIM, length)
            own[f"token-aliasing@{length}"] = inversion.token_aliasing(enc, HEAD_DIM, length)
    return {
        "schema": SCHEMA_VERSION,
        "run": "inversion",
        "created": created,
        "finished": provenance.now(),
        "command": "python -m pe.tasks.measure.numerics",
        "code": provenance.code(),
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "settings": {
            "head_dim": HEAD_DIM, "alignment": 0.5, "seed": 0,
            "inversion_samples": 4000, "aliasing_samples": 200, "tolerance": 2**-8,
        },
        "values": values,
        "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip


if __name__ == "__main__":
    folder = Folder(root() / "numerics" / "inversion")
    folder.directory.mkdir(parents=True, exist_ok=True)
    folder.write_part("numerics", measure())
    print(folder.directory / "numerics.json")
