"""The entry point that papermill loads: records and progress for this project's notebooks.

papermill looks up `PeEngine` while it is being imported, in every process of an environment that
holds pe. That look-up makes the engine papermill's default and, if the process is the papermill
command on one of our notebooks, completes its command line (`pe.notebooks.papermill.command_line`).
Notebooks without our mark are executed by papermill's own engine, unchanged.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any


@functools.cache
def _engine() -> type:
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.iorw import papermill_io

    from pe.notebooks.papermill import command_line, document

    class PeEngine(NBClientEngine):
        """papermill's engine, which records one of ours in its run's folder."""

        @classmethod
        def execute_notebook(cls, nb: Any, kernel_name: str, **options: Any) -> Any:
            """Execute ``nb``."""
            if document.kind(nb) is None:
                return NBClientEngine.execute_notebook(nb, kernel_name, **options)
            from pe.notebooks.papermill.engine import execute

            return execute(nb, kernel_name, **options)

    papermill_engines.register(None, PeEngine)
    papermill_io.register(command_line.OUTPUT, command_line.output)
    try:
        if command_line.is_papermill(sys.argv, sys.orig_argv):
            command_line.prepare(sys.argv)
    except Exception as error:  # whatever happens here must not break papermill for others
        print(f"pe: papermill runs without records: {error!r}", file=sys.stderr)
    return PeEngine


def __getattr__(name: str) -> Any:
    if name != "PeEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("papermill.engines")  # loads its entry points: the look-up that counts
    return _engine()
