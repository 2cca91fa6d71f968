"""The ``pe`` command, also ``python -m pe``.

    pe check yarn -o factor=8.0          run the laws that an encoding's traits promise
    pe check my_module:MyEncoding
    pe study scaffold --dry-run          the runs of a study, and what they would take
    pe speed --minutes 14                speed and memory of every encoding on this machine
    pe explain config.json --length 65536   what a model does about positions; settings for longer

Imports no torch before a command needs it.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Positional encodings: check, train, measure.", no_args_is_help=True,
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process; returns the exit status."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="pe")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


@contextlib.contextmanager
def _one_line(command: str) -> Iterator[None]:
    """Wrong input, a RunError among it, ends the command with one line and status 2."""
    try:
        yield
    except ValueError as error:
        print(f"pe {command}: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from error


def option_value(text: str) -> tuple[str, Any]:
    """``key=value`` with a Python value, true or false, or a plain word."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"-o {text}: expected key=value")
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


@app.command()
def check(
    encoding: Annotated[str, typer.Argument(help="a name, names joined by +, or module:Class")],
    option: Annotated[
        list[str] | None, typer.Option("-o", "--option", metavar="KEY=VALUE", help="repeatable")
    ] = None,
    law: Annotated[
        list[str] | None,
        typer.Option("-l", "--law", metavar="NAME", help="run only these"),
    ] = None,
) -> None:
    """Run the laws that an encoding's traits promise.

    Status 0: all hold; 1: one is broken; 2: wrong input.
    """
    sys.path.insert(0, os.getcwd())  # a console script does not look for modules where it is called
    with _one_line("check"):
        from pe.conformance import check_laws

        report = check_laws(encoding, dict(map(option_value, option or [])), law or [])
    print(report)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def study(
    studies: Annotated[
        list[str], typer.Argument(help="studies/NAME.yaml by name, or a path; NAME:0,1: some seeds")
    ],
    mini: Annotated[bool, typer.Option("--mini", help="in miniature, for a CPU")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list runs and their cost")] = False,
    address: Annotated[
        str | None, typer.Option(help="a Dask scheduler or scheduler file; default: start workers")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="to start; default: one per GPU")] = None,
    retries: Annotated[int, typer.Option(help="for a run that fails")] = 1,
    notebooks: Annotated[bool, typer.Option(help="leave the executed page of each run")] = True,
) -> None:
    """Carry out studies, one after the other as one list, each run once.

    ``scaffold-seeds:0,1 extend scaffold-seeds`` leaves the other seeds to the end. Status 0: all
    runs are done; 1: some failed; 2: wrong input; 130: Ctrl-C.
    """
    from pe.study.devices import workers_here
    from pe.study.queue import StudyFailed, run_study
    from pe.study.several import load_plans
    from pe.study.show import live, text

    with _one_line("study"):
        plan = load_plans(studies, mini=mini)
        count = 1 if address else workers_here(workers)  # at an address: not known
        if dry_run:
            print(text(plan, workers=count))
            return
        try:
            run_study(
                plan, address=address, workers=workers, retries=retries, notebooks=notebooks,
                on_progress=live(plan, count),
            )  # fmt: skip
        except StudyFailed as error:
            print(f"{error}\n\n{text(plan)}", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            print("stopped; the same command goes on", file=sys.stderr)
            raise typer.Exit(130) from None
    print(text(plan))


@app.command()
def speed(
    recipe: Annotated[str | None, typer.Option(help="whose sizes the models have")] = None,
    tokens: Annotated[int | None, typer.Option(help="in a step: batch times length")] = None,
    lengths: Annotated[str | None, typer.Option(help="such as 1024,16384")] = None,
    modes: Annotated[str | None, typer.Option(help="of train,prefill,small")] = None,
    encodings: Annotated[str | None, typer.Option(help="such as rope,fire,rope+alibi")] = None,
    peers: Annotated[str | None, typer.Option(help="such as transformers/rope, or none")] = None,
    repeats: Annotated[int | None, typer.Option(help="how often each cell is timed")] = None,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile")] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="what the same bits twice cost")
    ] = False,
    name: Annotated[str, typer.Option(help="folder below runs/speed/")] = "",
    minutes: Annotated[float, typer.Option(help="no cell begins after so long; 0: no limit")] = 0.0,
    resume: Annotated[Path | None, typer.Option(help="a speed.json to go on with")] = None,
) -> None:
    """Measure speed and memory of encodings and of other libraries' models, in a checkout.

    What is not given is as the machine allows. The record, runs/speed/NAME/speed.json, is written
    after each cell, the most telling ones first. x-transformers is measured where it can be
    imported.
    """
    from pe.speed import rig
    from pe.speed.record import Settings, SpeedRun, default_name, speed_run

    with _one_line("speed"):
        settings: dict[str, Any] = {
            "recipe": recipe, "tokens": tokens, "modes": modes and _words(modes),
            "lengths": lengths and [int(word) for word in _words(lengths)],
            "encodings": encodings and _words(encodings),
            "peers": () if peers in ("", "none") else peers and _words(peers),
            "repeats": repeats, "compiled": compiled, "deterministic": deterministic or None,
        }  # fmt: skip
        given = {key: value for key, value in settings.items() if value is not None}
        measuring, start = rig("measure"), None
        if resume is None:
            chosen = rig("plan").settings(**given)
            run = speed_run(name or default_name(chosen.recipe))
            if run.exists():
                raise ValueError(f"{run.file} exists; --resume it, or give another --name")
        elif given:
            raise ValueError(f"--resume has the record's settings; leave out {', '.join(given)}")
        else:
            start = SpeedRun(resume.parent).read()
            run = speed_run(name or start["run"])
            chosen = Settings.from_dict(start["settings"])
        record = measuring.measure(
            run, chosen, minutes=minutes, start=start,
            on_row=lambda row, speed: print(measuring.line(row, speed), flush=True),
        )  # fmt: skip
    print(f"{record['status']}: {run.file}")


@app.command()
def explain(
    path: Annotated[Path, typer.Argument(help="a config.json, a folder with one, or a gguf file")],
    length: Annotated[
        int | None, typer.Option(min=1, help="tokens to be read; default: 4 × the training length")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="whose settings to print; default: the advised one")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="instead of plain text")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="everything as data")] = False,
    picture: Annotated[Path | None, typer.Option(help="where to write a figure")] = None,
) -> None:
    """Explain what each layer of a model does about positions, and what to set for longer texts.

    Reads a configuration or a gguf file's metadata: no weights, and no code of a checkpoint.
    """
    with _one_line("explain"):
        from pe.pretrained.explain import explain as explained
        from pe.pretrained.show import settings_of

        explanation = explained(path, length)
        if method is not None:
            print(settings_of(explanation, method))
        elif as_json:
            print(explanation.model_dump_json(indent=2))
        else:
            print(explanation.markdown() if markdown else explanation.text())
        if picture is not None:
            print(f"\n{explanation.save_figure(picture)}", file=sys.stderr)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
