"""Draw README's picture from the sweep of learning rates: ``python tools/readme_picture.py``.

Run it when the records of runs/rates change; a test compares the file with the records.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

from book_measured import SWEEP, places  # noqa: E402

from pe import figures, runs  # noqa: E402
from pe.figures.reach import reach  # noqa: E402
from pe.results.sweeps import at_common_rate  # noqa: E402

PICTURE = ROOT / "runs" / SWEEP / "reach.svg"


def picture() -> str:
    """The SVG, on white: a README is shown on dark pages too."""
    rows = at_common_rate(runs.find(ROOT / "runs", SWEEP))
    text = figures.svg(reach(rows, places(rows)))
    white = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return re.sub(r"(<svg\b[^>]*>)", rf"\1\n {white}", text, count=1)


if __name__ == "__main__":
    PICTURE.write_text(picture())
