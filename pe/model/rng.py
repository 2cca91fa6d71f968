"""Random positions that are the same each time: what is drawn in a call depends on the call alone.

Encodings that draw (`Encoding.random`) take their numbers from torch's global generator. A training
step seeds it by (seed, step, process), so resuming needs no memory of it. What measures a model
seeds it the same way for each call of the model and puts it back: measuring twice, or in larger
batches, gives the same numbers, and how often a run is validated does not change what it learns.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import torch

from pe._seed import seed_torch


def seed_of(*parts: object) -> int:
    """A seed that depends on these and nothing else."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seed_step(seed: int, step: int, process: int) -> None:
    """Seed torch for one training step of one process."""
    seed_torch(seed_of(seed, step, process))


@contextlib.contextmanager
def same_draws(device: torch.device) -> Iterator[None]:
    """Inside, torch draws the same numbers each time; outside, nothing was drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_torch(0)
        yield
