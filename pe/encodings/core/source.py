"""What decides an encoding's result in source code, so that a record can tell what has changed.

Followed are the definitions that the encoding's classes use, directly or through others, in
pe.encodings and, for an encoding of your own, in its package and in the files beside it. Of each
the syntax counts without what decides nothing: formatting, comments, docstrings, annotations,
texts of errors, and what `register` is told.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import types
from collections.abc import Iterator
from pathlib import Path

from pe.encodings.core.base import Encoding
from pe.encodings.core.composite import Composite
from pe.encodings.core.registry import part_classes

HOME = "pe.encodings"


def source_hashes(spec: str) -> dict[str, str]:
    """By module, SHA-256 (16 digits) of all in it that decides the result of ``spec``.

    A class without a file, such as one that was typed into a notebook, has no hash.

    Raises:
        ValueError: ``spec`` cannot be looked up.
    """
    classes: list[type] = list(part_classes(spec).values())
    if sum(issubclass(part, Encoding) for part in classes) > 1:
        classes.append(Composite)
    loaded = [
        value.__code__
        for part in classes
        for value in vars(part).values()
        if isinstance(value, types.FunctionType)
    ]
    return dict(_hashes(tuple(classes), tuple(loaded)))


@functools.cache
def _hashes(classes: tuple[type, ...], loaded: tuple[types.CodeType, ...]) -> dict[str, str]:
    """`source_hashes`, read once: a file that is edited later is not what this process has loaded.

    Classes that are loaded once more have other code, and their files are read once more.
    """
    reader = _Reader([part.__module__ for part in classes])
    for part in classes:
        reader.visit(part.__module__, part.__qualname__.partition(".")[0])
    return {
        module: hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:16]
        for module, texts in sorted(reader.texts.items())
    }


class _File:
    """The top level of a module: which statement binds a name, and where imported names are."""

    def __init__(self, module: str, path: Path) -> None:
        tree = _Bare().visit(ast.parse(path.read_text(encoding="utf-8")))
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        self.bound: dict[str, list[ast.stmt]] = {}
        self.other: list[ast.stmt] = []
        """Statements that bind no name and may do anything, such as a change of a table."""
        self.imports: dict[str, tuple[str, str]] = {}
        """Module and name in it by local name; the name is "" where the module is meant."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                home = "." * node.level + (node.module or "")
                home = importlib.util.resolve_name(home, package) if node.level else home
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (home, alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imports[alias.asname or whole] = (whole, "")
        for statement in tree.body:
            self._place(statement)

    def _place(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            return
        names = {statement.name} if isinstance(statement, _DEFINITIONS) else _stored(statement)
        for name in names:
            self.bound.setdefault(name, []).append(statement)
        if not names:
            self.other.append(statement)


@functools.cache
def _parsed(module: str, path: Path, changed: int) -> _File:
    """The file as it was at that time, in nanoseconds."""
    return _File(module, path)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _stored(statement: ast.stmt) -> set[str]:
    nodes = list(ast.walk(statement))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {n.name for n in nodes if isinstance(n, _DEFINITIONS)}


class _Reader:
    """Collects the definitions that a definition uses."""

    def __init__(self, modules: list[str]) -> None:
        own = [module for module in modules if not _inside(module, HOME)]
        self.packages = {HOME, *(module.partition(".")[0] for module in own)}
        self.folders = {path.parent for module in own if (path := _path(module)) is not None}
        self.files: dict[str, _File | None] = {}
        self.texts: dict[str, set[str]] = {}
        self._seen: set[tuple[str, str]] = set()

    def visit(self, module: str, name: str) -> None:
        """Collect what ``name`` is in ``module``, and all that it uses."""
        if (module, name) in self._seen:
            return
        self._seen.add((module, name))
        file = self._file(module)
        if file is None:
            return
        if name in file.bound:
            for statement in [*file.bound[name], *file.other]:
                self._collect(module, file, statement)
        elif name in file.imports:
            self.visit(*file.imports[name])

    def _collect(self, module: str, file: _File, statement: ast.stmt) -> None:
        self.texts.setdefault(module, set()).add(ast.unparse(statement))
        for used in _names(statement):
            first, *rest = used.split(".")
            if first in file.bound:
                self.visit(module, first)
            elif first in file.imports:
                self._follow(*file.imports[first], rest)

    def _follow(self, module: str, name: str, rest: list[str]) -> None:
        """Go on where an imported name leads: to a definition, or through modules to one."""
        names = [name, *rest] if name else rest
        while names and self._file(f"{module}.{names[0]}") is not None:
            module = f"{module}.{names.pop(0)}"
        if names:
            self.visit(module, names[0])

    def _file(self, module: str) -> _File | None:
        """The module's source, if it is one of those that are followed."""
        if module not in self.files:
            path = _path(module) if self._followed(module) else None
            changed = path.stat().st_mtime_ns if path else 0
            self.files[module] = _parsed(module, path, changed) if path else None
        return self.files[module]

    def _followed(self, module: str) -> bool:
        if any(_inside(module, package) for package in self.packages):
            return True
        beside = _path(module) if "." not in module else None
        return beside is not None and beside.parent in self.folders


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _path(module: str) -> Path | None:
    """The source file of a module; None where there is none, as in a notebook."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a name inside a module, or a module without a file
        return None
    origin = found.origin if found is not None and found.has_location else None
    return Path(origin) if origin is not None and origin.endswith(".py") else None


class _Bare(ast.NodeTransformer):
    """Drops what does not decide a result."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        docstring = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if docstring else self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(...)
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = [d for d in node.decorator_list if "register" not in _names(d)]
        return self.generic_visit(node)


def _names(node: ast.AST) -> Iterator[str]:
    """Every name that is used, with its attributes where it has some: ``torch.nn.Parameter``."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Load):
            text = ast.unparse(inner)
            if text.replace(".", "").replace("_", "").isalnum():
                yield text
