"""Changes to every page that Sphinx writes: facts about it, and fewer scripts.

* A page gets a description, a picture for links to it, its licence, version, date and commit, and a
  block to cite it. The page of a notebook says how to run it.
* A page loads only what it uses: MathJax if it has a formula, the search index if it is the page of
  the search, and the icons of _static/icons.css instead of Font Awesome.
* Faults that axe finds in the theme's templates are corrected in the written page.
* A formula and the punctuation after it stay on one line.

The address of the repository comes from git's remote ``origin`` or from the GitHub workflow that
builds. The address of the site is ``$PE_SITE``. Links to unknown addresses are left out.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.jinja2glue import BuiltinTemplateLoader

from pe.runs.provenance import git

ROOT = Path(__file__).resolve().parents[2]
CARD = "card.png"
PDF = "positional-encodings.pdf"
PUNCTUATION = re.compile(r"[.,;:?!)]+")
DESCRIPTION = 160
"""Characters of a description that search engines show."""


@dataclass(frozen=True)
class About:
    """The guide as a whole."""

    author: str
    title: str
    version: str
    released: str
    licence: str
    commit: str | None
    date: str
    repository: str | None
    site: str | None

    @classmethod
    def read(cls, root: Path = ROOT) -> About:
        """Read CITATION.cff and ask git."""
        cited = yaml.safe_load((root / "CITATION.cff").read_text("utf-8"))
        in_git = (root / ".git").exists()
        commit = git(root, "rev-parse", "HEAD") if in_git else None
        committed = git(root, "log", "-1", "--format=%cs") if in_git else None
        remote = git(root, "remote", "get-url", "origin") if in_git else None
        hosted = os.environ.get("GITHUB_REPOSITORY")
        server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
        released = str(cited["date-released"])
        return cls(
            author=cited["authors"][0]["name"], title=cited["title"], version=cited["version"],
            released=released, licence=cited["license"], commit=commit,
            date=committed or released,
            repository=f"{server}/{hosted}" if hosted else web_address(remote),
            site=(os.environ.get("PE_SITE") or "").rstrip("/") or None,
        )  # fmt: skip


def web_address(remote: str | None) -> str | None:
    """Return the web page of a git remote; None if it is a folder of this machine.

    >>> web_address("git@github.com:someone/pe.git")
    'https://github.com/someone/pe'
    """
    found = re.fullmatch(
        r"(?:https://(?:[^@/]+@)?|git@|ssh://git@)([\w.-]+\.\w+)[:/](\S+?)(?:\.git)?/?",
        remote or "",
    )
    return f"https://{found[1]}/{found[2]}" if found else None


class Pages(BuiltinTemplateLoader):
    """Sphinx's templates, with `mend` applied to every page."""

    def render(self, template: str, context: dict[str, Any]) -> str:  # type: ignore[override]
        if template.endswith("sbt-sidebar-nav.html"):
            # The theme renders each part of a page by itself to learn whether it is empty. This one
            # never is, and `book_pages.Sidebars` has not yet made its list cheap.
            return template
        text = str(super().render(template, context))
        about = context.get("pe_about")
        if about is None or "</html>" not in text:
            return text
        return mend(text, context, about)


def mend(text: str, context: Mapping[str, Any], about: About) -> str:
    """Return a page of the theme with its faults corrected."""
    name = str(context["pagename"])
    pathto = context["pathto"]
    text = without_unused(text, name)
    # Three times the same.
    first, *more = text.split('<meta name="viewport"')
    if more:
        rest = [re.sub(r"^[^>]*>\s*", "", part) for part in more[1:]]
        text = first + '<meta name="viewport"' + more[0] + "".join(rest)
    for wrong, right in THEME:
        text = re.sub(wrong, right, text)
    # The dark twin of a picture is hidden on a light page, and then it is not fetched either.
    text = re.sub(r'<img (?=[^>]*class="only-dark)', '<img loading="lazy" ', text)
    text = name_pictures(text)
    heads = describe(context, about, pathto)
    text = text.replace("</head>", f"{heads}\n  </head>", 1)
    author = re.compile(r'<p class="component-author">.*?</p>', re.S)
    text = author.sub(lambda _: footer(context, about), text, count=1)
    if name.startswith("notebooks/"):
        text = text.replace("</h1>", "</h1>\n" + how_to_run(name, about), 1)
    return text


