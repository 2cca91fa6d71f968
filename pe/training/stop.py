"""Stop training between two steps when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor


class StopSignal:
    """A context manager that turns the first SIGTERM or SIGINT into a flag.

    Training reads the flag after each step, and saves a checkpoint before it ends. A second signal
    has its usual effect.
    """

    def __init__(self) -> None:
        self.name = ""
        """Name of the signal that this process received, or empty."""
        self._sum: Tensor | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        signal.signal(number, self._handlers[number])

    def requested(self, accelerator: Accelerator) -> bool:
        """Return whether any process was asked to stop; all processes get the same answer.

        With several processes the answer is one call late: it is the sum over processes that the
        call before began to compute. By now it is ready, so no process waits for the device.
        """
        if accelerator.num_processes == 1:
            return bool(self.name)
        previous = self._sum
        flag = torch.full((), float(bool(self.name)), device=accelerator.device)
        self._sum = accelerator.reduce(flag, "sum")
        return previous is not None and bool(previous.item() > 0)
