"""What importing the encodings costs beyond torch: `python benchmarks/import_time.py`.

Each number is the time of the import statement in seconds, after torch was imported: the median
over several new interpreters.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

STATEMENTS = {
    "import pe": "import pe",
    "import pe.encodings": "import pe.encodings",
    "pe.encodings and every encoding": "import pe.encodings; pe.encodings.list_encodings()",
}
CODE = """
import time, torch
start = time.perf_counter()
{statement}
print(time.perf_counter() - start)
"""


def seconds(statement: str, rounds: int) -> float:
    runs = [
        subprocess.run(
            [sys.executable, "-c", CODE.format(statement=statement)],
            capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(rounds)
    ]  # fmt: skip
    return statistics.median(float(run) for run in runs)


def main(rounds: int = 9) -> None:
    found = {name: round(seconds(statement, rounds), 4) for name, statement in STATEMENTS.items()}
    from pe.runs.provenance import code, hardware, now, versions

    report = {
        "benchmark": "import_time", "created": now(), "rounds": rounds, "code": code(),
        "hardware": hardware(), "versions": versions(), "seconds": found,
    }  # fmt: skip
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
