"""Write README's table of results from the records: ``python tools/readme_results.py``.

Run it when the records of runs/scaffold change; a test compares README with what this makes.
"""

from __future__ import annotations

import re
from pathlib import Path

from pe import runs
from pe.results import extensions, quantities
from pe.results.markdown import cropped, pipe
from pe.results.quantities import whole
from pe.results.rows import measure, rows, write

ROOT = Path(__file__).resolve().parents[1]
STUDY, EXTENDED = "scaffold", "yarn@16"
SHOWN = ("nope", "rope", "yarn", "pope", "rope-dropped-at-10")
COLUMNS = (
    "ppl@1x", "ppl@4x", "ppl@16x", "passkey@1x", "passkey@4x", "tokens_per_second", "peak_memory",
)  # fmt: skip
HEADS = (
    "", "perplexity 1×", "4×", "16×", "passkeys 1×", "4×", "tokens/s in training", "memory, GiB",
)  # fmt: skip
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
    recipe, limit = rope.read()["recipe"], quantities.vocabulary(rope)
    cells = [
        quantities.perplexity(
            extensions.value(record, recipe["context_length"], EXTENDED, multiple), limit
        )
        for multiple in (1, 4, 16)
    ]
    lines.insert(2, ["RoPE, then YaRN ×16 put on", *cells, *["–"] * 4])
    title, _, *cut = cropped([found["rope"]], COLUMNS) or ["", ""]
    lines.insert(2, [title, *cut])
    table = pipe(HEADS, lines)
    run = rope.read()
    return (
        f"{table}\n\nOne seed, {whole(run['model']['parameters'])} parameters, "
        f"{whole(run['training']['tokens'])} tokens, trained on windows of "
        f"{whole(recipe['context_length'])} (1×), on one {run['hardware']['name']}."
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
