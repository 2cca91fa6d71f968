"""Draw README's picture from the reference study: ``python tools/readme_picture.py``.

Run it when the records of runs/demo change; a test compares the file with the records.
"""

from __future__ import annotations

import re
from pathlib import Path

from pe import figures, runs

STUDY = Path(__file__).resolve().parents[1] / "runs" / "demo"
PICTURE = STUDY / "perplexity.svg"


def picture() -> str:
    """The SVG, on white: a README is shown on dark pages too."""
    found = runs.find(STUDY.parent, STUDY.name)
    text = figures.svg(figures.perplexity_by_length(found))
    white = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return re.sub(r"(<svg\b[^>]*>)", rf"\1\n {white}", text, count=1)


if __name__ == "__main__":
    PICTURE.write_text(picture())
