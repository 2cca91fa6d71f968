"""The page of a run that has no notebook: what its record says, as plain HTML."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence

from book_explorer_data import KINDS, Pages
from book_studies import Snapshot

from pe.results import quantities
from pe.results.measure import measure
from pe.results.measure import write as write_cell
from pe.results.quantities import QUANTITIES, At, multiples
from pe.results.rows import Row, named

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{title}</title>
<meta name="description" content="{title}: what was measured, and the recipe.">
<link rel="icon" href="../../../_static/logo.svg">
<link rel="stylesheet" href="../../../explorer/record.css">
</head>
<body>
<header><nav aria-label="Guide"><a href="../../../index.html">Positional encodings</a> ·
<a href="../../../{page}">{heading}</a> ·
<a href="../../../explorer.html?study={study}">Explorer of results</a></nav></header>
<main>
<h1>{title}</h1>
<p>The record of this run is <code>runs/{study}/{name}/</code> in the repository, made
{created} with commit <code>{commit}</code> on {machine}.</p>
<h2>Measured</h2>
<div tabindex="0" role="region" aria-label="Measured">{measured}</div>
<h2>Recipe</h2>
<div tabindex="0" role="region" aria-label="Recipe">{recipe}</div>
</main>
</body>
</html>
"""


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
    words = {
        "title": f"{name}, seed {record['seed']} ({run.study})", "page": page, "heading": heading,
        "study": run.study, "name": run.name, "created": record["created"][:10],
        "commit": (record["code"]["commit"] or "unknown")[:12],
        "machine": record["hardware"]["name"],
    }  # fmt: skip
    return _PAGE.format(
        **{key: html.escape(str(value)) for key, value in words.items()},
        measured=html_table(["quantity", *heads], lines),
        recipe=html_table(["field", "value"], settings),
    )


_ABSENT = (quantities.NOT_RECORDED, quantities.NOT_EVALUATED)


def html_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in HTML; the first cell of a line names it."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(text)}</td>" for text in more)
        + "</tr>"
        for first, *more in lines
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
