"""The parts of a run's page: each function takes a run and returns something that Jupyter displays.

The functions read records. Paths are shown relative to the working folder or to ``$PE_RUNS``, so
that an executed notebook does not reveal the machine that it was executed on.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe import runs as records
from pe.results import markdown, outcome, quantities
from pe.results.rows import NO_EFFECT, grouped
from pe.runs import Folder, Run, RunError
from pe.study.devices import wait_for_device
from pe.training.progress import duration
from pe.training.start import parent_of

if TYPE_CHECKING:
    from IPython.display import SVG, Markdown
    from matplotlib.figure import Figure

    from pe.recipes.recipe import Recipe
REFERENCE = "demo"
"""The study that is committed with the code."""

# Fields in which runs may differ and still be drawn in one figure.
_FREE = ("pe", "pe_options", "seed", *NO_EFFECT)


def shown(run: Folder) -> str:
    """Write ``runs/local/pope-s0-1a2b3c4d``, or ``$PE_RUNS/local/...`` for runs elsewhere."""
    here = Path.cwd()
    if run.directory.is_relative_to(here):
        return run.directory.relative_to(here).as_posix()
    return f"$PE_RUNS/{run.study}/{run.name}"


def plan(run: Run) -> Markdown:
    """Show what will be trained: a table, and the formula of each encoding in the sum.

    If layers differ or hide keys, a picture of the keys that each layer sees is displayed first.
    A run of a study waits here until no other run uses its device. Its imports are done by then.
    """
    wait_for_device()
    r = run.recipe
    options = ", ".join(f"{key} {value}" for key, value in r.pe_options.items())
    heads = f"{r.num_attention_heads} head" + ("s" if r.num_attention_heads > 1 else "")
    if r.num_key_value_heads != r.num_attention_heads:
        heads += f" ({r.num_key_value_heads} for keys and values)"
    layers = f"{r.num_hidden_layers} layer" + ("s" if r.num_hidden_layers > 1 else "")
    rows = {"encoding": quantities.label(r.pe) + (f" with {options}" if options else "")}
    if r.start_from:
        what = "weights" if r.start_state == "weights" else "weights and optimizer"
        rows["begins with"] = f"{what} of `{r.start_from}` after step {r.start_step:,}"
        rows["learning rate"] = (
            f"{r.learning_rate:g} → {r.min_learning_rate:g}, {r.warmup_steps:,} of warmup"
        )
    rows |= {
        "model": f"{layers}, width {r.hidden_size}, {heads}",
        "text": f"corpus `{r.corpus}`, tokenizer {r.tokenizer}, vocabulary of {r.vocab_size:,}",
        "budget": f"{r.steps:,} steps × {r.batch_size} windows × {r.context_length:,} tokens "
        f"= {r.steps * r.batch_size * r.context_length:,} tokens",
        "evaluated at": ", ".join(f"{n:,}" for n in r.evaluation_lengths) + " tokens",
        "recipe, seed": f"{r.name}, {r.seed}",
        "recorded in": f"`{shown(run)}`",
    }
    memory = _memory(r)
    if memory:
        rows["memory"] = memory
    table = markdown.pipe(["", ""], list(rows.items()), 2)
    from pe.encodings.core.parts import part_classes

    _show_layers(r)
    formulas = "\n\n".join(_formula(part) for part in part_classes(r.pe))
    return show(f"{table}\n\n{formulas}")


def _memory(recipe: Recipe) -> str:
    """Say how much of each GPU training will take; "" on a CPU, and where nothing is trained."""
    from pe import devices
    from pe.training import memory, processes

    gib = devices.gpu_memory()
    if gib is None or not recipe.steps:
        return ""
    return memory.sentence(recipe, processes.together(), gib)


def _show_layers(recipe: Recipe) -> None:
    """Display what each layer sees, unless all layers are the same and see all keys."""
    from IPython.display import SVG, display

    from pe import figures
    from pe.figures.schedule import layer_rows

    sizes = {
        "head_dim": recipe.head_dim, "num_heads": recipe.num_attention_heads,
        "num_kv_heads": recipe.num_key_value_heads, "original_length": recipe.context_length,
    }  # fmt: skip
    options = sizes | recipe.pe_options  # the options may have another original_length
    rows, length = layer_rows(recipe.pe, **options)
    if len(rows) > 1 or rows[0].spans != [(0, length)]:
        figure = figures.schedule(recipe.pe, recipe.num_hidden_layers, **options)
        display(SVG(figures.svg(figure)))


def trained(run: Run) -> Markdown:
    """Show what the training cost and where it ended."""
    record = run.read()
    t, model, machine = record["training"] or {}, record["model"] or {}, record["hardware"]
    if record["status"] != "complete":
        by = f" by {record['signal']}" if record.get("signal") else ""
        return show(f"**{record['status']}{by}**: {record['reason']}")
    mfu = f", MFU {t['mfu']:.1%}" if t["mfu"] is not None else ""
    if not t["steps"]:
        return show(
            f"No training: the weights of `{record['parent']['run']}` under another encoding. "
            f"Validation loss {t['validation_loss']:.3f}."
        )
    if t["wall_seconds"] is None or t["tokens_per_second"] is None:
        pace = f" on {machine['name']} (the speed is not recorded)"
    else:
        pace = (
            f" in {duration(t['wall_seconds'])}: {t['tokens_per_second']:,.0f} tokens/s"
            f"{mfu} on {machine['name']}"
        )
    left_out = [f"{record['data']['corpus']}: {n}" for n in record["data"].get("notes", [])]
    notes = "".join(f"\n\n*{note}*" for note in [*left_out, *record.get("notes", [])])
    return show(
        f"Trained {model['parameters']:,} parameters ({model['encoding_parameters']:,} of them the "
        f"encoding's) for {t['steps']:,} steps{pace}. "
        f"Final training loss {t['final_loss']:.3f}, validation loss {t['validation_loss']:.3f}."
        f"{notes}"
    )


def family(run: Run) -> list[Run]:
    """Return ``run``, the run it started from, and the complete runs that started where it did."""
    parent = parent_of(run.recipe.start_from, run.directory.parent)
    others = [other for other in records.find(run.records, run.study) if other.name != run.name]
    start = run.read().get("parent")
    return [
        run,
        parent,
        *(o for o in others if o.record.status == "complete" and o.read().get("parent") == start),
    ]


def conversion(run: Run) -> Markdown:
    """Show perplexity of the same targets before the change of encoding, after it, and trained.

    Evaluates what is not recorded yet.
    """
    import pe

    try:
        cells = pe.evaluate_start(run, quiet=True)
    except RunError as error:
        return show(f"What the change did by itself is not recorded: {error}.")
    r, last = run.recipe, pe.evaluate(run, quiet=True)["perplexity"]
    old = quantities.label(parent_of(r.start_from, run.directory.parent).recipe.pe)
    rows = {
        f"{old}, step {r.start_step:,}": cells["before"],
        f"the same weights with {quantities.label(r.pe)}": cells["converted"],
        f"trained on for {r.steps:,} steps": last,
    }
    lengths, limit = [str(n) for n in cells["lengths"]], quantities.vocabulary(run)
    lines = [
        [name, *(at[n]["reason"] or quantities.perplexity(at[n]["value"], limit) for n in lengths)]
        for name, at in rows.items()
    ]
    return show(markdown.pipe(["weights", *(f"{int(n):,}" for n in lengths)], lines))


def comparable(run: Run) -> list[Run]:
    """Return ``run`` and the complete runs that it can be compared with fairly.

    These are runs of its study and of the reference study that were trained on the same text and
    differ only in encoding and seed. If both studies have the same run, one is taken. A damaged
    record is named in a warning.
    """
    fields, text = _setting(run), _fingerprint(run)
    runs: dict[str, Run] = {run.name: run}
    both = dict.fromkeys((run.study, REFERENCE))
    for study in (name for name in both if (run.records / name).is_dir()):
        for other in records.find(run.records, study):
            try:
                complete = other.read()["status"] == "complete"
                fair = _setting(other) == fields and _fingerprint(other) == text
            except RunError as error:
                warnings.warn(f"left out, damaged: {error}", stacklevel=2)
                continue
            if complete and fair:
                runs.setdefault(other.name, other)
    return list(runs.values())


def keep(figure: Figure, run: Folder, name: str) -> SVG:
    """Write a figure into the run's folder and show it."""
    from IPython.display import SVG

    from pe import figures

    return SVG(figures.save(figure, run.directory / name).read_text())


