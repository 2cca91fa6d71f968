"""The entry point that papermill loads: records and progress for this project's notebooks.

papermill imports this module while it is being imported itself, in every process of an environment
that holds pe, and looks up `PeEngine`. That look-up makes the engine papermill's default and, if
the process is the papermill command on one of our notebooks, completes its command line
(`pe.notebooks.papermill.command_line`). Importing this module does nothing, so the order of
imports does not matter. Notebooks without our mark are executed by papermill's own engine,
unchanged.
"""

from __future__ import annotations

import sys
from typing import Any


class _Engine:
    """The interface papermill expects of an engine. papermill is imported only when used."""

    @classmethod
    def execute_notebook(cls, nb: Any, kernel_name: str, **options: Any) -> Any:
        """Execute ``nb``; one of ours is recorded in its run's folder."""
        from papermill.engines import NBClientEngine

        from pe.notebooks.papermill import document

        if document.kind(nb) is None:
            return NBClientEngine.execute_notebook(nb, kernel_name, **options)
        from pe.notebooks.papermill.engine import execute

        return execute(nb, kernel_name, **options)

    @classmethod
    def nb_kernel_name(cls, nb: Any, name: str | None = None) -> str:
        """Name of the kernel, as papermill finds it."""
        from papermill.utils import nb_kernel_name

        return str(nb_kernel_name(nb, name))

    @classmethod
    def nb_language(cls, nb: Any, language: str | None = None) -> str:
        """Language of the notebook, as papermill finds it."""
        from papermill.utils import nb_language

        return str(nb_language(nb, language))


_prepared = False


def _attach() -> None:
    """Become papermill's default engine and, once, complete the command line of this process."""
    global _prepared
    engines = sys.modules.get("papermill.engines")
    registry = getattr(engines, "papermill_engines", None)
    if registry is None:
        return  # looked up by somebody else; papermill will look it up again
    registry.register(None, _Engine)
    if not _prepared:
        _prepared = True
        from papermill.iorw import papermill_io

        from pe.notebooks.papermill import command_line

        papermill_io.register(command_line.OUTPUT, command_line.output)
        if command_line.is_papermill(sys.argv, sys.orig_argv):
            command_line.prepare(sys.argv)


def __getattr__(name: str) -> Any:
    if name != "PeEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        _attach()
    except Exception as error:  # whatever happens here must not break papermill for others
        print(f"pe: papermill runs without records: {error!r}", file=sys.stderr)
    return _Engine
