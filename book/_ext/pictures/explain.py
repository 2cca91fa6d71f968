"""What `pe.explain` draws for the configuration on its page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import pe
from pictures.common import picture

PAGE = Path(__file__).parents[2] / "explain.md"


def configuration() -> dict[str, Any]:
    """The config.json that the page shows."""
    shown = re.search(
        r"^:caption: config\.json\n\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S
    )
    assert shown is not None
    read: dict[str, Any] = json.loads(shown[1])
    return read


@picture("explain-qwen3")
def draw() -> Figure:
    return pe.explain(configuration(), 131072).figure()
