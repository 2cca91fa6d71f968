"""Write README's table of results from the records: ``python tools/readme_results.py``.

Run it when the records of runs/dropping change. A test compares README with its output.
"""

from __future__ import annotations

import re
from pathlib import Path

from pe import runs
from pe.results.markdown import pipe
from pe.results.measure import measure, write, write_cut
from pe.results.quantities import whole
from pe.results.rows import rows

ROOT = Path(__file__).resolve().parents[1]
STUDY, CONTROL = "dropping", "kept@3e-3"
SHOWN = {
    CONTROL: "RoPE",
    "yarn-4x": "RoPE, then YaRN for 4×",
    "ntk-4x": "RoPE, then NTK for 4×",
    "dropped@3e-3": "RoPE, rotation dropped (DroPE)",
    "nope": "NoPE from the first step",
}
MULTIPLES = (1, 2, 4)
COLUMNS = tuple(f"{kind}@{multiple}x" for kind in ("ppl", "multikey") for multiple in MULTIPLES)
MARKS = "<!-- results, by tools/readme_results.py -->", "<!-- end of results -->"


def block() -> str:
    """Write the table and the line under it."""
    found = {row.label: row for row in rows(STUDY, runs.find(ROOT / "runs", STUDY))}
    lines = []
    for name, title in SHOWN.items():
        cells = [write(measure(found[name], column), column) for column in COLUMNS]
        lines.append([title, *(cell.partition("<br>")[0] for cell in cells)])
    cut = [write_cut(found[CONTROL], column) for column in COLUMNS]
    lines.insert(1, ["RoPE, cut to the training length", *cut])
    run = found[CONTROL].runs[0].read()
    times = [f"{multiple}×" for multiple in MULTIPLES]
    heads = ["", *(f"perplexity {t}" for t in times), *(f"found {t}" for t in times)]
    return (
        f"{pipe(heads, lines)}\n\nOne seed, {whole(run['model']['parameters'])} parameters, "
        f"{whole(run['training']['tokens'] + run['parent']['tokens'])} tokens in all, trained on "
        f"windows of {whole(run['recipe']['context_length'])} (1×), on one "
        f"{run['hardware']['name']}."
    )


def readme(text: str) -> str:
    """Return README with the current table."""
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
