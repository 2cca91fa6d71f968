"""Record measurements that follow from formulas alone. Nothing is trained.

    python -m pe.tasks.measure.numerics inversion     position and token inversion and aliasing
    python -m pe.tasks.measure.numerics shifting      whether a linear map shifts added positions

writes runs/numerics/NAME/numerics.json. The first takes a few minutes on a CPU, the second seconds.
What ``shifting`` asks: is there a linear map from the vector of every position to the vector k
positions later?

    M = argmin sum_{p < n} | M P(p) - P(p + k) |^2           error = its root, as a share of |P|

Sinusoidal positions have such a map for every n: a rotation. It is the reason given for sines *and*
cosines (arXiv:1706.03762, section 3.5). With at most as many positions as columns, any linearly
independent vectors have such a map too. A rotation adds that the same map holds for positions that
were not seen. So the error is measured twice: on the positions that M was fitted to, and on the
same number of positions after them.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import torch

import pe
from pe._errors import unknown
from pe.encodings.core.additive import Additive
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

SHIFT_WIDTH, SHIFT_LENGTH, SHIFT = 32, 64, 3
ADDED = {
    name: f"pe.tasks.measure.controls:{name}" if name[0].isupper() else name
    for name in ("sinusoidal", "sinonly", "binary", "decimal", "Scattered", "Gray")
}


class Errors(NamedTuple):
    """Root mean square errors, divided by the root mean square of the vectors."""

    inside: float
    """On the positions that the map was fitted to."""
    beyond: float
    """On the same number of positions after them."""


def shift_errors(enc: Additive, length: int, shift: int) -> Errors:
    """Return the errors of the best linear map from each vector of an encoding to a later one.

    Args:
        length: the number of positions that the map is fitted to. shift: the k of the formula.
    """
    vectors = enc.rows(torch.arange(2 * length + shift), torch.float64)
    before, after = vectors[: 2 * length], vectors[shift:]
    # Of all maps that fit equally well, this is the one with the least norm.
    best = torch.linalg.lstsq(before[:length], after[:length], driver="gelsd").solution

    def error(rows: slice) -> float:
        missed = before[rows] @ best - after[rows]
        return float((missed.square().mean() / after[rows].square().mean()).sqrt())

    return Errors(error(slice(0, length)), error(slice(length, 2 * length)))


def measure_shifting() -> dict[str, Any]:
    """Return the record of `shift_errors`."""
    began, created = time.monotonic(), provenance.now()
    values = {}
    for name, spec in ADDED.items():
        enc = pe.encoding(spec, head_dim=SHIFT_WIDTH, num_heads=1, hidden_size=SHIFT_WIDTH)
        assert isinstance(enc, Additive)
        errors = shift_errors(enc, SHIFT_LENGTH, SHIFT)
        values[name] = {"shift-error@inside": errors.inside, "shift-error@beyond": errors.beyond}
    settings = {"hidden_size": SHIFT_WIDTH, "shift": SHIFT, "error_samples": SHIFT_LENGTH}
    return _record("shifting", created, began, settings, values)


def measure_inversion() -> dict[str, Any]:
    """Return the record of `pe.tasks.measure.inversion`."""
    began, created = time.monotonic(), provenance.now()
    values: dict[str, dict[str, float]] = {}
    for name, (encoding, options) in ENCODINGS.items():
        enc = pe.encoding(encoding, head_dim=HEAD_DIM, num_heads=1, hidden_size=HEAD_DIM, **options)
        own = values[name] = {}
        for what, measure, lengths in (
            ("inversion", inversion.inversion, INVERSION_LENGTHS),
            ("aliasing", inversion.aliasing, ALIASING_LENGTHS),
        ):
            for length in lengths:
                shares = measure(enc, HEAD_DIM, length)
                own[f"position-{what}@{length}"] = shares.position
                own[f"token-{what}@{length}"] = shares.token
    settings = {
        "head_dim": HEAD_DIM, "alignment": inversion.ALIGNMENT, "seed": inversion.SEED,
        "inversion_samples": inversion.INVERSION_SAMPLES,
        "aliasing_samples": inversion.ALIASING_SAMPLES, "tolerance": inversion.TOLERANCE,
    }  # fmt: skip
    return _record("inversion", created, began, settings, values)


def _record(
    name: str,
    created: str,
    began: float,
    settings: dict[str, Any],
    values: dict[str, dict[str, float]],
) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "run": name,
        "created": created,
        "finished": provenance.now(),
        "command": f"python -m pe.tasks.measure.numerics {name}",
        "code": provenance.code(),
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "settings": settings,
        "values": values,
        "seconds": round(time.monotonic() - began, 2),
    }


MEASURES = {"inversion": measure_inversion, "shifting": measure_shifting}


def main(name: str) -> None:
    """Measure and write runs/numerics/NAME/numerics.json."""
    if name not in MEASURES:
        raise unknown("numbers", name, MEASURES)
    folder = Folder(root() / "numerics" / name)
    folder.directory.mkdir(parents=True, exist_ok=True)
    folder.write_part("numerics", MEASURES[name]())
    print(folder.directory / "numerics.json")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m pe.tasks.measure.numerics {'|'.join(MEASURES)}")
    main(sys.argv[1])
