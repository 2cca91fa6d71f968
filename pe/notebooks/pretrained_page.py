"""The parts of pretrained.ipynb: the plan, the outcomes, the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pe.figures import pretrained as figures
from pe.notebooks.page import keep, show, shown
from pe.pretrained.record import PretrainedRun
from pe.pretrained.trial import TASKS, try_out
from pe.results import pretrained as results
from pe.results.markdown import pipe

if TYPE_CHECKING:
    from IPython.display import SVG, Markdown

WORDS = {"untouched": "untouched", "adapted": "adapted", "trained": "trained on"}


def plan(run: PretrainedRun) -> Markdown:
    """Show what will be measured, and where the record goes."""
    import pe

    s = run.settings
    options = ", ".join(f"{key} {value}" for key, value in s.options.items())
    host = pe.explain(run.path)
    rows = {
        "model": f"`{s.model}`, {host.model_type}, trained on {host.training.tokens:,} tokens",
        "encoding": f"`{s.pe}`" + (f" with {options}" if options else ""),
        "text": f"corpus `{s.corpus}`",
        "lengths": ", ".join(f"{n:,}" for n in s.lengths)
        + f" tokens, {s.windows} windows, the last {s.target_tokens} tokens scored",
        "hidden numbers": f"{s.prompts} prompts per task and length" if s.prompts else "none",
        "training": f"{s.steps:,} steps × {s.batch_size} windows × {s.context_length:,} tokens, "
        f"learning rate {s.learning_rate:g}"
        if s.steps
        else "none",
        "recorded in": f"`{shown(run)}`",
    }
    return show(pipe(["", ""], list(rows.items()), 2))


def carry_out(run: PretrainedRun) -> dict[str, Any]:
    """Measure what is not recorded, with a progress line."""
    return try_out(run)


def losses(record: dict[str, Any]) -> Markdown:
    """Show the loss of the same tokens by length of the context, and the cut line."""
    lengths = record["settings"]["lengths"]
    rows = [[WORDS[v], *map(_number, results.nll(record, v))] for v in record["outcomes"]]
    rows.append(["untouched, cut to the training length", *map(_number, results.cut(record))])
    return show(pipe(["loss, nats per token", *(f"{n:,}" for n in lengths)], rows))


def retrieval(record: dict[str, Any]) -> Markdown:
    """Show the share of prompts whose hidden numbers are found, by length, and the cut line.

    In parentheses is Wilson's 95% interval over the prompts.
    """
    lengths = record["settings"]["lengths"]
    asked = [v for v, outcome in record["outcomes"].items() if outcome.get("needles")]
    rows = []
    for task in TASKS if asked else ():
        shares = {f"{task}, {WORDS[v]}": results.found(record, v, task) for v in asked}
        shares[f"{task}, untouched, cut to the training length"] = results.cut_found(record, task)
        rows += [[name, *map(results.write_share, of)] for name, of in shares.items()]
    if not rows:
        return show(f"No hidden numbers: {record['outcomes']['untouched']['no_needles']}.")
    return show(pipe(["prompts answered", *(f"{n:,}" for n in lengths)], rows))


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.3f}"


def samples(record: dict[str, Any]) -> Markdown:
    """Show how each variant continues the same beginning."""
    fence = "`" * 4
    parts = []
    for v, outcome in record["outcomes"].items():
        sample = outcome["sample"]
        text = "No text: the logits are not finite."
        if sample is not None:
            text = f"{fence}text\n{sample}\n{fence}"
        parts.append(f"**{WORDS[v]}**\n\n{text}")
    return show("\n\n".join(parts))


def trained(run: PretrainedRun, record: dict[str, Any]) -> SVG | Markdown:
    """Show the loss of the training, if there was one."""
    if not record["training"]:
        return show("No training was asked for (`-p steps 500`).")
    return keep(figures.training(record), run, "training.svg")


def settings(run: PretrainedRun, record: dict[str, Any]) -> Markdown:
    """Show how to use the model with this encoding, and the trained weights if there are any."""
    import json

    block = record["transformers_settings"]
    if block is None:
        how = (
            "transformers has no setting for this encoding. `pe.adapt` puts it into the model, and "
            "the model that `save_pretrained` then writes loads after `import pe.pretrained.adapt`."
        )
    else:
        how = (
            "For config.json. `pe explain MODEL --length TOKENS` prints the whole block for a "
            "length, and the command for vLLM.\n\n"
            f"```json\n{json.dumps({'rope_parameters': block}, indent=2)}\n```"
        )
    if record["training"]:
        how += (
            f"\n\nThe trained model and its tokenizer are in `{shown(run)}/checkpoint`.\n\n"
            "```python\nimport pe.pretrained.adapt  # registers adapted models with transformers\n"
            "from pe.runs import root\nfrom transformers import AutoModelForCausalLM\n\n"
            f'folder = root() / "{run.study}/{run.name}/checkpoint"\n'
            "model = AutoModelForCausalLM.from_pretrained(folder)\n```"
        )
    return show(how)
