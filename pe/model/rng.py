"""Seed torch's generator so that what a step or a measurement draws can be repeated.

Encodings with random positions (`Encoding.random`) and dropout draw from torch's global generator.
A training step seeds it by (seed, step, process), so a resumed run draws the same numbers without
having stored the generator. A measurement uses one fixed seed for each call of the model and
restores the generator afterwards. So measuring twice gives the same result, and how often a run is
validated does not change what it learns.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import torch

from pe._seed import seed_torch


def seed_of(*parts: object) -> int:
    """Return a seed from 0 to 2^63 - 1 that is a function of ``parts`` alone."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seed_step(seed: int, step: int, process: int) -> None:
    """Seed torch for one training step of one process."""
    seed_torch(seed_of(seed, step, process))


@contextlib.contextmanager
def same_draws(device: torch.device) -> Iterator[None]:
    """Draw from a fixed seed in this block, and then restore the state of torch's generators."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_torch(0)
        yield
