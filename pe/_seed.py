"""Seed torch as `torch.manual_seed` does, ten times faster where there is no accelerator."""

from __future__ import annotations

import torch


def seed_torch(seed: int) -> None:
    """Seed the generators of the CPU and of the accelerator, if there is one.

    `torch.manual_seed` queues a call for each kind of accelerator that is absent, and formats the
    call stack for it. That took a seventh of the time in which the laws are checked.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
