"""Triton's interpreter, without what it does over and over: which halves the time of its tests."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import pytest


def install(patch: pytest.MonkeyPatch) -> None:
    """Patch Triton's language once per kernel, and look up a type's NumPy type once.

    The interpreter replaces the functions of ``triton.language`` where a kernel begins, puts the
    old ones back at its end, and in between does the same in every call of a device function. Those
    see the same modules, so the first of these calls is enough. Whether a sum of integers overflows
    is computed for an assertion that is on in debugging alone, so it is not computed here.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    replace, run, done = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()

    @functools.cache
    def modules(function: Any) -> frozenset[str]:
        """The language as a function sees it: the module, or its core in Triton's own functions."""
        values = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        return frozenset(value.__name__ for value in values if value in (tl, tl.core))

    def once(function: Any) -> Any:
        if modules(function) in done:
            return None  # what a device function does not look at
        done.add(modules(function))
        return replace(function)

    def of_kernel(self: Any, *arguments: Any, **options: Any) -> Any:
        done.clear()
        return run(self, *arguments, **options)

    look_up = interpreter._get_np_dtype
    of_scalar = functools.cache(look_up)

    def type_in_numpy(kind: Any) -> Any:
        scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return look_up(scalar) if isinstance(scalar, tl.pointer_type) else of_scalar(scalar)

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    unchecked = dataclasses.replace(builder.options, sanitize_overflow=False)
    patch.setattr(builder, "options", unchecked)
    patch.setattr(interpreter, "_patch_lang", once)
    patch.setattr(interpreter.GridExecutor, "__call__", of_kernel)
    patch.setattr(interpreter, "_get_np_dtype", type_in_numpy)
