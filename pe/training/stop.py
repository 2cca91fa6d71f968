"""A signal to stop, taken when a step is done."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor


class StopSignal:
    """Context manager that turns the first SIGTERM or SIGINT into a flag; a second acts as usual.

    Training looks at the flag after each step, and saves a checkpoint before it ends.
    """

    def __init__(self) -> None:
        self.name = ""
        self._asked: Tensor | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        signal.signal(number, self._before[number])

    def requested(self, accelerator: Accelerator) -> bool:
        """Whether any process was asked to stop; all processes get the same answer.

        With several processes the answer is that of the call before: its sum is there by now, so
        nobody waits for the device.
        """
        if accelerator.num_processes == 1:
            return bool(self.name)
        before = self._asked
        flag = torch.full((), float(bool(self.name)), device=accelerator.device)
        self._asked = accelerator.reduce(flag, "sum")
        return before is not None and bool(before.item() > 0)
