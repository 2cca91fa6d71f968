"""Peak memory and time of preparing a large file, by format.

    python benchmarks/prepare_memory.py 200

writes files of 200 MB into a temporary folder (or ``--folder``). They contain the sources of the
packages of this Python, repeated as often as needed; each text begins with a number, so that none
is a duplicate. A separate process prepares each file, and a table shows its peak memory. The
smallest file, 1 MB, shows the memory of Python and its libraries alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

END = "<|endoftext|>"
FORMATS = {"text.txt": "", "separated.txt": END, "lines.jsonl": "", "rows.parquet": ""}
"""File -> the separator that it is read with."""
DOCUMENT = 4000


def documents(size: int) -> Iterator[str]:
    """Yield texts of about DOCUMENT characters, ``size`` bytes in all."""
    folder, written = Path(np.__file__).parents[1], 0
    for number, path in enumerate(itertools.cycle(sorted(folder.rglob("*.py")))):
        text = path.read_text(encoding="utf-8", errors="ignore")
        for start in range(0, len(text), DOCUMENT):
            piece = f"# {number} {start}\n{text[start : start + DOCUMENT]}\n"
            written += len(piece.encode())
            yield piece
            if written >= size:
                return


def write(path: Path, size: int) -> None:
    """Write the texts in the format that the file's name says."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema({"text": pa.string()})
        with pq.ParquetWriter(path, schema) as out:  # row groups of 64 MB, which are usual
            rows = documents(size)
            while group := list(itertools.islice(rows, 64_000_000 // DOCUMENT)):
                out.write_table(pa.table({"text": group}, schema))
        return
    with path.open("w", encoding="utf-8") as out:
        for text in documents(size):
            if path.suffix == ".jsonl":
                out.write(json.dumps({"text": text}) + "\n")
            else:
                out.write(text + FORMATS[path.name])


def prepared(path: str, separator: str, cache: str) -> None:
    """Prepare a file in this process and print seconds, peak bytes and training tokens."""
    from pe.data import prepare

    begun = time.perf_counter()
    data = prepare(path, 8192, cache=cache, separator=separator)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    print(json.dumps([round(time.perf_counter() - begun, 1), peak, len(data.train)]))


def main() -> None:
    """Write and prepare each format."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("megabytes", type=int, help="size of each file")
    parser.add_argument("--folder", help="where files are written (default: a temporary one)")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    options = parser.parse_args()
    print(f"{'file':<16}{'MB':>6}{'seconds':>10}{'peak MB':>10}{'tokens':>14}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name, megabytes in itertools.product(options.formats, (1, options.megabytes)):
            path = Path(folder, name)
            write(path, megabytes * 10**6)
            cache = Path(folder, f"{name}-{megabytes}")
            command = [sys.executable, __file__, "--child", str(path), FORMATS[name], str(cache)]
            result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            seconds, peak, tokens = json.loads(result.stdout.splitlines()[-1])
            print(f"{name:<16}{megabytes:>6}{seconds:>10}{peak // 10**6:>10}{tokens:>14,}")
            path.unlink()
            shutil.rmtree(cache)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        prepared(*sys.argv[2:])
    else:
        main()
