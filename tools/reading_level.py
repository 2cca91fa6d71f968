"""Report how hard the pages are to read: ``python tools/reading_level.py``. It never fails.

    python tools/reading_level.py book/data.md README.md     # these pages (default: all)
    python tools/reading_level.py --since HEAD^              # pages changed since a commit

LIX is the number of words per sentence plus the percentage of words with more than six letters
(Björnsson 1968): about 40 for a newspaper, above 50 for an official text. Code, formulas, tables
and headings do not count. The longest sentence of each page is shown, so that you can divide it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "book/*.md", "book/methods", "book/comparisons")
# What follows the backticks of a block whose content is not prose: a language, or a directive.
NOT_PROSE = re.compile(r"[a-z]*$|\{(math|literalinclude|code-block|csv-table)\}")
END = re.compile(r"(?<!et al)(?<! [A-Z])[.!?]['\"”)*]*\s+(?=[^a-z])")


class Level(NamedTuple):
    """How hard a page is to read."""

    words: int
    words_per_sentence: float
    long_words: float
    longest: str

    def __str__(self) -> str:
        lix = self.words_per_sentence + 100 * self.long_words
        return f"{self.words:6} {self.words_per_sentence:6.1f} {self.long_words:6.0%} {lix:5.0f}"


def sentences(page: str) -> list[str]:
    """Return the sentences of a page in MyST Markdown, with ``0`` for each number from a record."""
    lines, code = [], ""  # the backticks that opened the code we are in
    for line in page.splitlines():
        fence = re.match(r"\s*(`{3,}|:{3,})(.*)", line)
        if code or fence:
            if fence and fence[2]:
                code = code or (
                    fence[1] if fence[1][0] == "`" and NOT_PROSE.match(fence[2]) else ""
                )
            elif fence and fence[1] == code:
                code = ""
            lines.append("")
        elif item := re.match(r"\s*(?:[-*:]|\d+\.)\s+(.*)", line):
            lines += ["", item[1]]
        elif not re.match(r"\s*(\||#|\(.*\)=$|:[\w-]+:)", line):
            lines.append(line)
    text = re.sub(r"\$\$.*?\$\$", "", "\n".join(lines), flags=re.DOTALL)
    text = re.sub(r"\$[^$]+\$|\{record[^`]*`[^`]*`|https?://\S+", "0", text)
    text = re.sub(r"\{[\w:-]+\}`([^`<]*)(<[^`]*>)?`", r"\1", text)
    text = re.sub(r"`[^`]*`", "0", text)
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [one for part in parts for one in END.split(part) if words(one)]


def words(text: str) -> list[str]:
    """Return the words of a text, without numbers."""
    return re.findall(r"[^\W\d_][\w'’-]*", text)


def level(page: str) -> Level:
    """Return the level of a page; zero if it has no sentence."""
    every = sentences(page)
    found = [word for one in every for word in words(one)]
    long = sum(len(word) > 6 for word in found)
    longest = max(every, key=lambda one: len(words(one)), default="")
    return Level(len(found), len(found) / max(len(every), 1), long / max(len(found), 1), longest)


def git(*arguments: str) -> str:
    """Return the output of git, or nothing if it fails: a commit may not have a page."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Report how hard the pages are to read.")
    parser.add_argument("pages", nargs="*", help="all pages of the guide, if none is named")
    parser.add_argument("--since", metavar="COMMIT", help="only changed pages, before and after")
    options = parser.parse_args()
    pages = options.pages or git("ls-files", *PAGES).split()
    if options.since:
        pages = git("diff", "--name-only", "--diff-filter=d", options.since, "--", *pages).split()
    print(f"{'page':34} words per s.   long   LIX   longest sentence")
    for page in pages:
        if options.since and (old := git("show", f"{options.since}:{page}")):
            print(f"{page:34}{level(old)}   (before)")
        new = level((ROOT / page).read_text("utf-8"))
        print(f"{page:34}{new}   {len(words(new.longest))} words: {new.longest[:50]}...")
