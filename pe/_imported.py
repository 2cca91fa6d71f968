"""Classes of a user's own, named as ``module:Class``."""

from __future__ import annotations

import pkgutil
from typing import Any


def imported(kind: str, name: str) -> Any:
    """Return the object that ``module:Class`` names.

    Args:
        kind: what the object should be, such as ``encoding``, for messages.

    Raises:
        ValueError: ``name`` does not have this form, or the object cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if not all(word.isidentifier() for word in [*module.split("."), attribute]):
        raise ValueError(
            f"{kind} {name!r}: expected 'module:Class', a class in a module that Python can import"
        )
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        hint = f"; write '{module[:-3]}:{attribute}'" if module.endswith(".py") else ""
        raise ValueError(f"{kind} {name!r} cannot be imported: {error}{hint}") from error
