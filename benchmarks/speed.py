"""Speed and memory of every encoding, and of other libraries' models, beside each other.

    python benchmarks/speed.py                              # all that this machine can
    python benchmarks/speed.py --minutes 14 --name h100     # stops in time; what is left is said
    python benchmarks/speed.py --helpers 4 --minutes 9 ...  # 4 processes compile ahead of it
    python benchmarks/speed.py --resume runs/speed/h100/speed.json --minutes 14
    CUDA_VISIBLE_DEVICES=1 python benchmarks/speed.py --compile-only --helpers 4 --name h100
    python benchmarks/speed.py --join h100-a,h100-b --name h100    # parts of two cards, one record
    python benchmarks/speed.py --encodings rope,fire --lengths 1024,4096 --modes train --peers ""
    python benchmarks/speed.py --recipe paper --tokens 32768 --lengths 1024 --modes train \\
        --encodings rope --peers "" --name h100-paper

On a GPU: recipe tiny, 65,536 tokens a step, lengths 1,024 to 32,768, bfloat16 autocast, compiled.
On a CPU: recipe demo, 2,048 tokens, lengths 256 and 512, not compiled, two repeats. The most
telling cells come first (pe.speed.plan). The record, runs/speed/<name>/speed.json ($PE_RUNS moves
runs/), is written after each cell. A cell that cannot be measured says why: out of memory, or a
refusal of the package. Any other error ends the command; --resume then passes over that cell.
x-transformers is measured where it can be imported, for example from a folder of its own:

    pip install --target xt --no-deps x-transformers einops einx loguru frozendict PoPE-pytorch \\
        torch-einops-utils
    PYTHONPATH=xt python benchmarks/speed.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pe.runs import RunError
from pe.speed.join import join
from pe.speed.measure import compile_ahead, line, measure
from pe.speed.plan import MODES, PEERS, Settings, settings
from pe.speed.record import SpeedRun, default_name, speed_run


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--recipe", help="sizes of the model (tiny on a GPU, demo on a CPU)")
    made.add_argument("--tokens", type=int, help="tokens in a step: batch times length")
    made.add_argument("--lengths", type=numbers, help="such as 1024,16384")
    made.add_argument("--modes", type=words, help=f"of {','.join(MODES)}")
    made.add_argument("--encodings", type=words, help="such as rope,fire,rope+alibi (all)")
    made.add_argument("--peers", type=words, help=f'of {",".join(PEERS)}; "" for none')
    made.add_argument("--repeats", type=int, help="how often a cell is timed")
    made.add_argument("--compile", choices=("on", "off"), help="torch.compile (on a GPU)")
    made.add_argument(
        "--deterministic",
        action="store_true",
        default=None,
        help="with torch's deterministic algorithms: what the same bits twice cost",
    )
    made.add_argument("--name", help="folder below runs/speed/ (the machine's name and recipe)")
    made.add_argument("--minutes", type=float, default=0.0, help="no cell begins after so long")
    made.add_argument(
        "--helpers", type=int, default=0, help="processes that compile ahead, each with its memory"
    )
    made.add_argument(
        "--compile-only",
        action="store_true",
        help="measure nothing: fill torch's cache for a process that measures on another card",
    )
    made.add_argument("--resume", type=Path, help="a speed.json to go on with")
    made.add_argument(
        "--join", type=words, help="names of records that cards of one machine made side by side"
    )
    return made


def plan(options: argparse.Namespace) -> tuple[SpeedRun, Settings, dict | None]:
    given = {
        key: getattr(options, key)
        for key in (
            "recipe",
            "tokens",
            "lengths",
            "modes",
            "encodings",
            "peers",
            "repeats",
            "deterministic",
        )
        if getattr(options, key) is not None
    }
    if options.compile:
        given["compiled"] = options.compile == "on"
    if options.resume is None:
        chosen = settings(**given)
        run = speed_run(options.name or default_name(chosen.recipe))
        if run.exists():
            raise ValueError(f"{run.file} exists; --resume it, or give another --name")
        return run, chosen, None
    if given:
        raise ValueError(
            f"--resume goes on with the record's settings; leave out {', '.join(given)}"
        )
    start = SpeedRun(options.resume.parent).read()
    return speed_run(options.name or start["run"]), Settings.from_dict(start["settings"]), start


def joined(options: argparse.Namespace) -> int:
    others = [key for key, value in vars(options).items() if value and key not in ("join", "name")]
    if others or not options.name:
        raise ValueError(
            "--join takes --name, and no setting: they are those of the parts"
            + (f"; leave out {', '.join(others)}" if others else "")
        )
    run = speed_run(options.name)
    record = join(run, [speed_run(name) for name in options.join])
    print(f"{record['status']}: {run.file}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    options = parser().parse_args(argv)
    try:
        if options.join:
            return joined(options)
        run, chosen, start = plan(options)
    except (ValueError, RunError) as error:
        print(f"speed.py: {error}", file=sys.stderr)
        return 2
    if options.compile_only:
        helpers = options.helpers or 1
        compile_ahead(run, chosen, helpers, options.minutes, lambda text: print(text, flush=True))
        return 0
    try:
        record = measure(
            run,
            chosen,
            minutes=options.minutes,
            start=start,
            processes=options.helpers,
            tell=lambda text: print(text, flush=True),
            show=lambda row, speed: print(line(row, speed), flush=True),
        )
    except RunError as error:
        print(f"speed.py: {error}", file=sys.stderr)
        return 2
    print(f"{record['status']}: {run.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
