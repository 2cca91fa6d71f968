"""Which pages are in the reading order and in the search, and a complete search index.

Tables link to the pages of runs. These pages are neither in the reading order nor in the search
index, where they would come before the page of their method.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment
from sphinx.util.osutil import relative_uri

RUNS = "runs/"
_PREFIX = "Search.setIndex("


def set_aside(app: Sphinx, doctree: Any) -> None:
    """Mark a page of a run as one that no table of contents and no search lists."""
    assert app.env is not None
    if app.env.docname.startswith(RUNS):
        app.env.metadata[app.env.docname].update(orphan=True, nosearch=True)


class Sidebars:
    """Make the theme's list of all pages once; for each page its addresses and its mark change.

    The theme would resolve and parse the list once more for each page.
    """

    def __init__(self) -> None:
        self.made: dict[Any, str] = {}

    def __call__(
        self, app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any
    ) -> None:
        generate = context.get("generate_toctree_html")
        if generate is None:  # not this theme
            return
        here = app.builder.get_target_uri(pagename)

        def shared(**options: Any) -> str:
            key = tuple(sorted(options.items()))
            if key not in self.made:
                self.made[key] = from_the_root(str(generate(**options)), here)
            made = self.made[key]
            # Lists inside lists would all have to be marked as current.
            return str(generate(**options)) if "toctree-l2" in made else seen_from(made, here)

        context["generate_toctree_html"] = shared


_LINK = re.compile(r'(<a class="reference internal" href=")([^"]*)(")')
_LIST, _CURRENT_LIST = '<ul class="nav bd-sidenav">', '<ul class="current nav bd-sidenav">'
_ITEM = '<li class="toctree-l1"><a class="reference internal" href="{}">'
_CURRENT_ITEM = (
    '<li class="toctree-l1 current active"><a class="current reference internal" href="#">'
)


def from_the_root(toctree: str, here: str) -> str:
    """Convert the list of the page at the address ``here`` to that of a page at the root."""
    folder = posixpath.dirname(here)

    def whole(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return f"{link[1]}{target}{link[3]}"

    # The page itself is the target "#", which becomes its name in its folder.
    own = _ITEM.format(posixpath.basename(here))
    return _LINK.sub(whole, toctree.replace(_CURRENT_LIST, _LIST).replace(_CURRENT_ITEM, own))


def seen_from(toctree: str, here: str) -> str:
    """Convert the list of `from_the_root` to that of the page at the address ``here``."""
    before, own, after = toctree.partition(_ITEM.format(here))
    if own:
        lists, _, items = before.rpartition(_LIST)
        before, own = f"{lists}{_CURRENT_LIST}{items}", _CURRENT_ITEM

    def relative(link: re.Match[str]) -> str:
        return f"{link[1]}{relative_uri(here, link[2])}{link[3]}"

    return _LINK.sub(relative, before) + own + _LINK.sub(relative, after)


def complete_index(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Return all pages as outdated if the search index lacks one or is older than one.

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
    """Return the pages in a search index, or none if it cannot be read."""
    text = index.read_text("utf-8")
    try:
        return set(json.loads(text.removeprefix(_PREFIX).removesuffix(")"))["docnames"])
    except (ValueError, KeyError):
        return set()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-read", set_aside, priority=900)
    app.connect("html-page-context", Sidebars(), priority=600)  # after the theme's own functions
    app.connect("env-get-outdated", complete_index)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
