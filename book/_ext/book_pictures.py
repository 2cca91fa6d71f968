"""Draw the book's pictures and the figures of its records to book/_generated/*.svg, in pairs.

Each picture is drawn once; its dark twin is the same SVG with the inks swapped (`pe.figures`).
A picture is drawn again only when what it is made of changed: its code, or its records.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from book_mirror import write
from book_studies import FILES, LOCAL, Snapshot, Studies
from matplotlib.figure import Figure
from sphinx.errors import ExtensionError

from pe import figures
from pe.figures import extension as figures_extension
from pe.figures import retrieval as figures_retrieval
from pe.figures import study as figures_study
from pe.results import extensions, finetuned
from pe.results import rows as results

TWINS = ("", "-dark")
Figures = dict[str, tuple[list[Snapshot] | list[Path], Callable[[], Figure]]]
"""Name -> what a figure is made of, runs or other files, and how to draw it."""
_FIGURES: dict[str, Callable[..., Figure]] = {
    "perplexity-by-length": figures.perplexity_by_length,
    "loss-curves": figures.loss_curves,
    "loss-by-position": figures.loss_by_position,
}


def record_figures(studies: Studies) -> Figures:
    """Return the figures of whole studies.

    The reference study's names are bare, the reader's own begin with ``local-``.
    """
    found: Figures = {}
    for study, prefix in ((studies.reference, ""), (LOCAL, "local-")):
        runs = studies.runs.get(study)
        if not runs:
            continue
        for name, figure in _FIGURES.items():
            found[prefix + name] = (runs, partial(figure, runs))
    for study, runs in studies.runs.items():
        if study not in (studies.reference, LOCAL) and results.planned(study):
            found |= _study_figures(studies, study, runs)
    return found


def _study_figures(studies: Studies, study: str, runs: list[Snapshot]) -> Figures:
    """Return the figures of a study with a YAML, and those of its extended runs."""
    rows = list(studies.rows(study).values())
    found: Figures = {
        f"{study}-perplexity": (runs, partial(figures_study.perplexity, rows)),
        f"{study}-training": (runs, partial(figures_study.training, rows)),
        f"{study}-by-position": (runs, partial(figures_study.by_position, rows)),
    }
    asked = [row for row in rows if (row.runs[0].evaluation() or {}).get("retrieval")]
    of_asked = [run for run in runs if (run.evaluation() or {}).get("retrieval")]
    for task in ("needle", "passkey"):
        if asked:
            draw_it = partial(figures_retrieval.retrieval, asked, task)
            found[f"{study}-{task}"] = (of_asked, draw_it)
    evaluated = [run.evaluation() or {} for run in runs]
    tasks = {
        task for entry in evaluated for task in (entry.get("needles") or {"tasks": ()})["tasks"]
    }
    for task in sorted(tasks):
        found[f"{study}-{task}"] = runs, partial(figures_study.answered, rows, task)
    tuned = finetuned.fine_tuned(rows)
    if tuned and any(one.row.label == finetuned.CONTROL for one in tuned):
        drawn = {run.name for row in tuned for run in row.row.runs}
        made_of = [run for run in runs if run.name in drawn]
        found[f"{study}-fine-tuned"] = (made_of, partial(figures_extension.trained_on, tuned))
    for row in rows:
        run = row.runs[0]
        record = getattr(run, "extended", None)
        if record is None:
            continue
        length, base = run.read()["recipe"]["context_length"], extensions.trained(run)
        made_of = [r for r in runs if r.name == run.name]
        draw_it = partial(figures_extension.by_length, record, length, base)
        found[f"{study}-{row.label}-extension-by-length"] = made_of, draw_it
    return found


def shown(book: Path, figures: Figures) -> Figures:
    """Return the figures that a page shows, and those of the reader's own runs."""
    pages = [path.read_text("utf-8") for path in book.rglob("*.md") if "runs" not in path.parts]
    names = set(re.findall(r"(?:\{picture\}|:picture:) (\S+)", "\n".join(pages)))
    return {n: figure for n, figure in figures.items() if n in names or n.startswith(f"{LOCAL}-")}


def draw(root: Path, book: Path, wanted: Figures) -> None:
    """Bring book/_generated up to date and remove what is no longer asked for."""
    target = book / "_generated"
    stamps_file = target / "pictures.json"
    old = json.loads(stamps_file.read_text()) if stamps_file.exists() else {}
    parts = ("figures", "results", "speed")
    modules = [path for part in parts for path in (root / "pe" / part).glob("*.py")]
    modules += [root / "pe" / "study" / "plan.py", *(root / "studies").glob("*.yaml")]
    look = _hash(sorted(modules))
    stamps: dict[str, str] = {}
    for name, (runs, function) in wanted.items():
        stamps[name] = look + _hash(path for one in runs for path in _files(one))
        if stamps[name] != old.get(name) or not _drawn(target, name):
            _draw(target, name, function)
    encodings = (root / "pe" / "encodings").rglob("*.py")
    drawn_from = [*(book / "_ext" / "pictures").glob("*.py"), *(book / "tables").glob("*.yaml")]
    code = look + _hash([*sorted(drawn_from), *sorted(encodings)])
    explanatory = [name for name, stamp in old.items() if stamp == code]
    if not explanatory or not all(_drawn(target, name) for name in explanatory):
        from pictures import PICTURES

        explanatory = list(PICTURES)
        for name, function in PICTURES.items():
            _draw(target, name, function)
    stamps |= dict.fromkeys(explanatory, code)
    write(stamps_file, json.dumps(stamps, indent=1, sort_keys=True) + "\n")
    kept = {f"{name}{twin}.svg" for name in stamps for twin in TWINS}
    for path in target.glob("*.svg"):
        if path.name not in kept:
            path.unlink()


def _files(one: Snapshot | Path) -> list[Path]:
    return [one] if isinstance(one, Path) else [one.directory / file for file in FILES]


def _drawn(target: Path, name: str) -> bool:
    return all((target / f"{name}{twin}.svg").exists() for twin in TWINS)


def _draw(target: Path, name: str, function: Callable[[], Figure]) -> None:
    try:
        with figures.style():
            light = figures.svg(function())
    except Exception as error:
        raise ExtensionError(f"picture {name!r} could not be drawn: {error}") from error
    for twin, text in zip(TWINS, (light, figures.darken(light)), strict=True):
        write(target / f"{name}{twin}.svg", text)


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:16]
