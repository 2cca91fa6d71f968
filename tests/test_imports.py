"""What an import brings with it: ``import pe`` costs nothing, torch comes when it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pe

HEAVY = ("torch", "transformers", "pandas", "datasets", "accelerate", "matplotlib", "papermill")


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter holds after running ``code``."""
    report = f"import sys; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_package_itself_brings_nothing() -> None:
    assert loaded_by("import pe; pe.__version__; dir(pe)") == set()


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("import pe.__main__, pe.pytest_plugin", set(HEAVY)),
        ("import pe.runs", {"torch", "transformers", "pandas", "datasets"}),
        ("import pe; pe.runs.root()", {"torch", "transformers", "pandas", "datasets"}),
        ("import pe.figures", {"torch", "transformers"}),
        ("import pe.results.markdown, pe.results.budgets", {"torch", "transformers"}),
        ("import pe.training.recipe, pe.training.recipes", {"torch", "transformers", "pandas"}),
        ("import pe; pe.recipe('demo').config_hash()", {"torch", "transformers", "pandas"}),
        ("import pe.data", {"torch", "transformers", "datasets"}),
        ("import pe.notebooks.papermill.entry", {"torch", "transformers", "pandas"}),
        ("import pe.model", {"pandas", "datasets", "matplotlib", "papermill"}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_does_not_come_along(code: str, without: set[str]) -> None:
    assert not loaded_by(code) & without


def test_encodings_bring_torch_and_nothing_else() -> None:
    """Beyond what torch itself has loaded: only this package and the standard library."""
    code = (
        "import sys, torch, torch.library; before = set(sys.modules); "
        "import pe.encodings, pe.attention; pe.encoding('rope', head_dim=8, num_heads=1); "
        "found = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(*found - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"pe", "torch"}


def test_every_public_name_is_there() -> None:
    for name in pe.__all__:
        assert getattr(pe, name) is not None
    assert set(dir(pe)) == set(pe.__all__)
    with pytest.raises(AttributeError, match="no attribute 'encodngs'"):
        _ = pe.encodngs
