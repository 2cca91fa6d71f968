"""The look of every figure: colours, markers, SVG, dark twins, captions.

An encoding has the same colour and marker everywhere. Backgrounds are transparent, and colours have
a contrast of at least 3:1 on white and on the book's dark page; `darken` replaces the others. Text
in an SVG stays text, and the same records give the same bytes. No pyplot state is used, so figures
can be made in any thread and any kernel. Imports no torch.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG, RendererSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from pe.results.quantities import RunLike
from pe.results.rows import grouped

INK, FAINT, GRID = "#24292f", "#6e7781", "#d0d7de"
"""Text and axes; secondary text; grid lines. The only colours that change on a dark page."""
_ON_DARK = {INK: "#e6edf3", FAINT: "#9aa4af", GRID: "#3a424c"}

MAX_RUNS_IN_CAPTION = 15
"""The most runs that a caption names; more are counted by study."""

COLOURS = (
    "#8f8f8f", "#3f8fd8", "#d9641e", "#d03060", "#159570", "#9a63c9", "#b8860b", "#3a94a8",
    "#a0694b", "#7a8f1f",
)  # fmt: skip
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "h", "d", "p")
_COLOUR_SEED, _MARKER_SEED = (2626178, 10), (1534296, 14)
"""A look follows from a hash of the encoding's name and a number: the number, and the byte of the
hash that is used. So a new encoding does not change the look of others. The numbers were searched
for, such that no two encodings of the registry have the same colour and marker; NoPE, RoPE, PoPE
and YaRN have the colours that colour-blind readers tell apart best; and RoPE and the transforms of
its frequencies have different colours."""

SEQUENTIAL = LinearSegmentedColormap.from_list("pe_sequential", ["#2f7fc400", "#2f7fc4ff"])
"""From nothing to blue. It reads on both backgrounds because its zero is transparent."""
DIVERGING = LinearSegmentedColormap.from_list(
    "pe_diverging", ["#2f7fc4ff", "#2f7fc400", "#d9541e00", "#d9541eff"]
)
"""Blue for negative, orange for positive, transparent in the middle."""


def colour(pe: str) -> str:
    """Return the encoding's colour. A name has the same colour in every process."""
    return COLOURS[_hash(pe, *_COLOUR_SEED) % len(COLOURS)]


def marker(pe: str) -> str:
    """Return the encoding's marker, so that no figure depends on colour alone."""
    return MARKERS[_hash(pe, *_MARKER_SEED) % len(MARKERS)]


def _hash(pe: str, seed: int, byte: int) -> int:
    return hashlib.sha256(f"{seed} {pe}".encode()).digest()[byte]


@contextmanager
def style() -> Iterator[None]:
    """Apply the look of every figure: transparent, text as text, deterministic SVG."""
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "pe",
        "font.family": "sans-serif",
        "font.size": 10.5,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.frameon": False,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titley": 1.0,  # otherwise each layout measures all labels to look for one at the top
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.5,
    }
    with mpl.rc_context(settings):
        yield


class _Canvas(FigureCanvasSVG):
    """Measures the texts of every figure by the same renderer, which remembers their sizes.

    Otherwise matplotlib makes a renderer for each layout, and parses its formulas once more.
    """

    measuring = RendererSVG(1, 1, io.StringIO())

    def get_renderer(self) -> RendererSVG:
        """Return the renderer, which a layout takes from here if a canvas has this method."""
        return self.measuring


_FONTS = re.compile(r"font-family: 'DejaVu Sans', [^;\"]*")
_UNROTATED = re.compile(r' transform="rotate\(-?0 [^"]*\)"')


def svg(figure: Figure) -> str:
    """Return the figure as SVG text without dates. Equal figures give equal text."""
    out = io.StringIO()
    canvas, dpi, paper = figure.canvas, figure.dpi, figure.get_facecolor()
    try:
        with style():
            figure.set_facecolor("none")
            # `savefig` would draw twice, the first time for the layout alone.
            _Canvas(figure).print_svg(out, metadata={"Date": None, "Creator": None})
    finally:
        figure.set_canvas(canvas)
        figure.set(dpi=dpi, facecolor=paper)
    # Each text repeats matplotlib's own list of fonts and a rotation by nothing.
    text = _FONTS.sub("font-family: Verdana, Arial, sans-serif", out.getvalue())
    text = _UNROTATED.sub("", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def darken(text: str) -> str:
    """Make the SVG for a dark page: `INK`, `FAINT` and `GRID` become light."""
    for light, dark in _ON_DARK.items():
        text = text.replace(light, dark)
    return text


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as SVG; the file is left alone when its bytes would not change.

    Raises:
        ValueError: the name has the ending of another format.
    """
    target = Path(path)
    if target.suffix not in ("", ".svg"):
        raise ValueError(
            f"{target}: figures are written as SVG; give a name that ends in .svg, or write other "
            "formats by figure.savefig(path)"
        )
    data = svg(figure).encode()
    if not target.exists() or target.read_bytes() != data:
        target.write_bytes(data)
    return target


def caption(runs: Sequence[RunLike]) -> str:
    """Say what a figure is made of: ``Runs: demo/nope-s0-1a2b3c4d, rope-s0-...; tiny/...``.

    More than `MAX_RUNS_IN_CAPTION` runs are counted by study: ``Runs: 30 of scaffold-seeds``.
    """
    studies: dict[str, list[str]] = {}
    for run in (run for row in grouped(runs) for run in row.runs):
        studies.setdefault(run.study, []).append(run.name)
    if sum(map(len, studies.values())) > MAX_RUNS_IN_CAPTION:
        return "Runs: " + ", ".join(f"{len(names)} of {study}" for study, names in studies.items())
    return "Runs: " + "; ".join(f"{study}/{', '.join(names)}" for study, names in studies.items())
