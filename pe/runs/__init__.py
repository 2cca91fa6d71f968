"""The record of a run: the only way results reach the tables, the figures and the book.

    runs/<study>/<run>/run.json          recipe, code, machine and result of the training
                       metrics.jsonl     one object per logged step
                       evaluation.json   perplexity and retrieval by context length

The fields are in `pe.runs.models`. Records are written atomically, and validated when they are
written and when they are read. A damaged record is never skipped: reading a folder raises an error
that names each damaged file. This package imports no torch, so the book builds without it.
"""

from pe.runs.folder import SCHEMA_VERSION, Folder, RunBusy, RunError, root, writing
from pe.runs.record import Run, checked
from pe.runs.table import find, load
