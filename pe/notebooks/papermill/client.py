"""Run the cells: papermill's client with progress, an orderly stop, and dead kernels explained."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from tqdm import tqdm
from traitlets.config import Config

from pe.runs.parameters import PLANNED

GRACE_SECONDS = 60.0
"""Seconds that an interrupted cell has to save a checkpoint and end ($PE_GRACE_SECONDS)."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Client(PapermillNotebookClient):
    """Executes one notebook; ``stopped_by`` is the signal that ended it, None if none did."""

    def __init__(self, manager: Any, quiet: bool, **options: Any) -> None:
        config = Config()
        if "transport_encryption" in KernelManager.class_trait_names():
            # Kernels that can encrypt do; without it ipykernel 7 warns at every start.
            config.KernelManager.transport_encryption = "auto"
        super().__init__(manager, config=config, **options)
        self.quiet = quiet
        self.bar: tqdm[Any] | None = None
        """The line of the running cell."""
        self.heading = ""
        self.stopped_by: signal.Signals | None = None
        self.killed = False
        self.ignored = False
        """Whether the cells ended well and never asked for the run that the command named."""

    def papermill_execute_cells(self) -> None:
        """Execute the cells, and check that they called the launcher, which removes `PLANNED`."""
        super().papermill_execute_cells()
        if self.nb_man.failure is None:
            left = {"left": f"{PLANNED!r} in __import__('os').environ"}
            reply = self.wait_for_reply(self.kc.execute("", silent=True, user_expressions=left))
            value = reply["content"]["user_expressions"]["left"]
            self.ignored = value["data"]["text/plain"] == "True"

    def execute_cell(self, cell: Any, cell_index: int, **options: Any) -> Any:
        """Execute a cell, unless a signal has asked for the end."""
        if cell.cell_type != "code":
            titles = [line for line in cell.source.splitlines() if line.startswith("#")]
            self.heading = titles[-1].lstrip("# ") if titles else self.heading
            return super().execute_cell(cell, cell_index, **options)
        if self.stopped_by:
            raise _error(cell, "KeyboardInterrupt", f"stopped by {self.stopped_by.name}")
        self.bar = tqdm(
            total=len(self.nb.cells), initial=cell_index + 1, desc=self.heading, miniters=0,
            bar_format="[{n_fmt}/{total_fmt}] {desc}", disable=self.quiet,
            ncols=shutil.get_terminal_size((200, 24)).columns - 1, nrows=24,
            mininterval=0.1 if sys.stderr.isatty() else 5.0,
        )  # fmt: skip
        try:
            return super().execute_cell(cell, cell_index, **options)
        except DeadKernelError:
            why = "the kernel died while it ran this cell; the machine may be out of memory"
            if self.killed and self.stopped_by:
                why = f"stopped by {self.stopped_by.name}; the cell did not end in time"
            raise _error(cell, "DeadKernelError", why) from None
        finally:
            bar, self.bar = self.bar, None
            with contextlib.suppress(OSError):  # a closed terminal must not stop a training run
                bar.close()

    def process_message(self, msg: Any, *arguments: Any, **options: Any) -> Any:
        """Show progress reports on their way into the notebook."""
        content = msg["content"]
        if self.bar is not None and (content.get("metadata") or {}).get("pe_progress"):
            # The last line of a report is its summary.
            report = content["data"].get("text/plain", "").strip().rpartition("\n")[2]
            with contextlib.suppress(OSError):
                self.bar.set_description_str(f"{self.heading}  {report}", refresh=False)
                self.bar.update(0)
        return super().process_message(msg, *arguments, **options)

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """Handle Ctrl-C, SIGTERM and a closed terminal while cells run.

        The first signal interrupts the running cell, so that training saves a checkpoint and ends;
        the kernel is killed if it has not ended after `GRACE_SECONDS`, or at a second signal.
        """
        grace = float(os.environ.get("PE_GRACE_SECONDS", GRACE_SECONDS))
        timer = threading.Timer(grace, self._kill)
        timer.daemon = True

        def received(number: int, frame: FrameType | None) -> None:
            if self.stopped_by:
                self._kill()
                return
            self.stopped_by = signal.Signals(number)
            note(
                f"{self.stopped_by.name}: ending the cell, which has {grace:g} s to save; "
                "again to end at once"
            )
            self._signal(signal.SIGINT)
            timer.start()

        previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks
                    previous[number] = signal.signal(number, received)
        try:
            yield
        finally:
            timer.cancel()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _kill(self) -> None:
        self.killed = self.bar is not None
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """Send a signal to the kernel and its processes, if it runs a cell."""
        if self.bar is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.km.provisioner.pid, number)


def _error(cell: Any, name: str, value: str) -> CellExecutionError:
    """Return a cell's failure that the kernel itself could not report, kept in its outputs."""
    text = f"{name}: {value}"
    cell.outputs.append(nbformat.v4.new_output("error", ename=name, evalue=value, traceback=[text]))
    return CellExecutionError(text, name, value)


def note(text: str) -> None:
    """Print a line to stderr above the progress line."""
    with contextlib.suppress(OSError):
        tqdm.write(text, file=sys.stderr)
