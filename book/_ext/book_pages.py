"""Which pages a reader leafs through and searches, and a search index that is whole.

The pages of runs are reached from the tables that name them. They stand neither in the reading
order nor in the search index, where they would come before the page of their method.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment

RUNS = "runs/"
_PREFIX = "Search.setIndex("


def set_aside(app: Sphinx, doctree: Any) -> None:
    """Mark a page of a run as one that no table of contents and no search lists."""
    assert app.env is not None
    if app.env.docname.startswith(RUNS):
        app.env.metadata[app.env.docname].update(orphan=True, nosearch=True)


class Sidebars:
    """Make the sidebar of the pages of runs once: equal depth, equal links, nothing current."""

    def __init__(self) -> None:
        self.made: dict[Any, str] = {}

    def __call__(
        self, app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any
    ) -> None:
        if not pagename.startswith(RUNS):
            return
        toctree = context["toctree"]

        def shared(**options: Any) -> str:
            key = (pagename.count("/"), *sorted(options.items()))
            if key not in self.made:
                self.made[key] = toctree(**options)
            return self.made[key]

        context["toctree"] = shared


def complete_index(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Every page is outdated where the search index misses one or is older than one.

    A build that was stopped leaves such an index. Sphinx adds the pages that it builds to the
    index that it finds, so no later build would complete it (sphinx-doc/sphinx#3270).
    """
    builder = app.builder
    known = sorted(env.all_docs.keys() & env.found_docs)
    if not isinstance(builder, StandaloneHTMLBuilder) or not builder.search or not known:
        return []
    index = Path(builder.outdir) / builder.searchindex_filename
    pages = [Path(builder.get_outfilename(name)) for name in known]
    written = [page.stat().st_mtime_ns for page in pages if page.exists()]
    if (
        index.exists()
        and index.stat().st_mtime_ns >= max(written, default=0)
        and indexed(index) >= set(known) - added - changed
    ):
        return []
    return known


def indexed(index: Path) -> set[str]:
    """The pages in a search index; none where it cannot be read."""
    text = index.read_text("utf-8")
    try:
        return set(json.loads(text.removeprefix(_PREFIX).removesuffix(")"))["docnames"])
    except (ValueError, KeyError):
        return set()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-read", set_aside, priority=900)
    app.connect("html-page-context", Sidebars(), priority=100)
    app.connect("env-get-outdated", complete_index)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
