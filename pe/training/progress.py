"""Show progress in a terminal, a notebook or a log file.

In a Jupyter kernel one display is updated in place, so that an executed notebook keeps only the
last line. `pe.notebooks.papermill.client` shows these updates in papermill's terminal. Elsewhere
each line goes to standard error, or to the parent process (`pe.training.processes`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any


def duration(seconds: float) -> str:
    """Write ``52 s``, ``3 min 05 s``, ``2 h 10 min``."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class Progress:
    """One line of text that changes.

    Args:
        enabled: show anything at all.
        every_seconds: the shortest time between two lines; lines in between are skipped. In a
            Jupyter kernel it is half a second.
        write: called in place of showing a line, with the line and whether it must not be lost.
    """

    def __init__(
        self,
        enabled: bool = True,
        every_seconds: float = 5.0,
        write: Callable[[str, bool], None] | None = None,
    ) -> None:
        self.enabled, self.every, self.write = enabled, every_seconds, write
        self._last = float("-inf")
        self._handle: Any = None
        self.in_kernel = _in_kernel()

    def show(self, text: str | Callable[[], str], last: bool = False) -> None:
        """Replace the line, unless the previous one was shown a moment ago.

        Args:
            text: the line, or a function that returns it, which is called only to show it.
            last: show it in any case.
        """
        if not self.enabled:
            return
        moment = time.monotonic()
        pause = 0.5 if self.in_kernel else self.every
        if not last and moment - self._last < pause:
            return
        self._last = moment
        text = text if isinstance(text, str) else text()
        if self.write is not None:
            self.write(text, last)
        elif self.in_kernel:
            self._update(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def _update(self, text: str) -> None:
        from IPython.display import display

        bundle, metadata = {"text/plain": text}, {"pe_progress": True}
        if self._handle is None:
            self._handle = display(bundle, metadata=metadata, raw=True, display_id=True)
        else:
            self._handle.update(bundle, metadata=metadata, raw=True)


def _in_kernel() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
