"""The book's Sphinx extension, with which `jupyter-book build book` builds the guide from records.

Before Sphinx reads a page it
  1. points sphinx-external-toc to the root's `_toc.yml` (book/_toc.yml is a stub: Jupyter Book
     looks for a table of contents in the book's folder only, and Windows does not keep symlinks);
  2. mirrors notebooks and run pages into book/, where Sphinx can see them (book_mirror);
  3. draws the pictures and the figures of the records into book/_generated (book_pictures);
It also registers the roles and directives by which pages read the records.

A build executes no notebook and fetches nothing. It rewrites a file only if its content changed, so
that a second build only does what is new.
"""

from __future__ import annotations

import atexit
import gc
import re
import sys
from pathlib import Path
from typing import Any

# A build keeps most objects that it makes, and garbage collection would take a sixth of its time:
# half of that during the build, and half at its end, when Python looks at every object once more.
# Without it a build needs 1.7 GB of memory instead of 1.0.
gc.disable()
atexit.register(gc.freeze)
BOOK = Path(__file__).resolve().parent.parent
ROOT = BOOK.parent
sys.path.insert(0, str(ROOT))  # the package beside the book, installed or not

import book_api  # noqa: E402
import book_caches  # noqa: E402
import book_claims  # noqa: E402
import book_costs  # noqa: E402
import book_directives  # noqa: E402
import book_dropping  # noqa: E402
import book_encodings  # noqa: E402
import book_every  # noqa: E402
import book_explorer  # noqa: E402
import book_manners  # noqa: E402
import book_measured  # noqa: E402
import book_mirror  # noqa: E402
import book_models  # noqa: E402
import book_pages  # noqa: E402
import book_pictures  # noqa: E402
import book_plans  # noqa: E402
import book_pretrained  # noqa: E402
import book_recipes  # noqa: E402
import book_scaling  # noqa: E402
import book_speed  # noqa: E402
import book_tables  # noqa: E402
import book_tasks  # noqa: E402
import torch  # noqa: E402
from book_directives import ValueRole  # noqa: E402
from book_studies import Studies, fingerprint  # noqa: E402
from docutils import nodes  # noqa: E402
from pybtex.plugin import find_plugin, register_plugin  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from sphinx.config import Config  # noqa: E402
from sphinx.errors import ExtensionError  # noqa: E402
from sphinx.util.docutils import SphinxDirective  # noqa: E402

from pe import runs  # noqa: E402

torch.set_num_threads(1)  # the tensors of the pictures are too small for several threads
STUDY = "demo"
BACKENDS = "pybtex.backends"
ROLES = {
    "record": ValueRole(book_directives.record),
    "record-code": ValueRole(book_directives.record, nodes.literal),
    "speed-ratio": ValueRole(book_speed.ratio_of_book),
    "task": ValueRole(book_tasks.value_of_book),
}
DIRECTIVES: dict[str, type[SphinxDirective]] = {
    "api": book_api.Api,
    "cache-sizes": book_caches.CacheSizes,
    "claim-table": book_claims.ClaimTable,
    "claims": book_claims.Claims,
    "combines": book_costs.Combines,
    "costs": book_costs.Costs,
    "dropping-table": book_dropping.DroppingTable,
    "encodings": book_encodings.Encodings,
    "every-encoding": book_every.EveryEncoding,
    "explorer": book_explorer.Explorer,
    "extension": book_tables.Extension,
    "fine-tuned": book_tables.FineTuned,
    "if-recorded": book_plans.IfRecorded,
    "kept-and-dropped": book_dropping.KeptAndDropped,
    "laws": book_encodings.Laws,
    "local-runs": book_tables.LocalRuns,
    "measured": book_measured.Measured,
    "missing-runs": book_plans.MissingRuns,
    "models": book_models.Models,
    "picture": book_directives.Picture,
    "preset-table": book_caches.PresetTable,
    "pretrained-found": book_pretrained.Found,
    "pretrained-losses": book_pretrained.Losses,
    "pretrained-picture": book_pretrained.PretrainedPicture,
    "pretrained-training": book_pretrained.Training,
    "recipes": book_recipes.Recipes,
    "record-schema": book_directives.RecordSchema,
    "rerun": book_plans.Rerun,
    "scaling": book_scaling.Scaling,
    "searches": book_tables.Searches,
    "settings": book_plans.Settings,
    "speed": book_speed.SpeedBlock,
    "study-table": book_tables.StudyTable,
    "sweep-table": book_tables.SweepTable,
    "beyond-table": book_tables.BeyondTable,
    "tasks": book_tasks.Tasks,
}
"""Everything that a page can use; each class says what its arguments and options are."""
_THEBE = re.compile(r"<script[^>]*thebe-config.*?</script>\s*<script>kernelName.*?</script>", re.S)


def prepare(app: Sphinx, config: Config) -> None:
    """Read the records, and write all files that Sphinx needs from outside of book/."""
    config.external_toc_path = "../_toc.yml"
    try:
        studies = Studies.load(ROOT / "runs", runs.root(), STUDY)
        speeds = book_speed.load(ROOT)
    except runs.RunError as error:
        raise ExtensionError(f"the book is built from records, and {error}") from error
    book_mirror.mirror(ROOT, BOOK, studies.complete())
    drawn = book_measured.figures_of(studies) | book_dropping.figures_of(studies)
    tasks = book_tasks.load(ROOT)
    of_records = book_pictures.record_figures(studies) | drawn | book_tasks.figures_of(tasks)
    drawn |= book_speed.figures_of(speeds)
    drawn |= book_pictures.shown(BOOK, of_records)
    drawn |= book_pretrained.figures_of(BOOK.parent / "runs")
    book_pictures.draw(ROOT, BOOK, drawn)
    config.template_bridge = "book_manners.Pages"
    config.html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
    book_tasks.write_pages(tasks, BOOK / book_explorer.SITE)
    config.html_extra_path += book_explorer.prepare(studies, speeds, BOOK)
    book_mirror.write(BOOK / "_generated" / "stamp", fingerprint(ROOT, runs.root()))
    app.pe_book = book_directives.Book(  # type: ignore[attr-defined]
        studies, BOOK, drawn, speeds
    )
    # The line of the site's licence and year must not change with the day of the build.
    config.html_last_updated_fmt = None


def tidy(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Remove Thebe, which runs code on another host, and scripts that a page names twice.

    Jupyter Book adds Thebe even if it is off. Its second copy is a console error on every page.
    """
    kept: dict[str, Any] = {}
    for script in context.get("script_files", []):
        attributes = getattr(script, "attributes", {})
        key = f"{getattr(script, 'filename', script)} {attributes.get('body')}"
        if "thebe" not in key.lower():
            kept.setdefault(key, script)
    context["script_files"] = list(kept.values())
    sheets = context.get("css_files", [])
    context["css_files"] = [sheet for sheet in sheets if "thebe" not in str(sheet.filename)]
    if "body" in context:
        context["body"] = _THEBE.sub("", context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    for name in ("docutils", "plaintext"):
        # Otherwise pybtex looks through all installed packages for each citation.
        register_plugin(BACKENDS, name, find_plugin(BACKENDS, name), force=True)
    app.connect("config-inited", prepare, priority=100)
    app.connect("html-page-context", tidy, priority=900)
    book_pages.setup(app)
    book_manners.setup(app)
    for name, role in ROLES.items():
        app.add_role(name, role)
    for name, directive in DIRECTIVES.items():
        app.add_directive(name, directive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
