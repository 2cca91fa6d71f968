"""What the tasks notebook does and shows: the task, the training and the results."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from pe import figures
from pe.figures import attention as attention_figures
from pe.figures import tasks as pictures
from pe.notebooks.page import keep, show, shown
from pe.results.markdown import pipe
from pe.results.quantities import label
from pe.runs.models import TaskRecord
from pe.tasks import Example, Task, about, task, task_class
from pe.tasks.measure import summary
from pe.tasks.measure.record import TaskRun, slug
from pe.training.progress import Progress

if TYPE_CHECKING:
    from IPython.display import SVG, Markdown

    from pe.tasks.measure.many import Many

EXAMPLE_SEED = 2**63 + 2
"""Seed of the examples whose attention is drawn. No training or test uses it."""


def plan(run: TaskRun) -> Markdown:
    """Show the task with an example, and what will be trained."""
    experiment = run.experiment
    assert experiment is not None, "made by configure_tasks"
    made, known, sizes = experiment.make_task(), about(experiment.task), experiment.settings
    text = made.text(short_example(made))
    paper = f" ([arXiv:{known.paper}](https://arxiv.org/abs/{known.paper}))" if known.paper else ""
    options = ", ".join(f"{k} {v}" for k, v in made.model_dump().items() if "lengths" not in k)
    models = len(experiment.seeds) * len(experiment.learning_rates)
    rows = {
        "task": f"**{known.title}**{paper}" + (f": {options}" if options else ""),
        "lengths": ", ".join(
            f"{split} {low}" + (f"–{high}" if high > low else "")
            for split in made.splits
            for low, high in [made.lengths(split)]
        ),
        "chance": f"{100 * made.chance:.1f}% of tokens, one of {len(made.answers)} answers",
        "encodings": ", ".join(map(label, run.encodings)),
        "model": f"{sizes.layers} layers, width {sizes.width}, {sizes.heads} heads",
        "training": f"{sizes.steps:,} steps × {sizes.batch_size} examples",
        "models per encoding": f"{models}: seeds {', '.join(map(str, experiment.seeds))} at rates "
        + ", ".join(f"{rate:g}" for rate in experiment.learning_rates),
        "recorded in": f"`{shown(run)}`",
    }
    table = pipe(["", ""], list(rows.items()), 2)
    definition = inspect.getdoc(inspect.getmodule(task_class(experiment.task)))
    return show(f"{table}\n\n```text\n{text}\n```\n\n```text\n{definition}\n```")


def short_example(made: Task) -> Example:
    """Return an example of length 8, 12 or 16 if the task allows it, else of its least length."""
    allowed = filter(made.allows, (8, 12, 16))  # 8 is too short with k = 10
    return made.example(EXAMPLE_SEED, 0, "id", next(allowed, min(made.train_lengths)))


def carry_out(run: TaskRun) -> list[TaskRecord]:
    """Train and score each encoding without a record. Returns the records of all, in order."""
    from pe.tasks.measure.experiment import Stream, measure

    experiment = run.experiment
    assert experiment is not None, "made by configure_tasks"
    stream, progress, records = Stream(experiment.make_task()), Progress(), []
    steps = experiment.settings.steps
    for pe in run.encodings:

        def on_step(number: int, losses: list[float], pe: str = pe) -> None:
            mean = sum(losses) / len(losses)
            progress.show(f"{label(pe)}: step {number:,} of {steps:,}, mean loss {mean:.3f}")

        def on_trained(many: Many, pe: str = pe) -> None:
            keep_attention(run, many, pe)

        records.append(measure(run, pe, on_step, stream, on_trained))
    progress.show(f"{len(records)} encodings are recorded", last=True)
    return records


def keep_attention(run: TaskRun, many: Many, pe: str) -> None:
    """Draw the attention of the first model in one example, into the folder of the experiment."""
    from pe.evaluation.attention import attention_maps

    example = many.task.example(EXAMPLE_SEED, 0, "id")
    weights = attention_maps(many.model(0), example.tokens.tolist()).numpy()
    labels = [many.task.symbols[token] for token in example.tokens]
    title = f"{label(pe)}, seed {many.members[0].seed}"
    figures.save(attention_figures.maps(weights, labels, title), attention_file(run, pe))


def attention_file(run: TaskRun, pe: str) -> Path:
    """Return the file that `keep_attention` writes."""
    return run.directory / f"attention-{slug(pe)}.svg"


def results(records: list[TaskRecord]) -> Markdown:
    """Show accuracy and loss in and out of distribution at each encoding's best rate."""
    first = records[0]
    return show(f"{summary.table(records)}\n\n{floors(task(first.task, **first.task_options))}")


def floors(made: Task) -> str:
    """Say what chance and the trivial strategies mean, in the order of a table's last rows."""
    meanings = "; ".join(f"{one.name}: {one.meaning.rstrip('.')}" for one in made.baselines())
    return f"The last rows need no understanding. Chance: a uniform guess; {meanings}."


def rates(records: list[TaskRecord]) -> Markdown:
    """Show loss and accuracy in validation at each rate."""
    return show("\n\n".join(filter(None, (summary.rates(records), summary.edges(records)))))


def learning(records: list[TaskRecord], run: TaskRun) -> SVG:
    """Show learning curves at each encoding's best rate."""
    return keep(pictures.learning_curves(records), run, "learning.svg")


def by_length(records: list[TaskRecord], run: TaskRun) -> SVG:
    """Show accuracy by length."""
    return keep(pictures.accuracy_by_length(records), run, "lengths.svg")


def by_position(records: list[TaskRecord], run: TaskRun) -> SVG:
    """Show accuracy by position."""
    return keep(pictures.accuracy_by_position(records), run, "positions.svg")


def attention(run: TaskRun) -> Markdown:
    """Show the attention maps that were drawn when the encodings were trained."""
    from IPython.display import SVG, display

    there = [path for path in (attention_file(run, pe) for pe in run.encodings) if path.exists()]
    for path in there:
        display(SVG(path.read_text()))
    return show(f"There are maps of {len(there)} of {len(run.encodings)} encodings.")
