"""The laws, one file per subject. Importing this package defines all, in the report's order."""

import importlib

FILES = ("structure", "positions", "decoding", "hidden", "numerics", "training")

for _name in FILES:
    importlib.import_module(f"{__name__}.{_name}")
