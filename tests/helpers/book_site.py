"""Build the guide for tests: the whole of it once per session, small ones for single questions.

The whole guide is built by the user's command, in a tree copied as a checkout without symlinks
would have it (Windows' default): a symlink becomes a text file that holds its target. Small ones
are built in this process by the code behind that command, which saves the imports of each build.
Nothing here runs a notebook or asks a network.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "_config.yml", "_toc.yml", "CITATION.cff", "book", "pe", "notebooks", "runs", "studies",
)  # fmt: skip
MADE = {"_generated", "local", "checkpoint", "checkpoints", ".ipynb_checkpoints"}

SMALL_TOC = """\
format: jb-book
root: index
chapters:
  - file: measured
"""
SMALL_INDEX = "# A small book\n\nIt has {doc}`one page <measured>` and {record}`study.runs` runs.\n"
SMALL_PAGE = """\
# Measured

RoPE at twice its training length: {record}`rope.ppl@2x`, {record}`rope.ppl@2x / rope.ppl@1x`
times as much.
PoPE at the longest: {record}`pope.ppl@longest`.

```{study-table} demo
```

```{picture} perplexity-by-length
:alt: lines

Caption.
```

```{local-runs}
```
"""


def copy_without_symlinks(target: Path) -> None:
    """Copy what the book is made of, leaving out everything that is made by building or running.

    What Python has compiled comes along, with the times by which it knows that it is up to date.
    """
    for part in PARTS:
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
                    shutil.copy2(path, copy)


def small_tree(target: Path) -> Path:
    """Write a configuration and two pages without pictures, for the checkout's code to build."""
    for name in ("_config.yml", "book/logo.svg", "book/references.bib", "book/_toc.yml"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target / name)
    shutil.copytree(ROOT / "book" / "_static", target / "book" / "_static")
    for name in ("book/vendor", "studies", "runs"):
        (target / name).mkdir()
    (target / "_toc.yml").write_text(SMALL_TOC)
    (target / "book" / "index.md").write_text(SMALL_INDEX)
    (target / "book" / "measured.md").write_text(SMALL_PAGE)
    return target


class Built(NamedTuple):
    """How a build ended, and all that it printed."""

    returncode: int
    stdout: str


def plain(figure: Figure) -> str:
    """Draw a figure as the book does, with its parts where they are: their layout takes longer."""
    from pe import figures

    figure.set_layout_engine("none")
    return figures.svg(figure)


def build_small(tree: Path, strict: bool = True) -> Built:
    """Build a `small_tree`; a strict build takes warnings for errors, as ``-W -n`` does."""
    import book_pictures
    import bookext
    from jupyter_book.sphinx import build_sphinx

    from pe import figures
    from pe.study import reading

    gc.enable()  # bookext turns it off
    gc.collect()  # an extension of Sphinx fails at what an earlier build has left behind
    gc.freeze()  # and it looks at every object that is not frozen
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bookext, "ROOT", tree)
        patch.setattr(bookext, "BOOK", tree / "book")
        patch.setattr(reading, "FOLDER", tree / "studies")
        patch.setitem(sys.modules, "pictures", SimpleNamespace(PICTURES={}))
        patch.setattr(book_pictures, "figures", SimpleNamespace(**vars(figures) | {"svg": plain}))
        patch.setenv("PE_RUNS", str(tree / "runs"))
        patch.chdir(tree)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = build_sphinx(
                tree / "book", tree / "_build" / "html", noconfig=True,
                path_config=tree / "_config.yml", warningiserror=strict, keep_going=strict,
                confoverrides={"latex_individualpages": False, "nitpicky": strict},
            )  # fmt: skip
    code = status if isinstance(status, int) else 1
    return Built(code, re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()))


def build(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `jupyter-book build book` at the root of a tree, exactly as a reader types it."""
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
    """Return the words of a page with single spaces."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page.read_text("utf-8"), "html.parser")
    article = soup.find("article") or soup
    return " ".join(article.get_text(" ").split())


def listed() -> list[str]:
    """Return every file that the table of contents names."""
    import yaml

    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    found = [toc["root"]]

    def walk(entries: list[dict[str, object]]) -> None:
        for entry in entries:
            if "file" in entry:
                found.append(str(entry["file"]))
            walk(entry.get("sections", []))  # type: ignore[arg-type]

    for part in toc["parts"]:
        walk(part["chapters"])
    return found
