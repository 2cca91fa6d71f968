"""What README and CONTRIBUTING say can be done, can be done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md")


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert (ROOT / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_named_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"[`$] ?make ([a-z]+)", (ROOT / page).read_text())
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_code_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "pe.encoding(" in block]
    positions = torch.arange(5)[None]
    names = {"q": torch.randn(1, 8, 5, 64), "k": torch.randn(1, 8, 5, 64)}
    before = names["q"]
    names |= {"q_positions": positions, "k_positions": positions}
    exec(example, names)
    assert names["q"].shape == before.shape
    assert not torch.equal(names["q"][:, :, 1:], before[:, :, 1:])
    assert {"pe", "seed", "status"} <= set(names["frame"].columns)


def test_the_picture_shows_the_records_as_they_are() -> None:
    import importlib.metadata

    lock = (ROOT / "requirements-lock.txt").read_text()
    if f"matplotlib=={importlib.metadata.version('matplotlib')}\n" not in lock:
        pytest.skip("another matplotlib than the lock's draws other bytes")
    drawn = tool("readme_picture")["picture"]()
    assert drawn == (ROOT / "runs" / "every" / "reach.svg").read_text()


def test_the_table_of_results_is_what_the_records_say() -> None:
    text = (ROOT / "README.md").read_text()
    assert tool("readme_results")["readme"](text) == text


def tool(name: str) -> dict[str, Any]:
    """The names that a script of tools/ defines."""
    path = ROOT / "tools" / f"{name}.py"
    names: dict[str, Any] = {"__name__": name, "__file__": str(path)}
    exec(compile(path.read_text(), path.name, "exec"), names)
    return names
