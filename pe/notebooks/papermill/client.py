"""Run the cells: papermill's client with progress, an orderly stop, and dead kernels explained."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from jupyter_core.utils import ensure_event_loop
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from traitlets.config import Config

from pe.notebooks.papermill import document
from pe.notebooks.papermill.terminal import ProgressLine

GRACE_SECONDS = 60.0
"""How long a cell may take to save and end once it has been interrupted ($PE_GRACE_SECONDS)."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Client(PapermillNotebookClient):
    """Executes one notebook; ``stop`` knows whether a signal ended it."""

    def __init__(self, manager: Any, line: ProgressLine, **options: Any) -> None:
        config = Config()
        if "transport_encryption" in KernelManager.class_trait_names():
            # Kernels that can encrypt do; without it ipykernel 7 warns at every start.
            config.KernelManager.transport_encryption = "auto"
        super().__init__(manager, config=config, **options)
        self.line = line
        self.stop = Stop(self)
        self.running = False
        self.dead = False

    def execute_cell(self, cell: Any, cell_index: int, **options: Any) -> Any:
        """Execute a cell, unless a signal has asked for the end."""
        if cell.cell_type != "code":
            return super().execute_cell(cell, cell_index, **options)
        if self.stop.signal_name:
            raise self._error(cell, "KeyboardInterrupt", f"stopped by {self.stop.signal_name}")
        self.line.cell(cell_index + 1, len(self.nb.cells), document.heading(self.nb, cell_index))
        self.running = True
        try:
            return super().execute_cell(cell, cell_index, **options)
        except DeadKernelError:
            self.dead = True
            why = "the kernel died while it ran this cell; the machine may be out of memory"
            if self.stop.killed:
                why = f"stopped by {self.stop.signal_name}; the cell did not end in time"
            raise self._error(cell, "DeadKernelError", why) from None
        finally:
            self.running = False
            self.line.end_cell()

    def process_message(self, msg: Any, *arguments: Any, **options: Any) -> Any:
        """Show progress reports on their way into the notebook."""
        content = msg["content"]
        if msg["msg_type"] in ("display_data", "update_display_data") and (
            content.get("metadata") or {}
        ).get("pe_progress"):
            self.line.update(content["data"].get("text/plain", ""))
        return super().process_message(msg, *arguments, **options)

    def _error(self, cell: Any, name: str, value: str) -> CellExecutionError:
        """A cell's failure that the kernel itself could not report, kept in its outputs."""
        text = f"{name}: {value}"
        cell.outputs.append(
            nbformat.v4.new_output("error", ename=name, evalue=value, traceback=[text])
        )
        return CellExecutionError(text, name, value)


class Stop:
    """Ctrl-C, SIGTERM or a closed terminal while cells run.

    The first interrupts the running cell, so that training saves a checkpoint and ends; the kernel
    is killed if it has not ended after `GRACE_SECONDS`, or at a second signal.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.number = 0
        self.killed = False
        self._previous: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    @property
    def signal_name(self) -> str:
        """``"SIGTERM"``, or ``""`` when no signal has come."""
        return signal.Signals(self.number).name if self.number else ""

    def __enter__(self) -> Stop:
        """Take over the signals, unless this process belongs to somebody else's event loop."""
        if threading.current_thread() is threading.main_thread() and not _in_event_loop():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks
                    self._previous[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        if self._timer:
            self._timer.cancel()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.signal_name:
            self._kill()
            return
        self.number = number
        grace = float(os.environ.get("PE_GRACE_SECONDS", GRACE_SECONDS))
        self.client.line.note(
            f"{self.signal_name}: ending the cell, which has {grace:g} s to save; "
            "again to end at once"
        )
        if self.client.running:
            # The handler runs in the thread of the event loop, between two of its steps.
            loop = ensure_event_loop()
            self._timer = threading.Timer(grace, self._kill, [loop])
            self._timer.daemon = True
            self._timer.start()
            self._soon(loop, self.client.km.interrupt_kernel)

    def _kill(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        if self.client.running:
            self.killed = True
            loop = loop or ensure_event_loop()
            self._soon(loop, lambda: self.client.km.shutdown_kernel(now=True))

    @staticmethod
    def _soon(loop: asyncio.AbstractEventLoop, action: Callable[[], Any]) -> None:
        loop.call_soon_threadsafe(lambda: asyncio.ensure_future(action()))


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
