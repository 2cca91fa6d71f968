"""Write README's table of results from the records: ``python tools/readme_results.py``.

Run it when the records of runs/scaffold change; a test compares README with what this makes.
"""

from __future__ import annotations

import re
from pathlib import Path

from pe import runs
from pe.results import extensions, quantities
from pe.results.markdown import cropped, pipe
from pe.results.quantities import label, whole
from pe.results.rows import measure, rows, write

ROOT = Path(__file__).resolve().parents[1]
STUDY, METHOD = "scaffold", "yarn"
SHOWN = ("nope", "pope", "rope")
MULTIPLES = (1, 2, 4, 8, 16)
COLUMNS = tuple(f"ppl@{multiple}x" for multiple in MULTIPLES)
MARKS = "<!-- results, by tools/readme_results.py -->", "<!-- end of results -->"


def block() -> str:
    """The table and the line under it."""
    found = {row.label: row for row in rows(STUDY, runs.find(ROOT / "runs", STUDY))}
    lines = [
        [found[name].title, *(write(measure(found[name], column), column) for column in COLUMNS)]
        for name in SHOWN
    ]
    rope = found["rope"].runs[0]
    record = runs.Run(rope.directory).part("extension")  # type: ignore[attr-defined]
    assert record is not None
    run, limit = rope.read(), quantities.vocabulary(rope)
    length = run["recipe"]["context_length"]
    extended = [
        quantities.perplexity(
            extensions.value(record, length, f"{METHOD}@{multiple}", multiple), limit
        )
        for multiple in MULTIPLES[1:]
    ]
    title, _, *cut = cropped([found["rope"]], COLUMNS) or ["", ""]
    lines.append([title, *cut])
    lines.append([f"RoPE, {label(METHOD)} put on with factor = length", lines[2][1], *extended])
    table = pipe(["perplexity at", *(f"{multiple}×" for multiple in MULTIPLES)], lines)
    return (
        f"{table}\n\nOne seed, {whole(run['model']['parameters'])} parameters, "
        f"{whole(run['training']['tokens'])} tokens at a peak rate of "
        f"{run['recipe']['learning_rate']:g}, trained on windows of {whole(length)} (1×), on one "
        f"{run['hardware']['name']}."
    )


def readme(text: str) -> str:
    """README with the table as it should be."""
    begin, end = map(re.escape, MARKS)
    new, count = re.subn(
        f"({begin}\n).*?(\n{end})", lambda m: m[1] + block() + m[2], text, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"README.md: expected one pair of marks {MARKS}, found {count}")
    return new


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(readme(path.read_text()))
