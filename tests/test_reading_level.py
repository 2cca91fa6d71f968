"""The report on how hard pages are to read: what counts as a sentence, and that it never fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "reading_level.py"

PAGE = """\
# A heading of no account

```{picture} order
:alt: Not read.

One caption. It has {record}`rope.ppl@1x` words.
```

```python
this_is = "no sentence. At all."
```

| a table | is not read |

- First item without a full stop
- See {doc}`the other page <other>`, where $x. Y$ is
  derived.

Vaswani et al. (arXiv:1706.03762) say so.
"""


def tool() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "reading_level", "__file__": str(TOOL)}
    exec(compile(TOOL.read_text(), TOOL.name, "exec"), names)
    return names


def test_code_tables_formulas_and_headings_are_not_read() -> None:
    assert tool()["sentences"](PAGE) == [
        "One caption",
        "It has 0 words.",
        "First item without a full stop",
        "See the other page , where 0 is derived.",
        "Vaswani et al. (arXiv:1706.03762) say so.",
    ]


def test_longer_sentences_and_longer_words_are_a_higher_level() -> None:
    level = tool()["level"]
    short = level("We turn keys. We turn queries.")
    assert short[:3] == (6, 3.0, 1 / 6)
    assert short.longest == "We turn keys"
    assert level("We turn keys and we turn queries.").words_per_sentence == 7
    assert level("Rotations transform representations.").long_words == 1
    assert level("```python\nx = 1\n```\n").words == 0


def test_it_reports_and_does_not_fail_where_nothing_can_be_compared() -> None:
    command = [sys.executable, str(TOOL), "--since", "no-such-commit"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith("page")