def perplexities(runs: Sequence[Run]) -> Markdown:
    """Show perplexity of the same target tokens with growing contexts, a row per configuration."""
    return show(markdown.table(grouped(runs), ["ppl"]))


def retrieval(runs: Sequence[Run], run: Run) -> Markdown:
    """Show the share of prompts whose numbers are found: a figure of ``run``, a table of all."""
    from IPython.display import display

    from pe.figures.retrieval import by_length

    tasks = outcome.tasks([run])
    if not tasks:
        return show("The recipe asks for no hidden numbers (`retrieval_samples: 0`).")
    (own,) = grouped([run])
    display(keep(by_length(own, tasks), run, "retrieval.svg"))
    return show(markdown.table(grouped(runs), tasks))


MAP_TOKENS = 32
"""Length of the text whose attention is drawn, in tokens."""


def attention(run: Run) -> Markdown:
    """Show how spread attention is by length, and which tokens each head looks at in a text."""
    from IPython.display import SVG, display

    from pe import figures
    from pe.evaluation.attention import attention_maps
    from pe.evaluation.load import load_model
    from pe.evaluation.scorer import text_of
    from pe.figures import attention as pictures

    spread = (run.evaluation() or {}).get("attention")
    if spread is None:
        return show("The record is older than this measurement.")
    title = quantities.label(run.recipe.pe)
    length = run.recipe.context_length
    display(keep(pictures.entropy_by_length(spread, length, title), run, "entropy.svg"))
    missing = [f"{int(n):,}: {c['reason']}" for n, c in spread["lengths"].items() if c["reason"]]
    drawn = run.directory / "attention.svg"
    try:
        data, model = text_of(run), load_model(run)
    except RunError:  # records are committed, weights are not
        if drawn.exists():
            display(SVG(drawn.read_text()))
    else:
        tokens = data.test.tokens[:MAP_TOKENS].tolist()
        labels = [data.tokenizer.decode([token]) for token in tokens]
        weights = attention_maps(model, tokens).numpy()
        display(SVG(figures.save(pictures.maps(weights, labels, title), drawn).read_text()))
    queries = f"The last {spread['queries']} tokens of {spread['windows']} test windows."
    return show(" ".join([queries, *(f"Not at {one}." for one in missing)]))


