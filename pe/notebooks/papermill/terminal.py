"""One line of progress in papermill's terminal, in place of papermill's bar of cells."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO


class ProgressLine:
    """The position in the notebook, and what the running cell reports.

    On a terminal the line is redrawn in place; in a pipe or a log a line is written at most every
    ``every`` seconds, and the last report of a cell always.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        every: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        quiet: bool = False,
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.every, self.clock, self.quiet = every, clock, quiet
        self.tty = self.stream.isatty()
        self.position = ""  # "[5/12] Training"
        self.heading = ""
        self.reported = ""  # the running cell's last report
        self.pending = False  # that report has not been written yet
        self.last_written = -float("inf")

    def cell(self, number: int, total: int, heading: str) -> None:
        """Another cell begins: the ``number``-th of ``total``, below ``heading``."""
        self.end_cell()
        self.position = f"[{number}/{total}] {heading}".rstrip()
        if self.tty:
            self._draw(self.position)
        elif heading != self.heading:
            self._write(self.position + "\n")
        self.heading = heading

    def update(self, text: str) -> None:
        """The running cell reports; of several lines the last one, which sums up, is shown."""
        self.reported = (text.strip().splitlines() or [""])[-1]
        now = self.clock()
        if self.tty:
            self._draw(f"{self.position}  {self.reported}")
        elif now - self.last_written >= self.every:
            self._write(self.reported + "\n")
            self.last_written, self.pending = now, False
        else:
            self.pending = True

    def end_cell(self) -> None:
        """The cell is over: its last report stays, an empty line is cleared."""
        if self.tty:
            self._write("\n" if self.reported else "\r\x1b[2K" if self.position else "")
        elif self.pending:
            self._write(self.reported + "\n")
        self.position, self.reported, self.pending = "", "", False
        self.last_written = -float("inf")

    def note(self, text: str) -> None:
        """A line that stays, also where progress is not wanted."""
        self._send(("\n" if self.tty and self.position else "") + text + "\n")

    def _draw(self, text: str) -> None:
        width = max(shutil.get_terminal_size().columns - 1, 20)
        self._write("\r\x1b[2K" + (text if len(text) <= width else text[: width - 1] + "…"))

    def _write(self, text: str) -> None:
        if not self.quiet and text:
            self._send(text)

    def _send(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal must not stop a training run
            self.stream.write(text)
            self.stream.flush()
