"""A page of a record as plain HTML, outside of Sphinx: neither in "next" nor in the search."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

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
    """A page of headings with a table each.

    Args:
        about: what is on it, for search engines. depth: folders between it and the site's root.
            links: address from the root by the words of the link. introduction: HTML. parts:
            heading and HTML of each.
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
    """When, with which commit and on what: HTML."""
    known = html.escape((commit or "unknown")[:12])
    return f"made\n{created[:10]} with commit <code>{known}</code> on {html.escape(machine)}"


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