def without_unused(text: str, name: str) -> str:
    """Return the page without the scripts and styles that it does not use."""
    unused = [r'<script[^>]*src="[^"]*fontawesome\.js[^>]*></script>']
    body = text.partition("<body")[2]
    if 'class="math' not in text and "mathjax_process" not in body:
        unused += [
            r"<script>window\.MathJax = .*?</script>",
            r"<script[^>]*mathjax/tex-svg\.js[^>]*></script>",
        ]
    for sheet, mark in (("mystnb", 'class="cell'), ("sphinx-design", "sd-"), ("proof", "proof")):
        if mark not in body:
            unused.append(rf'<link[^>]*href="[^"]*/{sheet}\.[^"]*\.?css[^>]*>')
    if name != "search":
        unused.append(
            r'<script src="[^"]*(?:searchtools|language_data|searchindex)\.js[^>]*></script>'
        )
    for tag in unused:
        text = re.sub(rf"{tag}\s*", "", text)
    return text


THEME = [
    # its words are its name; the label has others
    (r'(<button class="btn search-button-field[^>]*?) title="Search" aria-label="Search"', r"\1"),
    # the name of the site stands outside every landmark
    (r'(<div id="pst-primary-sidebar")', r'\1 role="complementary" aria-label="Site"'),
    # an arrow without a word
    (r'<summary>(\s*<span class="toctree-toggle")', r'<summary aria-label="Pages below">\1'),
    # roles that hold no items, and that are no longer known
    (r' role="list" class="citation-list"', ' class="citation-list"'),
    (r' role="doc-biblioentry"', ""),
    # an empty cell is no heading
    (r'<th class="head([^"]*)">\s*(?:<p>\s*</p>)?\s*</th>', r'<td class="head\1"></td>'),
]


_HEADING_OR_PICTURE = re.compile(
    r'<h[1-6]>(?P<heading>(?:(?!</h).)*?)<a class="headerlink"'
    r'|(?P<alt><img alt=")[^"]*_images/[^"]*"',
    re.S,
)


def name_pictures(text: str) -> str:
    """Return the page with pictures that have no name named after the heading above them.

    Those are outputs of notebooks: they have the name of a file where words should be.
    """
    heading = ""

    def named(found: re.Match[str]) -> str:
        nonlocal heading
        if found["alt"] is None:
            heading = " ".join(re.sub(r"<[^>]+>", "", found["heading"]).split())
            return found[0]
        return f'{found["alt"]}Figure: {heading}"'

    return _HEADING_OR_PICTURE.sub(named, text)


def described(doctree: nodes.document) -> str:
    """Return the first sentences of a page, as many as a description has room for."""
    for paragraph in doctree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section | nodes.document):
            text = " ".join(paragraph.astext().split())
            if len(text) > 40:
                break
    else:
        return ""
    if len(text) <= DESCRIPTION:
        return text
    whole = re.match(rf".{{60,{DESCRIPTION - 1}}}[.!?](?= )", text)
    if whole:
        return whole[0]
    return text[: DESCRIPTION - 1].rpartition(" ")[0].rstrip(",;:") + "…"


def describe(context: Mapping[str, Any], about: About, pathto: Any) -> str:
    """Return the description, the card and the address of a page as tags for its head."""
    title = re.sub(r"<[^>]+>", "", str(context.get("title") or context["docstitle"]))
    title = html.unescape(title)
    text = context.get("pe_description") or about.title
    name = str(context["pagename"])
    card = f"{about.site}/{CARD}" if about.site else pathto(CARD, 1)
    found = {"description": text, "twitter:card": "summary_large_image"}
    graph = {
        "og:type": "article", "og:site_name": str(context["docstitle"]), "og:title": title,
        "og:description": text, "og:image": card,
        "og:image:alt": "Positional encodings, trained and measured: perplexity by length",
    }  # fmt: skip
    if about.site:
        graph["og:url"] = f"{about.site}/{name}.html"
    lines = [f'<meta name="{key}" content="{html.escape(v)}"/>' for key, v in found.items()]
    lines += [f'<meta property="{key}" content="{html.escape(v)}"/>' for key, v in graph.items()]
    if about.site:
        lines.append(f'<link rel="canonical" href="{html.escape(graph["og:url"])}"/>')
    return "\n".join(f"  {line}" for line in lines)


