"""The book's explanatory pictures: each is computed, none is drawn from memory.

One file per page or per family. A picture has two functions. One returns numbers, computed by
`pe.encodings` wherever the encoding exists there, and tests compare these numbers with what the
pages say. The other draws them, and `pictures.common.picture` gives it the name that the
`{picture}` directive uses.

Shapes: T positions, d head dimension, P = d/2 pairs of a rotation.
"""

import importlib
import pkgutil

from pictures.common import PICTURES as PICTURES

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"pictures.{_module.name}")
