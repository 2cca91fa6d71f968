"""Pages of records as plain HTML, which Sphinx neither puts into "next" nor into the search."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence

from book_explorer_data import KINDS, Pages
from book_plans import repeat
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
<meta name="description" content="{title}: {about}.">
<link rel="icon" href="{root}_static/logo.svg">
<link rel="stylesheet" href="{root}explorer/record.css">
</head>
<body>
<header><nav aria-label="Guide">{links}</nav></header>
<main>
<h1>{title}</h1>
<p>{introduction}</p>
{parts}
</main>
</body>
</html>
"""


def plain_page(
    title: str,
    about: str,
    depth: int,
    links: Mapping[str, str],
    introduction: str,
    parts: Iterable[tuple[str, str]],
) -> str:
    """Return a page of headings with a table each, in HTML.

    Args:
        about: what the page shows, for search engines.
        depth: number of folders between the page and the root of the site.
        links: address from the root, by the words of the link.
        introduction: HTML below the title.
        parts: heading and HTML of each part.
    """
    root = "../" * depth
    links = {"Positional encodings": "index.html", **links}
    return _PAGE.format(
        title=html.escape(title),
        about=html.escape(about),
        root=root,
        links=" ·\n".join(
            f'<a href="{root}{html.escape(to)}">{html.escape(words)}</a>'
            for words, to in links.items()
        ),
        introduction=introduction,
        parts="\n".join(
            f'<h2>{html.escape(head)}</h2>\n<div tabindex="0" role="region" '
            f'aria-label="{html.escape(head)}">{table}</div>'
            for head, table in parts
        ),
    )


def made(created: str, commit: str | None, machine: str) -> str:
    """Say in HTML when, with which commit and on which machine a record was made."""
    known = html.escape((commit or "unknown")[:12])
    return f"made\n{created[:10]} with commit <code>{known}</code> on {html.escape(machine)}"


def html_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in HTML. The first cell of each line is its heading."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(text)}</td>" for text in more)
        + "</tr>"
        for first, *more in lines
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


_ABSENT = (quantities.NOT_RECORDED, quantities.NOT_EVALUATED)


def record_page(run: Snapshot, pages: Pages) -> str:
    """Return the page of a run that has no notebook: what its record says."""
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
