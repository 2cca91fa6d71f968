"""The page of a run that has no notebook: what its record says, as plain HTML."""

from __future__ import annotations

import html
import json

from book_explorer_data import KINDS, Pages
from book_plain_page import html_table, made, plain_page
from book_plans import repeat
from book_studies import Snapshot

from pe.results import quantities
from pe.results.measure import measure
from pe.results.measure import write as write_cell
from pe.results.quantities import QUANTITIES, At, multiples
from pe.results.rows import Row, named


def record_page(run: Snapshot, pages: Pages) -> str:
    """What a run without a notebook has recorded, as a plain page."""
    record = run.read()
    recipe = record["recipe"]
    name, origin = named(recipe)
    row = Row(str(record["pe"]), name, origin, (run,))
    heads = [f"{at}".replace("x", "×") for at in multiples([run])]
    lines = []
    for tempered in (False, True):
        for kind in KINDS:
            keys = [str(At(tempered, kind, float(at[:-1]))) for at in multiples([run])]
            cells = [measure(row, key) for key in keys]
            if any(cell.value is not None or cell.reason not in _ABSENT for cell in cells):
                what = "perplexity" if kind == "ppl" else f"{kind}, prompts answered"
                what += ", fitted temperature" if tempered else ""
                texts = [write_cell(cell, key) for cell, key in zip(cells, keys, strict=True)]
                lines.append([what, *texts])
    for key, quantity in QUANTITIES.items():
        cell = measure(row, key)
        if cell.value is not None:
            lines.append([quantity.title, write_cell(cell, key), *[""] * (len(heads) - 1)])
    page, heading = pages.study([run.study])
    settings = [[key, json.dumps(value) if not isinstance(value, str) else value]
                for key, value in recipe.items()]  # fmt: skip
    where = html.escape(f"runs/{run.study}/{run.name}/")
    code, machine = record["code"]["commit"], record["hardware"]["name"]
    return plain_page(
        f"{name}, seed {record['seed']} ({run.study})",
        "what was measured, the command that repeats it, and the recipe",
        3,
        {heading: page, "Explorer of results": f"explorer.html?study={run.study}"},
        f"The record of this run is <code>{where}</code> in the repository, "
        f"{made(record['created'], code, machine)}.",
        [
            ("Measured", html_table(["quantity", *heads], lines)),
            ("Repeat it", f"<pre>{html.escape(repeat(record))}</pre>"),
            ("Recipe", html_table(["field", "value"], settings)),
        ],
    )


_ABSENT = (quantities.NOT_RECORDED, quantities.NOT_EVALUATED)
