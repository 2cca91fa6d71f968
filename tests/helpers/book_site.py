"""Build the guide for tests: the whole of it once a session, small ones for single questions.

Trees are copied as a checkout without symlinks would have them (Windows' default): a symlink
becomes a text file that holds its target. Nothing here runs a notebook or asks a network.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("_config.yml", "_toc.yml", "book", "pe", "notebooks", "runs", "studies")
MADE = {"_generated", "__pycache__", "local", "checkpoint", "checkpoints", ".ipynb_checkpoints"}

SMALL_TOC = """\
format: jb-book
root: index
chapters:
  - file: measured
    sections:
      - glob: runs/*/*/train
"""
SMALL_INDEX = "# A small book\n\nIt has {doc}`one page <measured>` and {record}`study.runs` runs.\n"
SMALL_PAGE = """\
# Measured

RoPE at twice its training length: {record}`rope.ppl@2x`, {record}`rope.ppl@2x / rope.ppl@1x`
times as much.
Lowest at the longest: {record}`best.ppl@longest`.

```{results} demo
```

```{picture} perplexity-by-length
:alt: lines

Caption.
```

```{local-runs}
```
"""


def copy_without_symlinks(target: Path, parts: tuple[str, ...] = PARTS) -> Path:
    """Copy what the book is made of, leaving out everything that is made by building or running."""
    for part in parts:
        source = ROOT / part
        if not source.is_dir():
            shutil.copyfile(source, target / part)
            continue
        for folder, names, files in os.walk(source):
            here = Path(folder)
            mirrored = here == ROOT / "book"
            names[:] = [
                name
                for name in names
                if name not in MADE and not (mirrored and name in ("runs", "notebooks"))
            ]
            (target / here.relative_to(ROOT)).mkdir(parents=True, exist_ok=True)
            for name in files:
                path, copy = here / name, target / here.relative_to(ROOT) / name
                if path.is_symlink():
                    copy.write_text(os.readlink(path))
                else:
                    shutil.copyfile(path, copy)
    return target


def small_tree(target: Path) -> Path:
    """The extension and the configuration with two pages of their own and no pictures to draw."""
    copy_without_symlinks(target, ("_config.yml", "pe", "book/_ext", "book/_static", "book/vendor"))
    book = target / "book"
    for name in ("_toc.yml", "logo.svg", "references.bib"):
        shutil.copyfile(ROOT / "book" / name, book / name)
    (target / "notebooks").mkdir()  # what tells the package where its checkout is
    (target / "_toc.yml").write_text(SMALL_TOC)
    (book / "index.md").write_text(SMALL_INDEX)
    (book / "measured.md").write_text(SMALL_PAGE)
    shutil.rmtree(book / "_ext" / "pictures")
    (book / "_ext" / "pictures.py").write_text("PICTURES = {}\n")
    return target


def build(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`jupyter-book build book` at the root of a tree, exactly as a reader types it."""
    environment = {key: value for key, value in os.environ.items() if key != "PE_RUNS"}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment.pop("PYTHONPATH", None)  # the tree's own package, not the tested checkout's
    return subprocess.run(
        ["jupyter-book", "build", "book", *options],
        cwd=tree, env=environment, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


STRICT = ("-W", "--keep-going", "-n")


def whole_site(shared: Path) -> tuple[Path, int, str]:
    """Build the whole guide once for all test processes; (tree, exit status, output)."""
    tree, log, status = shared / "guide", shared / "guide.log", shared / "guide.status"
    with open(shared / "guide.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not status.exists():
            tree.mkdir()
            copy_without_symlinks(tree)
            result = build(tree, *STRICT)
            log.write_text(result.stdout)
            status.write_text(str(result.returncode))
    return tree, int(status.read_text()), log.read_text()


def text(page: Path) -> str:
    """A page's words, spaces collapsed."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page.read_text("utf-8"), "html.parser")
    article = soup.find("article") or soup
    return " ".join(article.get_text(" ").split())
