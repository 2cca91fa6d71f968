"""Triton's interpreter, without what it does over and over: its tests take a third of the time."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from typing import Any, NamedTuple

import pytest


class Shape(NamedTuple):
    """What a block's type and its tensors hold of a shape; nothing changes it in place."""

    of_type: Any
    """Integers."""
    of_tensor: Any
    """The same as constexpr."""
    numel: int
    numel_of_tensor: Any


def install(patch: pytest.MonkeyPatch) -> None:
    """Make the interpreter quick until ``patch`` is undone."""
    _install_lookups(patch)
    _install_shapes(patch)


def _install_shapes(patch: pytest.MonkeyPatch) -> None:
    """Build and validate each shape once.

    The interpreter does so for each result of each operation, which takes half of the time.
    """
    import triton.language as tl
    from triton.language import core, semantic

    validate, broadcast = core.validate_block_shape, semantic.TritonSemantic.broadcast_impl_value

    @functools.cache
    def known(sizes: tuple[int, ...]) -> Shape:
        if not sizes:
            raise TypeError("0d block_type is forbidden")
        of_tensor = core.tuple([core.constexpr(size) for size in sizes])
        numel = validate(sizes)
        return Shape(core.tuple(sizes), of_tensor, numel, core.constexpr(math.prod(sizes)))

    scalar = core.tuple([]), core.constexpr(1)

    def of_block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = (s.value if isinstance(s, core.constexpr) else s for s in shape)
        set_shape(self, element_ty, known(tuple(sizes)))

    def set_shape(block: Any, element_ty: Any, shape: Shape) -> None:
        block.element_ty, block.known = element_ty, shape
        block.shape, block.numel = shape.of_type, shape.numel

    def with_element(self: Any, scalar_ty: Any) -> Any:
        found = core.block_type.__new__(core.block_type)
        set_shape(found, scalar_ty, self.known)
        return found

    def of_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        if type.is_block():
            self.shape, self.numel = type.known.of_tensor, type.known.numel_of_tensor
        else:
            self.shape, self.numel = scalar

    def same_shape(self: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    name = property(lambda block: f"<{block.shape}, {block.element_ty}>")
    patch.setattr(core.block_type, "name", name, raising=False)
    patch.setattr(core.block_type, "__init__", of_block)
    patch.setattr(core.block_type, "with_element_ty", with_element)
    patch.setattr(core.block_type, "to_ir", lambda block, builder: block)
    patch.setattr(tl.tensor, "__init__", of_tensor)
    patch.setattr(semantic.TritonSemantic, "broadcast_impl_value", same_shape)


def _install_lookups(patch: pytest.MonkeyPatch) -> None:
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

    def member(obj: Any, name: str, function: Any, builder: Any, scope: Any) -> None:
        plain = getattr(function, "__wrapped__", function)  # without a look at its own arguments

        def call(*arguments: Any, **options: Any) -> Any:
            options["_semantic"] = interpreter.interpreter_semantic
            return plain(*arguments, **options)

        scope.set_attr(obj, name, call)

    look_up = interpreter._get_np_dtype
    of_scalar = functools.cache(look_up)

    def type_in_numpy(kind: Any) -> Any:
        scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return look_up(scalar) if isinstance(scalar, tl.pointer_type) else of_scalar(scalar)

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    unchecked = dataclasses.replace(builder.options, sanitize_overflow=False)
    patch.setattr(builder, "options", unchecked)
    patch.setattr(interpreter, "_patch_attr", member)
    patch.setattr(interpreter, "_patch_lang", once)
    patch.setattr(interpreter.GridExecutor, "__call__", of_kernel)
    patch.setattr(interpreter, "_get_np_dtype", type_in_numpy)
