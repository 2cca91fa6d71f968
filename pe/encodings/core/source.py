"""Hashes of the source code that determines an encoding's result, so that records detect changes.

The hashes cover the definitions that the encoding's classes use, directly or through others. They
are those in pe.encodings and, for an encoding outside of it, in its package and the files beside
it. Formatting, comments, docstrings, annotations, texts of errors and the arguments of `register`
do not count.
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
    """Return by module the SHA-256 (16 digits) of the code that determines ``spec``'s result.

    A class without a file, such as one defined in a notebook, has no hash.

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
    """Compute `source_hashes` once, because a file may be edited after it was loaded.

    A class that is loaded again has other code objects, so its files are read again.
    """
    reader = _Reader({part.__module__ for part in parts})
    for part in parts:
        for base in part.__mro__:
            reader.visit(base.__module__, base.__name__)
    return {
        module: hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:16]
        for module, texts in sorted(reader.texts.items())
    }


class _Statement:
    """A statement at the top level of a module; its text and names are made when first used."""

    def __init__(self, node: ast.stmt) -> None:
        self.node = node

    @functools.cached_property
    def text(self) -> str:
        """The statement as Python would write it."""
        return ast.unparse(self.node)

    @functools.cached_property
    def used(self) -> set[str]:
        """The names that it reads."""
        return _names(self.node, ast.Load)


class _File:
    """The top level of a module: statements that bind names, and the origins of imported names.

    Encodings share most of their files, so each text is parsed once (`_of_text`).
    """

    def __init__(self, package: str, text: str) -> None:
        self.bound: dict[str, list[_Statement]] = {}
        """Statements by name. Those under "" bind no name but may, for example, fill a table."""
        self.imports: dict[str, tuple[str, str]] = {}
        """By imported name, the module and the name in it; "" is the module itself."""
        tree = _Bare().visit(ast.parse(text))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                home = node.module or ""
                home = resolve_name("." * node.level + home, package) if node.level else home
                self.imports |= {a.asname or a.name: (home, a.name) for a in node.names}
            elif isinstance(node, ast.Import):
                self.imports |= {a.asname or a.name: (a.name, "") for a in node.names}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.bound.setdefault(node.name, []).append(_Statement(node))
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                statement = _Statement(node)
                for name in _names(node, ast.Store) or {""}:
                    self.bound.setdefault(name, []).append(statement)


@functools.cache
def _of_text(package: str, text: str) -> _File:
    return _File(package, text)


def _parsed(module: str, path: Path) -> _File:
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    return _of_text(package, path.read_text(encoding="utf-8"))


class _Reader:
    """Collects by module the definitions that a definition uses."""

    def __init__(self, modules: set[str]) -> None:
        own = {module for module in modules if not _inside(module, HOME)}
        self.packages = {HOME, *(module.partition(".")[0] for module in own)}
        self.folders = {path.parent for path in map(_path, own) if path}
        self.texts: dict[str, set[str]] = {}
        self._files: dict[str, _File | None] = {}
        self._seen: set[tuple[str, str]] = set()

    def visit(self, module: str, name: str) -> None:
        """Collect ``name`` of ``module`` and all that it uses; "" is the whole module."""
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
                self.texts.setdefault(module, set()).add(statement.text)
                for used in statement.used:
                    self.visit(module, used)

    def _file(self, module: str) -> _File | None:
        """Return the module's source, or None if it is not covered."""
        if module not in self._files:
            inside = any(_inside(module, package) for package in self.packages)
            path = _path(module) if inside or "." not in module else None
            followed = path and (inside or path.parent in self.folders)
            self._files[module] = _parsed(module, path) if path and followed else None
        return self._files[module]


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _path(module: str) -> Path | None:
    """Return the source file of a module; None if there is none, as in a notebook."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # a name inside a module, or no file
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _names(node: ast.AST, use: type[ast.expr_context]) -> set[str]:
    names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, use)}


class _Bare(ast.NodeTransformer):
    """Drops the syntax that does not determine a result."""

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
        kept = [d for d in node.decorator_list if "register" not in _names(d, ast.Load)]
        node.decorator_list = kept
        return self.generic_visit(node)
