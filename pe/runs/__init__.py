"""The record of a run: the only way results reach the tables, the figures and the book.

    runs/<study>/<run>/run.json          what was run and what came of it
                       metrics.jsonl     one object per logged step
                       evaluation.json   quality by context length

The fields are in `pe.runs.models`. Records are validated when they are written and when they are
read, written atomically, and never skipped when damaged: whoever reads a folder is told the path of
each file that is not right. Imports no torch, so that the book builds without it.
"""

from pe.runs.folder import SCHEMA_VERSION, Folder, RunBusy, RunError, root, writing
from pe.runs.record import Run, checked
from pe.runs.table import find, load
