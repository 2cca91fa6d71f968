"""The results of a study, with which its page and its command end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pe.results import extensions, markdown
from pe.results.quantities import TASKS, RunLike, answers, multiples
from pe.results.rows import rows
from pe.study.planned import Planned

LOSSES = ("validation_loss", "ppl", "tokens_per_second", "wall_time")


def text(plan: Sequence[Planned]) -> str:
    """Write tables of all runs that are done: losses, perplexities, retrieval and extensions."""
    texts = []
    for planned in plan:
        record = planned.run().part("extension") if planned.zero_shot else None
        if record is not None:
            title = f"`{planned.recipe.start_from}`, extended without training:"
            texts.append(f"{title}\n\n{extensions.table(planned.run(), record)}")
    trained = [planned for planned in plan if not planned.zero_shot]
    done = [planned for planned in trained if planned.done()]
    for study in dict.fromkeys(planned.study for planned in done):
        runs = [planned.run() for planned in done if planned.study == study]
        table = rows(study, runs, [planned for planned in trained if planned.study == study])
        title = f"{study}: perplexity after contexts of 1, 2, ... times the training length:"
        texts.append(f"{title}\n\n{markdown.table(table, LOSSES)}")
        texts += [
            f"{study}: share of prompts answered exactly ({task}):\n\n"
            f"{markdown.table(table, (task,))}"
            for task in tasks(runs)
        ]
    if not texts:
        return "No run of this study is done."
    if len(done) < len(trained):
        missing = len(trained) - len(done)
        texts.append(f"{missing} of {len(trained)} runs are not done and not in these tables.")
    return "\n\n".join(texts)


def tasks(runs: Sequence[RunLike]) -> list[str]:
    """Return the retrieval tasks that any of the runs was asked."""
    places = list(itertools.product(runs, multiples(runs)))
    return [task for task in TASKS if any(answers(run, f"{task}@{at}") for run, at in places)]
