"""What the book computes beside its text: the formulas in plain torch, and the solutions.

On every page the ```python blocks under the heading "The formula in plain torch", and those inside
dropdowns called "Solution", are run in the order of the page and share its names. They end in
asserts of their own.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest
import torch

BOOK = Path(__file__).parents[1] / "book"
PLAIN = "The formula in plain torch"
FENCE = re.compile(r" *(`{3,}|:{3,}) *(.*)")
HEADING = re.compile(r"(#+) (.+)")
MADE = ("_build", "_generated", "notebooks", "runs")


class Block(NamedTuple):
    where: str
    """``plain`` or ``solution``."""
    line: int
    """Lines of the page above it."""
    text: str


class Page(NamedTuple):
    blocks: list[Block]
    exercises: int
    solutions: int


def parse(text: str) -> Page:
    """The marked blocks of a page, and how many exercises and solutions it has."""
    blocks: list[Block] = []
    fences: list[tuple[str, str]] = []  # the open ones, and what stands behind them
    section, level = "", 0
    exercises = solutions = start = 0
    lines = text.splitlines()
    for number, line in enumerate(lines):
        fence = FENCE.fullmatch(line.rstrip())
        heading = HEADING.fullmatch(line)
        if fence and not fence[2] and fences and fence[1] == fences[-1][0]:
            _, info = fences.pop()
            inside = any(info.startswith("{dropdown} Solution") for _, info in fences)
            if info == "python" and (inside or section == PLAIN):
                code = dedent("\n".join(lines[start:number]))
                blocks.append(Block("solution" if inside else "plain", start, code))
        elif fence and (not fences or fences[-1][1].startswith("{")):
            fences.append((fence[1], fence[2]))
            solutions += fence[2].startswith("{dropdown} Solution")
            start = number + 1
        elif heading and not fences:
            if section not in (PLAIN, "Exercises") or len(heading[1]) <= level:
                level, section = len(heading[1]), heading[2]
        elif section == "Exercises" and not fences:
            exercises += bool(re.match(r"\d+\. ", line))
    assert not fences, f"not closed: {fences}"
    return Page(blocks, exercises, solutions)


PAGES = {
    str(path.relative_to(BOOK).with_suffix("")): parse(path.read_text("utf-8"))
    for path in sorted(BOOK.rglob("*.md"))
    if path.relative_to(BOOK).parts[0] not in MADE
}


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.blocks])
def test_the_code_of_a_page_runs_and_its_asserts_hold(name: str) -> None:
    names: dict[str, object] = {"__name__": name}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in PAGES[name].blocks:
            above = "\n" * block.line  # so that a traceback names the line of the page
            exec(compile(above + block.text, str(BOOK / f"{name}.md"), "exec"), names)


def test_plain_formulas_are_compared_with_the_package_and_solutions_assert_their_numbers() -> None:
    for name, page in PAGES.items():
        plain = [block.text for block in page.blocks if block.where == "plain"]
        if plain:
            assert "pe." in plain[-1], name
            assert "assert" in plain[-1], name
        for block in page.blocks:
            assert block.where == "plain" or "assert" in block.text, (name, block.line)


def test_a_page_with_solutions_has_one_for_each_exercise() -> None:
    for name, page in PAGES.items():
        assert page.solutions in (0, page.exercises), (name, page.exercises, page.solutions)


def test_only_marked_blocks_are_taken() -> None:
    text = f"""\
```python
raise SystemExit
```
## {PLAIN}
```python
# Not a heading
a = 1
```
### More of it
```python
b = 2
```
## Exercises
1. First.

:::{{dropdown}} Solution
```python
c = 3
```
```text
```python is not opened here
```
:::

2. Second.

   :::{{dropdown}} Solution
   ```python
   for n in (1, 2):
       assert n
   ```
   :::
"""
    page = parse(text)
    assert [block.where for block in page.blocks] == ["plain", "plain", "solution", "solution"]
    assert page.blocks[0] == ("plain", 5, "# Not a heading\na = 1")
    assert page.blocks[3].text == "for n in (1, 2):\n    assert n"
    assert (page.exercises, page.solutions) == (2, 2)
