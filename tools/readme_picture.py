"""Draw README's picture from the study of every encoding: ``python tools/readme_picture.py``.

Run it when the records of runs/every change; a test compares the file with the records.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

from book_measured import places  # noqa: E402

from pe import figures, runs  # noqa: E402
from pe.figures.reach import reach  # noqa: E402
from pe.results.rows import rows  # noqa: E402

STUDY = "every"
PICTURE = ROOT / "runs" / STUDY / "reach.svg"


def picture() -> str:
    """Return the SVG on a white background, because a README is also shown on dark pages.

    It is the book's picture every-reach.
    """
    found = list(rows(STUDY, runs.find(ROOT / "runs", STUDY)))
    text = figures.svg(reach(found, places(found)))
    white = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return re.sub(r"(<svg\b[^>]*>)", rf"\1\n {white}", text, count=1)


if __name__ == "__main__":
    PICTURE.write_text(picture())
