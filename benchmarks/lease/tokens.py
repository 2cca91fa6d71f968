"""Move the tokens of a corpus from one machine into the cache of another.

    python tokens.py pack CACHE CORPUS VOCAB PARTS LEASE   here: compress and cut into parts
    python tokens.py place PARTS CORPUS VOCAB              there: join and unpack

A part is as large as one call can carry beside the tracked files and the folder LEASE. If the
tracked files have grown, existing parts that are too large are cut again. On the other machine the
tokens that `pe.data` finds are compared with those that were packed, including the tokenizer, and a
difference is an error before any training begins. The text itself is not moved. A folder of empty
files with the same names represents it. A named corpus, such as python-packages, needs no folder.
"""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pe.data.cache import cache_root, key_of, write_json
from pe.data.corpora import is_path, open_corpus
from pe.data.preparation import prepare
from pe.data.tokenizer import plan_tokenizer

TRANSFER = 64 * 2**20
"""Bytes that one call may send."""
MARGIN = 1_000_000


def room(lease: Path, parts: Path) -> int:
    """Return the bytes that one of ``parts`` may have beside what travels with each call.

    Raises:
        SystemExit: there are so few that parts would be tiny.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    tree = [Path(name) for name in listed.split("\0") if name]
    tree = [path for path in tree if not {lease, parts} & {*path.parents}]
    travelling = [*tree, *lease.rglob("*"), *Path("shared").rglob("*")]
    size = sum(path.stat().st_size for path in travelling if path.is_file())
    left = TRANSFER - MARGIN - size
    if left < 10 * MARGIN:
        raise SystemExit(f"only {left:,} bytes of a transfer are left beside {size:,} of the tree")
    return left


def pack(cache: str, corpus: str, vocab: str, parts: str, lease: str) -> None:
    """Pack the tokens of ``corpus``, from ``cache``, into ``parts``/0, 1 ..., and describe them."""
    folder = Path(parts)
    if not folder.exists():
        data = prepare(corpus, int(vocab), cache=cache)
        names = sorted(p.name for p in Path(corpus).iterdir()) if is_path(corpus) else []
        about = {"summary": data.summary(), "notes": data.notes, "files": names}
        compress([data.directory], folder, json.dumps(about), Path(lease))
    recut(folder, Path(lease))


def compress(sources: Sequence[Path], folder: Path, about: str, lease: Path) -> None:
    """Compress files and folders into one archive, and cut it into parts that fit."""
    left, new = room(lease, folder), folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)  # of a call that was cut off
    new.mkdir(parents=True)
    whole = new / "tokens.tar.xz"
    members = " ".join(f"-C {path.absolute().parent} {path.name}" for path in sources)
    subprocess.run(
        f"tar -cf - {members} | "
        f"xz -T0 --block-size=60MiB --lzma2=preset=6,lc=3,lp=1,pb=1 -c > {whole}",
        shell=True, check=True,
    )  # fmt: skip
    cut(new, whole.read_bytes(), about, left)
    whole.unlink()
    new.rename(folder)


def recut(folder: Path, lease: Path) -> None:
    """Cut the parts again if they have become too large for a call."""
    left, pieces = room(lease, folder), _pieces(folder)
    if max(path.stat().st_size for path in pieces) + MARGIN > left:
        content, new = b"".join(path.read_bytes() for path in pieces), folder.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)  # of a call that was cut off
        cut(new, content, (folder / "0" / "about.json").read_text(), left)
        for other in (folder / "0").iterdir():  # what else the first part carries
            if other.is_dir():
                shutil.copytree(other, new / "0" / other.name)
        shutil.rmtree(folder)
        new.rename(folder)
    print(f"{len(_pieces(folder))} parts; each call has room for {left:,} bytes of them")


def cut(folder: Path, content: bytes, about: str, left: int) -> None:
    """Write ``content`` in parts of fewer than ``left`` bytes; the first also has ``about``."""
    size = left - MARGIN
    for number in range(-(-len(content) // size)):
        part = folder / str(number)
        part.mkdir(parents=True, exist_ok=True)
        (part / f"tokens.{number}").write_bytes(content[number * size : (number + 1) * size])
    (folder / "0" / "about.json").write_text(about)


def _pieces(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/tokens.[0-9]*"), key=lambda path: int(path.suffix[1:]))


def run_step(steps: Mapping[str, Callable[..., None]], words: Sequence[str], usage: str) -> None:
    """Call the step that the first word names, with the other words as its arguments.

    Raises:
        SystemExit: there is no such step, or it takes other arguments; shows ``usage``.
    """
    try:
        step = steps[words[0]]
        inspect.signature(step).bind(*words[1:])
    except (IndexError, KeyError, TypeError):
        raise SystemExit(usage) from None
    step(*words[1:])


def join(folder: Path, where: Path) -> list[str]:
    """Join the parts in ``folder``, unpack them, and return the names of the sources."""
    whole = folder / "tokens.tar.xz"
    with whole.open("wb") as out:
        for part in sorted(folder.glob("tokens.[0-9]*"), key=lambda p: int(p.suffix[1:])):
            out.write(part.read_bytes())
    with tarfile.open(whole, "r:xz") as archive:  # no xz program is needed
        archive.extractall(where, filter="data")
        return [name for name in archive.getnames() if "/" not in name]


def place(parts: str, corpus: str, vocab: str) -> None:
    """Unpack parts from one folder into a cache entry that `prepare` finds for ``corpus``."""
    folder = Path(parts)
    about = json.loads((folder / "about.json").read_text())
    for name in about["files"]:
        Path(corpus).mkdir(exist_ok=True)
        (Path(corpus) / name).touch()
    root = cache_root()
    (root / "tokens").mkdir(exist_ok=True)
    made = root / "tokens" / join(folder, root / "tokens")[0]
    # The key names the version of tokenizers, which may be another one on this machine.
    fingerprint = about["summary"]["fingerprint"]
    made.rename(root / "tokens" / key_of(fingerprint, plan_tokenizer("bpe", int(vocab)).identity))
    source, budget = open_corpus(corpus)
    seen = key_of(source.identity(), budget.tokens, budget.documents)
    known = {"fingerprint": fingerprint, "notes": about["notes"]}
    write_json(root / "seen" / f"{seen}.json", known)
    there = prepare(corpus, int(vocab)).summary()
    print(json.dumps(there))
    if there != about["summary"]:
        raise SystemExit(f"these are not the tokens that were packed: {about['summary']}")


if __name__ == "__main__":
    run_step({"pack": pack, "place": place}, sys.argv[1:], __doc__)
