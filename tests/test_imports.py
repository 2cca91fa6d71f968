"""What an import brings with it, and who imports whom.

``import pe`` costs nothing, torch comes when it is needed; no import points up.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pe

HEAVY = ("torch", "transformers", "pandas", "datasets", "accelerate", "matplotlib", "papermill")


NOT_BROUGHT: list[tuple[str, set[str]]] = [
    ("import pe; pe.__version__; dir(pe)", set(HEAVY)),
    ("import pe.__main__, pe.pytest_plugin", set(HEAVY)),
    ("import pe; pe.tasks.task('k_back').example(0, 0)", set(HEAVY)),
    ("import pe.runs", {"torch", "transformers", "pandas", "datasets"}),
    ("import pe; pe.runs.root()", {"torch", "transformers", "pandas", "datasets"}),
    ("import pe.recipes.recipe, pe.recipes.named", {"torch", "transformers", "pandas"}),
    ("import pe; pe.recipe('demo').config_hash()", {"torch", "transformers", "pandas"}),
    ("import pe.notebooks.papermill.entry", {"torch", "transformers", "pandas"}),
    ("import pe.data", {"torch", "transformers", "datasets"}),
    ("import pe.results.markdown, pe.results.rows", {"torch", "transformers"}),
    ("import pe.figures", {"torch", "transformers"}),
]
"""Code, and the heavy packages that it must not bring: those that may bring most come last."""


def test_what_does_not_come_along() -> None:
    """One interpreter runs all of it in this order; `pe.model` is imported in test_model.py."""
    lines = [f"{code}\nprint(*[m for m in {HEAVY} if m in sys.modules])" for code, _ in NOT_BROUGHT]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(["import sys", *lines])],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for (code, without), loaded in zip(NOT_BROUGHT, done.stdout.splitlines(), strict=True):
        assert not set(loaded.split()) & without, code


def test_encodings_bring_torch_and_nothing_else() -> None:
    """Beyond what torch itself has loaded: only this package and the standard library."""
    code = (
        "import sys, torch, torch.library; before = set(sys.modules); "
        "import pe.encodings, pe.attention; pe.encoding('rope', head_dim=8, num_heads=1); "
        "found = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(*found - sys.stdlib_module_names)\n"
        "import pe.training.memory; pe.training.memory.estimate(pe.recipe('demo'))\n"
        "print(*{'torch._dynamo', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    encodings, estimate = done.stdout.splitlines()
    assert set(encodings.split()) <= {"pe", "torch"}
    assert not estimate, "an estimate of memory, as in a study's list of runs"


def test_every_public_name_is_there() -> None:
    for name in pe.__all__:
        assert getattr(pe, name) is not None
    assert set(dir(pe)) == set(pe.__all__)
    with pytest.raises(AttributeError, match="no attribute 'encodngs'"):
        _ = pe.encodngs


ROOT = Path(pe.__file__).parent
FILES = {
    ".".join(("pe", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): file
    for file in ROOT.rglob("*.py")
}
"""Every module of the package."""
LOWEST = ("encodings", "attention", "model")
"""Each of these imports those before it and nothing else of the package but what is private."""


def imported_by(file: Path) -> Iterator[str]:
    """Modules of the package that a file imports, in functions too; not for type checkers."""
    nodes: list[ast.AST] = [ast.parse(file.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes.extend(node.orelse)
            continue
        nodes.extend(ast.iter_child_nodes(node))
        names = [alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)]
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{file}: relative imports are not followed here"
            names = [
                whole if (whole := f"{node.module}.{name}") in FILES else node.module
                for name in names
            ]
        yield from (name for name in names if name in FILES)


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Which modules each module imports."""
    return {name: set(imported_by(file)) - {name} for name, file in FILES.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_one_that_imports_it(graph: dict[str, set[str]]) -> None:
    assert {"pe.recipes.recipe", "pe.model"} <= set(graph)
    assert "pe.encodings.core.base" in graph["pe.encodings.rope"]
    assert circle(graph) == []


def test_no_folder_imports_one_that_imports_it(graph: dict[str, set[str]]) -> None:
    folders: dict[str, set[str]] = {}
    for name, imports in graph.items():
        parts = name.split(".")
        if len(parts) > 1 and parts[-1] != "__main__":  # `pe` imports none until asked
            imports = imports - {"pe"}
            folders.setdefault(parts[1], set()).update(n.split(".")[1] for n in imports)
    folders = {folder: imports - {folder} for folder, imports in folders.items()}
    assert circle(folders) == []
    for number, folder in enumerate(LOWEST):
        public = {name for name in folders[folder] if not name.startswith("_")}
        assert public <= set(LOWEST[:number]), folder
