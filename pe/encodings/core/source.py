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
import types
from importlib.util import find_spec, resolve_name
from pathlib import Path

from pe.encodings.core.base import Encoding
from pe.encodings.core.build import sum_class
from pe.encodings.core.parts import part_classes
from pe.encodings.core.presets import PRESETS

HOME = "pe.encodings"
PRESETS_HOME = "pe.encodings.core.presets"


def source_hashes(spec: str) -> dict[str, str]:
    """By module, SHA-256 (16 digits) of all in it that decides the result of ``spec``.

    A class without a file, such as one that was typed into a notebook, has no hash.

    Raises:
        ValueError: ``spec`` cannot be looked up.
    """
    parts: list[type] = list(part_classes(spec).values())
    if sum(issubclass(part, Encoding) for part in parts) > 1:
        parts.append(sum_class(parts))
    loaded = [f.__code__ for part in parts for f in vars(part).values() if hasattr(f, "__code__")]
    hashes = dict(_hashes(tuple(parts), tuple(loaded)))
    preset = PRESETS.get(spec.strip())
    if preset is not None:
        hashes[PRESETS_HOME] = hashlib.sha256(preset.spec.encode()).hexdigest()[:16]
    return hashes


@functools.cache
def _hashes(parts: tuple[type, ...], loaded: tuple[types.CodeType, ...]) -> dict[str, str]:
    """`source_hashes`, read once: a file that is edited later is not what this process has loaded.

    Classes that are loaded once more have other code, and their files are read once more.
    """
    reader = _Reader({part.__module__ for part in parts})
    for part in parts:
        for base in part.__mro__:
            reader.visit(base.__module__, base.__name__)
    return {
        module: hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:16]
        for module, texts in sorted(reader.texts.items())
    }


class _File:
    """The top level of a module: the statements that bind a name, and where imported names are."""

    def __init__(self, module: str, path: Path) -> None:
        self.bound: dict[str, list[ast.stmt]] = {}
        """By name; under "" those that bind none and may do anything, such as fill a table."""
        self.imports: dict[str, tuple[str, str]] = {}
        """Module and name in it; the name is "" where the module is meant."""
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        tree = _Bare().visit(ast.parse(path.read_text(encoding="utf-8")))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                home = node.module or ""
                home = resolve_name("." * node.level + home, package) if node.level else home
                self.imports |= {a.asname or a.name: (home, a.name) for a in node.names}
            elif isinstance(node, ast.Import):
                self.imports |= {a.asname or a.name: (a.name, "") for a in node.names}
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.bound.setdefault(statement.name, []).append(statement)
            elif not isinstance(statement, ast.Import | ast.ImportFrom):
                for name in _names(statement, ast.Store) or {""}:
                    self.bound.setdefault(name, []).append(statement)


class _Reader:
    """Collects the definitions that a definition uses, by module."""

    def __init__(self, modules: set[str]) -> None:
        own = {module for module in modules if not _inside(module, HOME)}
        self.packages = {HOME, *(module.partition(".")[0] for module in own)}
        self.folders = {path.parent for path in map(_path, own) if path}
        self.texts: dict[str, set[str]] = {}
        self._files: dict[str, _File | None] = {}
        self._seen: set[tuple[str, str]] = set()

    def visit(self, module: str, name: str) -> None:
        """Collect what ``name`` is in ``module``, and all that it uses; "" is the whole module."""
        file = self._file(module)
        if file is None or (module, name) in self._seen:
            return
        self._seen.add((module, name))
        if name in file.imports and name not in file.bound:
            home, original = file.imports[name]
            inner = f"{home}.{original}"
            self.visit(*((inner, "") if self._file(inner) else (home, original)))
        statements = [s for key in file.bound for s in file.bound[key] if key == name or not name]
        if statements:
            for statement in [*statements, *file.bound.get("", [])]:
                self.texts.setdefault(module, set()).add(ast.unparse(statement))
                for used in _names(statement, ast.Load):
                    self.visit(module, used)

    def _file(self, module: str) -> _File | None:
        """The module's source, if it is one of those that are followed."""
        if module not in self._files:
            inside = any(_inside(module, package) for package in self.packages)
            path = _path(module) if inside or "." not in module else None
            followed = path and (inside or path.parent in self.folders)
            self._files[module] = _File(module, path) if path and followed else None
        return self._files[module]


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _path(module: str) -> Path | None:
    """The source file of a module; None where there is none, as in a notebook."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # a name inside a module, or a module without a file
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _names(node: ast.AST, use: type[ast.expr_context]) -> set[str]:
    names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, use)}


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
        told = [d for d in node.decorator_list if "register" in _names(d, ast.Load)]
        node.decorator_list = [d for d in node.decorator_list if d not in told]
        return self.generic_visit(node)
