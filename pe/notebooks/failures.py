"""A notebook's cell shows a failure in one line if its message explains it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from pe._errors import Explained, with_notes

EXPLAINED = (ValueError, OSError, Explained)
"""Wrong input, files that cannot be read or written, and a training that ended early.

Any other exception is a defect, and is shown with its traceback.
"""


def in_one_line() -> None:
    """Let this kernel show what is `EXPLAINED` without a traceback, from here on.

    Notes of the exception, which name the file of its traceback, follow its message; ``%tb`` shows
    the traceback of the last failure. Does nothing outside IPython.
    """
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.set_custom_exc(EXPLAINED, _show)


def _show(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    """A handler of IPython's `set_custom_exc`; the class's renderer is IPython's own protocol."""
    where = "" if getattr(error, "__notes__", ()) else " (%tb shows the traceback)"
    line = f"{kind.__name__}: {with_notes(error)}{where}"
    error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
    try:
        shell.showtraceback((kind, error, trace))
    finally:
        del error._render_traceback_  # type: ignore[attr-defined]