def footer(context: Mapping[str, Any], about: About) -> str:
    """Return licence, version, date, commit and repository, and how to cite the page."""
    title = html.unescape(re.sub(r"<[^>]+>", "", str(context.get("title") or about.title)))
    parts = [f"By {about.author}", f"pe {about.version}"]
    if about.commit:
        commit = f"commit <code>{about.commit[:12]}</code>"
        if about.repository:
            commit = f'<a href="{about.repository}/tree/{about.commit}">{commit}</a>'
        parts.append(f"{commit} of {about.date}")
    else:
        parts.append(about.date)
    licence = f"{about.licence} licence"
    if about.repository:
        licence = f'<a href="{about.repository}/blob/HEAD/LICENSE">{licence}</a>'
        parts.append(f'<a href="{about.repository}">Repository</a>')
    parts.append(licence)
    if about.site:  # the workflow that publishes the site prints it there
        parts.append(f'<a href="{about.site}/{PDF}">The guide as PDF</a>')
    address = f"{about.site}/{context['pagename']}.html" if about.site else about.repository
    entry = [
        ("author", f"{{{about.author}}}"),
        ("title", title),
        ("howpublished", "Positional encodings, trained and measured"),
        ("year", about.date[:4]),
        ("note", f"pe {about.version}" + (f", commit {about.commit[:12]}" if about.commit else "")),
        *([("url", address)] if address else []),
    ]
    fields = ",\n".join(f"  {key} = {{{value}}}" for key, value in entry)
    key = re.sub(r"[^a-z0-9]+", "-", str(context["pagename"]).lower())
    cite = html.escape(f"@misc{{pe-{key},\n{fields}\n}}")
    return (
        f'<p class="pe-about">{" · ".join(parts)}</p>\n'
        f'<details class="pe-cite"><summary>Cite this page</summary>\n'
        f'<pre tabindex="0">{cite}</pre></details>'
    )


def how_to_run(name: str, about: About) -> str:
    """Return the line below the title of a notebook that says where it can be run."""
    file = f"{name}.ipynb"
    source = html.escape(f"../_sources/{file}")
    links = [f'<a href="{source}" download>download the notebook</a>']
    if about.repository and about.repository.startswith("https://github.com/"):
        place = about.repository.removeprefix("https://github.com/")
        colab = f"https://colab.research.google.com/github/{place}/blob/HEAD/{file}"
        links.append(f'<a href="{colab}">open it in Colab</a>')
    return (
        f'<p class="pe-run-it">In a checkout: <code>jupyter lab {html.escape(file)}</code>, or '
        f"{' or '.join(links)}.</p>"
    )


def say(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Hand the templates what `mend` needs."""
    context["pe_about"] = app.pe_about  # type: ignore[attr-defined]
    meta = context.get("meta") or {}
    words = meta.get("description") if isinstance(meta, dict) else None
    context["pe_description"] = words or (described(doctree) if doctree is not None else "")


def keep_together(app: Sphinx, doctree: nodes.document) -> None:
    """Put a formula and the punctuation after it on one line."""
    for formula in list(doctree.findall(nodes.math)):
        parent, place = formula.parent, formula.parent.index(formula)
        after = parent[place + 1] if place + 1 < len(parent) else None
        if not isinstance(after, nodes.Text) or not (mark := PUNCTUATION.match(after)):
            continue
        rest = nodes.Text(after[mark.end() :])
        parent[place : place + 2] = [
            nodes.inline("", "", formula, nodes.Text(mark[0]), classes=["pe-together"]),
            *([rest] if rest else []),
        ]


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.connect("doctree-read", keep_together)
    app.pe_about = About.read()  # type: ignore[attr-defined]
    app.connect("html-page-context", say, priority=950)