def sample(run: Run, prompt: str = "", tokens: int = 64) -> Markdown:
    """Show text that the trained model writes, or why there is none."""
    import pe
    from pe.evaluation.scorer import NotFinite

    try:
        text = pe.sample(run, prompt, tokens)
    except RunError:
        return show(
            "The weights of this run are not on this machine: only its record is committed."
        )
    except NotFinite as error:
        return show(f"No text: {error}.")
    fence = "`" * 4
    return show(f"{fence}text\n{text}\n{fence}")


def record(run: Run) -> Markdown:
    """Show where the record is and how it is read."""
    files = {
        "run.json": "recipe, status, versions, hardware, data, cost",
        "metrics.jsonl": "one line per logged step",
        "evaluation.json": "perplexity by length, loss by position, hidden numbers",
        "loss.svg": "the first figure above",
        "perplexity.svg": "the second",
        "retrieval.svg": "the third",
        "entropy.svg": "how spread attention is by length",
        "attention.svg": "where each head looks in a short text",
        "train.ipynb": "this page, executed (written by papermill)",
        "checkpoint": "weights and tokenizer in Hugging Face format (not in git)",
    }
    there = [[f"`{n}`", what] for n, what in files.items() if (run.directory / n).exists()]
    return show(
        f"`{shown(run)}` holds\n\n{markdown.pipe(['file', ''], there, 2)}\n\n"
        "```python\n"
        "import pe.model  # registers the architecture with transformers\n"
        "import pe.runs\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'folder = pe.runs.root() / "{run.study}/{run.name}/checkpoint"\n'
        "model = AutoModelForCausalLM.from_pretrained(folder)\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n\n"
        f'pe.runs.load(study="{run.study}")  # every record of the study, one row per run\n'
        "```"
    )


def _setting(run: Run) -> dict[str, Any]:
    return {k: v for k, v in Run(run.directory).recipe.to_dict().items() if k not in _FREE}


def _fingerprint(run: Run) -> str | None:
    data = run.read()["data"]
    return None if data is None else data["fingerprint"]


def _formula(name: str) -> str:
    """Return title, paper and formula of an encoding, as its file has them."""
    from pe.encodings import about, lookup

    known = about(name)
    paper = f" ([arXiv:{known.paper}](https://arxiv.org/abs/{known.paper}))" if known.paper else ""
    text = inspect.getdoc(inspect.getmodule(lookup(name))) or inspect.getdoc(lookup(name)) or name
    return f"**{known.title}**{paper}\n\n```text\n{text}\n```"


def show(text: str) -> Markdown:
    """Return Markdown as Jupyter displays it."""
    from IPython.display import Markdown

    return Markdown(text)
