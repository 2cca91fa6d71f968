"""Compile the models of studies' first runs, with two steps each on text that Python carries.

    python warm.py STUDY[/RUN][:SEEDS]=PLACES[xGPUS] ...

The compiled code stays in the caches of the compilers, also if the program is killed. A model that
several GPUs train together has other code than on one, so it is compiled by so many.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from runner import plans, split

from pe.recipes.recipe import Recipe
from pe.training.processes import PROCESSES
from pe.training.start import SEARCHED

CODE = """
import json, os, sys, tempfile
import pe
from pe.runs import Run
recipe = pe.Recipe.from_dict(json.loads(sys.argv[1]))
with tempfile.TemporaryDirectory() as folder:
    pe.train(Run(os.path.join(folder, "warm", recipe.run_name()), recipe=recipe), quiet=True)
"""


def compile_one(recipe: Recipe, gpus: int) -> None:
    """Do two steps in a separate process, or in one for each of several GPUs."""
    options = {k: v for k, v in recipe.pe_options.items() if v != SEARCHED}
    short = dataclasses.replace(
        recipe, pe_options=options, corpus="stdlib", steps=2, warmup_steps=0, decay_steps=0,
        validate_every=0, keep_steps=(), start_from="", start_step=0, retrieval_share=0.0,
    )  # fmt: skip
    words = [sys.executable, "-c", CODE, json.dumps(short.to_dict())]
    environment = os.environ | {PROCESSES: str(gpus)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    reason = done.stderr[-300:] if done.returncode else ""
    print(recipe.pe, gpus, done.returncode, reason, flush=True)


def main() -> None:
    """Compile each encoding, window length and number of GPUs once, in the order of the plans.

    Runs that differ only in learning rates share their code: the optimizer is not compiled.
    """
    from pe.data import prepare

    first: dict[str, tuple[Recipe, int]] = {}
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if not words:
        raise SystemExit(__doc__)
    shares = split(words)
    gpus = {name: share.gpus for name, share in shares.items()}
    for name, plan in plans(list(gpus), mini="--mini" in sys.argv).items():
        for recipe in (planned.recipe for planned in plan if planned.recipe.steps):
            kind = recipe.pe, recipe.pe_options, recipe.context_length, recipe.batch_size
            first.setdefault(str((*kind, gpus[name])), (recipe, gpus[name]))
    jobs = list(first.values())
    prepare("stdlib", jobs[0][0].vocab_size)
    print("text is ready", flush=True)
    with ThreadPoolExecutor(int(os.environ.get("AT_ONCE", "3"))) as pool:
        list(pool.map(compile_one, *zip(*jobs, strict=True)))


if __name__ == "__main__":
    main()
