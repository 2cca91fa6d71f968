"""The laws, one idea a file; importing this package defines them all, in the report's order."""

from __future__ import annotations

import importlib

FILES = (
    "contract", "shift", "heads", "rows", "future", "decode", "cache", "padding", "hidden",
    "memory", "precision", "meta", "saving", "limit", "base", "gradients", "form", "backends",
    "composition",
)  # fmt: skip

for _name in FILES:
    importlib.import_module(f"{__name__}.{_name}")
