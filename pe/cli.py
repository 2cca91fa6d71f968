"""The ``pe`` command, also ``python -m pe``.

    pe list                              every encoding, its family and its paper
    pe train pope --steps 2000           train and evaluate one, without a notebook
    pe runs local                        list recorded runs
    pe check yarn -o factor=8.0          run the laws that an encoding's traits promise
    pe check my_module:MyEncoding
    pe study scaffold --dry-run          the runs of a study, and the time they would take
    pe speed --minutes 14                speed and memory of every encoding on this machine
    pe memory paper --processes 8        the GPU memory of a recipe, and options that reduce it
    pe explain config.json --length 65536   how a model encodes positions; settings for longer text

Torch is imported only by the commands that need it.
"""

from __future__ import annotations

import ast
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pe._command import DryRun, Mini, Until, checked
from pe._errors import StudyFailed, with_notes

app = typer.Typer(
    help="Train, measure and check positional encodings, and explain those of a model.",
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process, and return the exit status."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="pe")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def option_value(text: str) -> tuple[str, Any]:
    """Split ``key=value``; the value is a Python literal, true or false, or else plain text.

    Raises:
        ValueError: there is no key or no equals sign.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r}: expected KEY=VALUE, such as factor=8.0")
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def option_values(texts: Sequence[str] | None) -> dict[str, Any]:
    """Return the values of repeated ``key=value`` options (`option_value`).

    Raises:
        ValueError: one of them is no ``key=value``, or a key is given twice.
    """
    values: dict[str, Any] = {}
    for text in texts or []:
        key, value = option_value(text)
        if key in values:
            raise ValueError(f"{key} is given twice, {values[key]!r} and {value!r}; give it once")
        values[key] = value
    return values


def token_count(text: str | int) -> int:
    """Parse a number of tokens; ``128k`` and ``1m`` are multiples of 1,024 and 1,048,576.

    Raises:
        ValueError: it is something else; typer shows the message.
    """
    match = re.fullmatch("([1-9][0-9,_]*)([km]?)", str(text).lower())
    if match is None:
        raise ValueError(f"{text!r}: expected a number of tokens, such as 131072 or 128k")
    units = {"": 1, "k": 1024, "m": 1024**2}
    return int(match[1].replace(",", "").replace("_", "")) * units[match[2]]


def _print_table(columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    from tabulate import tabulate

    print(tabulate(lines, headers=columns, disable_numparse=True))


@app.command("list")
def list_() -> None:
    """List all encodings: what each acts on, and its paper.

    Then come the parts that are added to an encoding with a plus sign, such as windows, which limit
    the keys that a layer sees, and the layer schedules of released models.
    """
    from pe.encodings import FAMILIES, about, list_encodings
    from pe.encodings.core.presets import PRESETS
    from pe.encodings.core.registry import list_keys, lookup

    names = {name: about(name) for name in list_encodings()}
    order = sorted(names, key=lambda name: (FAMILIES.index(names[name].family), name))
    lines = [(name, names[name].title, names[name].family, names[name].paper) for name in order]
    for name in list_keys():
        place = "scale" if "logit_scale" in vars(lookup(name)) else "keys"
        lines.append((name, about(name).title, place, about(name).paper))
    _print_table(("name", "title", "acts on", "arXiv"), lines)
    print()
    _print_table(("schedule", "of"), [(name, p.model) for name, p in PRESETS.items()])


@app.command()
def train(
    encoding: Annotated[str, typer.Argument(help="a name, names joined by +, or module:Class")],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "-o", "--option", metavar="KEY=VALUE", help="an option of the encoding; repeatable"
        ),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(help="a named recipe, such as 164m; auto: demo on a CPU, tiny on a GPU"),
    ] = "auto",
    study: Annotated[str, typer.Option(help="folder of the record, below runs/")] = "local",
    seed: Annotated[int, typer.Option(help="draws initial weights and the order of text")] = 0,
    steps: Annotated[int | None, typer.Option(help="optimizer steps")] = None,
    corpus: Annotated[
        str | None, typer.Option(help="a corpus by name, or the path of your texts")
    ] = None,
    context_length: Annotated[int | None, typer.Option(help="tokens in a training window")] = None,
    batch_size: Annotated[int | None, typer.Option(help="windows in an optimizer step")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="peak learning rate")] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="any other recipe field; repeatable"),
    ] = None,
) -> None:
    """Train and evaluate a model, as notebooks/train.ipynb does.

    An option that is left out is taken from the recipe. The same command resumes a run that was
    stopped, and shows a run that is complete. Exit status 0: done; 1: the loss became infinite or
    NaN; 2: wrong input; 130: stopped.
    """
    sys.path.insert(0, os.getcwd())
    with checked("pe train"):
        from pe.notebooks.parameters import configure
        from pe.results import outcome
        from pe.study.planned import Planned

        run = configure(
            encoding, recipe, study, seed, steps, corpus, context_length, batch_size,
            learning_rate, option_values(option), option_values(override),
        )  # fmt: skip
        # These import torch. Wrong input was refused above, without waiting for it.
        from pe.evaluation.evaluate import evaluate
        from pe.training.metrics import NonFiniteLoss
        from pe.training.processes import Interrupted
        from pe.training.train import train as train_run

        try:
            evaluate(train_run(run))
        except (Interrupted, NonFiniteLoss) as error:
            print(f"pe train: {with_notes(error)}", file=sys.stderr)
            raise typer.Exit(130 if isinstance(error, Interrupted) else 1) from error
        print(f"{outcome.text([Planned(encoding, run.recipe, study)])}\n\n{run.directory}")


@app.command()
def runs(
    study: Annotated[str | None, typer.Argument(help="a folder below runs/; default: all")] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="also list failed runs, with the reasons")
    ] = False,
) -> None:
    """List the recorded runs with their losses and perplexities.

    ppl@4x is the perplexity at four times the training length.
    """
    with checked("pe runs"):
        from pe.runs import find, load

        table = load(study=study, failed=failed)
        at = [f"ppl@{n}x" for n in (1, 2, 4, 8, 16) if f"ppl@{n}x" in table]
        columns = ["study", "run", "status", "steps", "validation_loss", *at]
        lines = table[columns].astype(object).where(table[columns].notna(), None)
        _print_table(columns, [[_short(cell) for cell in line] for line in lines.to_numpy()])
        records = [run.record for run in find(study=study, failed=True)]
        reasons = [f"{r.study}/{r.run}: {r.reason}" for r in records if r.status == "failed"]
        if reasons and failed:
            print("", *reasons, sep="\n")
        elif reasons:
            print(f"\nFailed runs left out: {len(reasons)}. pe runs --failed lists them, and why.")


def _short(cell: object) -> object:
    return f"{cell:.4g}" if isinstance(cell, float) else cell


@app.command()
def check(
    encoding: Annotated[str, typer.Argument(help="a name, names joined by +, or module:Class")],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "-o", "--option", metavar="KEY=VALUE", help="an option of the encoding; repeatable"
        ),
    ] = None,
    law: Annotated[
        list[str] | None,
        typer.Option("-l", "--law", metavar="NAME", help="run only this law; repeatable"),
    ] = None,
) -> None:
    """Check an encoding by the laws that its traits promise.

    Exit status 0: all laws hold; 1: a law is broken; 2: wrong input.
    """
    sys.path.insert(0, os.getcwd())  # a console script does not look for modules where it is called
    with checked("pe check"):
        from pe.conformance import check_laws

        report = check_laws(encoding, option_values(option), law or [])
    print(report)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def study(
    studies: Annotated[
        list[str],
        typer.Argument(
            help="STUDY[/RUN][:SEEDS], such as scaffold/rope:0,1; STUDY may be the path of a YAML"
        ),
    ],
    mini: Mini = False,
    dry_run: DryRun = False,
    until: Until = math.inf,
    address: Annotated[
        str | None, typer.Option(help="a Dask scheduler or its file; default: start workers here")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="workers to start here; default: one per GPU")
    ] = None,
    retries: Annotated[int, typer.Option(min=0, help="how often a failed run is tried again")] = 1,
    notebooks: Annotated[bool, typer.Option(help="write the executed page of each run")] = True,
) -> None:
    """Carry out studies, in the given order.

    Each run is done once. So "scaffold-seeds:0,1 extend scaffold-seeds" does seeds 0 and 1, then
    the study extend, and then the other seeds. Everything is checked before the first run, and
    results are printed at the end. Exit status 0: all runs are done, or not begun because of
    --until; 1: some failed; 2: wrong input, with a line per mistake; 130: Ctrl-C.
    """
    sys.path.insert(0, os.getcwd())
    from pe.results import outcome
    from pe.study.devices import workers_here
    from pe.study.plan import load_plans
    from pe.study.queue import run_study
    from pe.study.show import live, memory_needed, text

    with checked("pe study"):
        plan = load_plans(studies, mini=mini, check=True)
        count = 1 if address else workers_here(workers)  # a cluster's number is not known here
        if dry_run:
            print(f"{text(plan, workers=count)}\n{memory_needed(plan)}".rstrip())
            return
        failure: StudyFailed | None = None
        try:
            run_study(
                plan, address=address, workers=workers, retries=retries, notebooks=notebooks,
                until=until, on_progress=live(plan, count),
            )  # fmt: skip
        except StudyFailed as error:
            failure = error
        print(outcome.text(plan).replace("<br>", " "), text(plan), sep="\n\n")
        if failure:
            raise failure


@app.command()
def speed(
    recipe: Annotated[
        str | None,
        typer.Option(help="the models have its sizes; default: demo on a CPU, tiny on a GPU"),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="tokens in a step: windows × length")] = None,
    lengths: Annotated[str | None, typer.Option(help="context lengths: 1024,16384")] = None,
    modes: Annotated[
        str | None, typer.Option(help="some of train,prefill,small; default: all three")
    ] = None,
    encodings: Annotated[str | None, typer.Option(help="such as rope,fire; default: all")] = None,
    peers: Annotated[
        str | None, typer.Option(help="other libraries' models, such as transformers/rope; or none")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="how often each step is timed")] = None,
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="default: on a GPU only")
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="use algorithms that give the same bits every time"),
    ] = False,
    name: Annotated[str | None, typer.Option(help="folder below runs/speed/")] = None,
    minutes: Annotated[
        float, typer.Option(min=0, help="after this time no measurement begins; 0: no limit")
    ] = 0.0,
) -> None:
    """Measure the speed and memory of encodings.

    Models of transformers are measured too, and those of x-transformers if it is installed. This
    needs a checkout of the repository. Defaults depend on the machine. The most informative
    measurements come first, and the record, runs/speed/NAME/speed.json, is written after each. The
    same command resumes an unfinished record. A command that names further encodings adds them.
    """
    sys.path.insert(0, os.getcwd())
    from pe.notebooks.parameters import configure_speed
    from pe.speed import rig

    options = {
        "recipe": recipe, "tokens": tokens, "lengths": lengths, "modes": modes,
        "encodings": encodings, "peers": peers, "repeats": repeats, "compiled": compiled,
        "deterministic": deterministic or None,
    }  # fmt: skip
    asked: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    with checked("pe speed"):
        run, measuring = configure_speed(name=name, **asked), rig("measure")
        record = measuring.measure(
            run, run.settings, minutes=minutes,
            on_row=lambda row, speed: print(measuring.line(row, speed), flush=True),
        )  # fmt: skip
    print(f"{record['status']}: {run.file}")


@app.command()
def memory(
    recipe: Annotated[str, typer.Argument(help="a named recipe, such as tiny, paper, 1200m")],
    processes: Annotated[
        int, typer.Option(min=1, help="processes that train one model together, one per GPU")
    ] = 1,
    gib: Annotated[
        float | None, typer.Option(help="memory of each GPU; default: that of this machine's GPU")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="a recipe field; repeatable"),
    ] = None,
) -> None:
    """Estimate the memory that training needs on each GPU.

    The table also shows options that need less and do not change results. Exit status 0: the recipe
    fits, as it is or with options; 1: it does not fit; 2: wrong input.
    """
    import dataclasses

    sys.path.insert(0, os.getcwd())
    with checked("pe memory"):
        from pe.recipes.named import recipe as named_recipe
        from pe.runs.parameters import other_fields
        from pe.training import memory as estimates
        from pe.training.check import divided

        chosen = named_recipe(recipe, **other_fields(option_values(override), ()))
        divided(chosen, processes)
        if gib is None:
            from pe.devices import gpu_memory

            gib = gpu_memory()
        if gib is None:
            raise ValueError("this machine has no GPU; say how much memory yours has: --gib 80")
        if not 0 < gib < math.inf:
            raise ValueError(f"--gib: expected the memory of a GPU, more than 0, got {gib:g}")
        lines: list[list[str]] = []
        fitting = False
        for changes in [{}, *estimates.options(chosen, processes)]:
            changed = dataclasses.replace(chosen, **changes)
            parts = estimates.estimate(changed, processes)
            fits = estimates.fits(changed, processes, gib)
            fitting |= fits
            numbers = [f"{part:.1f}" for part in (*parts, parts.total)]
            spelled = estimates.spelled(changes) or "as it is"
            lines.append([spelled, *numbers, "yes" if fits else "no"])
    heads = ("options", "state", "activations", "logits", "GiB in all", f"fits {gib:.0f} GiB")
    gpus = "1 GPU" if processes == 1 else f"{processes} GPUs"
    print(f"{recipe}: {estimates.parameters(chosen) / 1e6:,.0f} M parameters, {gpus}\n")
    _print_table(heads, lines)
    if not fitting:
        raise typer.Exit(1)


@app.command()
def explain(
    path: Annotated[Path, typer.Argument(help="a config.json, a folder with one, or a gguf file")],
    length: Annotated[
        int | None,
        typer.Option(
            parser=token_count,
            metavar="TOKENS",
            help="length of the texts, such as 131072 or 128k; default: 4 × the training length",
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="print only the settings of this method, such as pi")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="also write a figure to this path, such as explain.svg")
    ] = None,
) -> None:
    """Say what a model does about positions, and what to set.

    It explains each layer, what goes wrong in longer texts, and which settings reach them.

    Only a configuration or the metadata of a gguf file is read. Weights are not read, and code that
    comes with a checkpoint is not run.
    """
    with checked("pe explain"):
        from pe.pretrained.explain import explain as explained
        from pe.pretrained.show import settings_of

        if as_json and method is not None:
            raise ValueError(
                f"--json has no effect with --method {method}, which prints settings only; leave "
                "one out (the JSON has the settings of all methods)"
            )
        explanation = explained(path, length)
        if method is not None:
            print(settings_of(explanation, method))
        elif as_json:
            print(explanation.model_dump_json(indent=2))
        else:
            print(explanation)
        if picture is not None:
            print(f"\n{explanation.save_figure(picture)}", file=sys.stderr)
