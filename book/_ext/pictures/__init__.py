"""The book's explanatory pictures: each is computed, none is drawn from memory.

One file a page or a family. A picture is two functions: one returns numbers, from `pe.encodings`
wherever the encoding exists there, and tests hold those numbers to what the pages say; the other
draws them. A file's `PICTURES` maps the names that the `{picture}` directive uses to the drawing
functions.

Shapes: T positions, d head dimension, P = d/2 pairs of a rotation.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from matplotlib.figure import Figure

PICTURES: dict[str, Callable[[], Figure]] = {}
for _module in pkgutil.iter_modules(__path__):
    _found = getattr(importlib.import_module(f"pictures.{_module.name}"), "PICTURES", {})
    for _name in _found.keys() & PICTURES.keys():
        raise ValueError(f"two pictures are called {_name!r}")
    PICTURES |= _found
