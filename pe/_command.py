"""What several commands share: how they end, and the options of commands that run studies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from pe._errors import Explained, with_notes

Mini = Annotated[bool, typer.Option("--mini", help="run it in miniature, for a CPU")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="check and list the runs, and say which are left to do")
]
Until = Annotated[
    float, typer.Option(help="seconds from now; a run that would end later does not begin")
]


@contextlib.contextmanager
def checked(command: str) -> Iterator[None]:
    """End a command with one line per mistake, and without a traceback.

    Exit status 1: the work has failed (`pe._errors.Explained`); 2: wrong input, and RunError;
    130: Ctrl-C.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of our output has ended, as in `pe explain ... | head`
        raise
    except (ValueError, OSError, Explained) as error:
        for line in with_notes(error).splitlines():
            print(f"{command}: {line}", file=sys.stderr)
        raise typer.Exit(1 if isinstance(error, Explained) else 2) from error
    except KeyboardInterrupt:
        print(f"{command}: stopped; the same command resumes", file=sys.stderr)
        raise typer.Exit(130) from None
