"""Seed torch as `torch.manual_seed` does, at a tenth of its price where there is no accelerator."""

from __future__ import annotations

import torch


def seed_torch(seed: int) -> None:
    """Seed the generators of the CPU and of the accelerator, if there is one.

    For each kind of accelerator that is not there, `torch.manual_seed` keeps the call for later and
    formats the stack, which took a seventh of the time of the laws.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
