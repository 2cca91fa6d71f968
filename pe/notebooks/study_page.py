"""What the study notebook does and shows: the plan, the study as it runs, its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pe.results import extensions, markdown
from pe.results import rows as results
from pe.results.quantities import duration
from pe.study.parents import with_retrained_parents
from pe.study.plan import Planned, StudyFolder
from pe.study.queue import StudyFailed, run_study
from pe.study.show import live, rows, time_left

if TYPE_CHECKING:
    from IPython.display import Markdown

LOSSES = ("validation_loss", "ppl", "tokens_per_second", "wall_time")


def plan(study: StudyFolder) -> Markdown:
    """The runs, the state of each, and how long the rest takes on one device and on those here."""
    lines = [
        "| run | seed | begins with | steps | tokens | state | training left |",
        "| :-- | --: | :-- | --: | --: | :-- | --: |",
    ]
    found = rows(study.plan)
    for planned, row in zip(with_retrained_parents(study.plan), found, strict=True):
        left = "not known" if row.seconds_left is None else duration(row.seconds_left)
        lines.append(
            f"| {row.label} | {row.seed} | {_begins(planned)} | {row.steps:,} | "
            f"{row.tokens / 1e6:,.1f} M | {row.state} | {left} |"
        )
    total = sum(row.tokens for row in found) / 1e6
    again = len(found) - len(study.plan)
    runs = len(_trained(study))
    second = f"{again} more are retrained, because their weights are lost; " if again else ""
    lines.append(
        f"\n{runs} runs, {total:,.1f} M tokens in all; {second}"
        f"{time_left(found, study.workers)}, evaluations not counted."
    )
    return _markdown("\n".join(lines))


def _trained(study: StudyFolder) -> list[Planned]:
    return [planned for planned in study.plan if not planned.zero_shot]


def _begins(planned: Planned) -> str:
    r = planned.recipe
    if not r.start_from:
        return "drawn weights"
    branch = ", a branch" if r.start_state == "all" else ""
    return f"`{r.start_from}`, step {r.start_step:,}{branch}"


def carry_out(
    study: StudyFolder,
    *,
    address: str | None = None,
    workers: int | None = None,
    retries: int = 1,
) -> StudyFailed | None:
    """Run what is not done, with a live view. A failure is returned, so that results come first."""
    if study.dry_run:
        return None
    try:
        run_study(
            study.plan, address=address, workers=workers, retries=retries,
            on_progress=live(study.plan, study.workers),
        )  # fmt: skip
    except StudyFailed as error:
        return error
    return None


def outcome(study: StudyFolder) -> Markdown:
    """Tables of all runs that are done: losses, perplexities, retrieval; what was extended."""
    done = [planned.run() for planned in _trained(study) if planned.done()]
    missing = len(_trained(study)) - len(done)
    texts = _extended(study)
    if not done and not texts:
        return _markdown("No run of this study is done.")
    if done:
        found = results.rows(study.name, done, study.plan)
        title = "Perplexity behind contexts of 1, 2, ... times the length"
        texts.append(_table(title, found, LOSSES))
    if any((run.evaluation() or {}).get("retrieval") for run in done):
        texts += [
            _table(f"Share of prompts answered exactly ({task})", found, (task,))
            for task in ("needle", "passkey")
        ]
    if missing:
        texts.append(
            f"{missing} of {len(_trained(study))} runs are not done and not in these tables."
        )
    return _markdown("\n\n".join(texts))


def _extended(study: StudyFolder) -> list[str]:
    """A table for each run that was extended without training."""
    texts = []
    for planned in study.plan:
        run = planned.run()
        record = run.part("extension") if planned.zero_shot else None
        if record is None:
            continue
        texts.append(
            f"`{planned.recipe.start_from}`, extended without training:\n\n"
            f"{extensions.table(run, record)}"
        )
    return texts


def end(failure: StudyFailed | None) -> Markdown:
    """Raises what failed, if anything did."""
    if failure is not None:
        raise failure
    return _markdown("Nothing failed.")


def _table(caption: str, found: list[results.Row], columns: Sequence[str]) -> str:
    return f"{caption}:\n\n{markdown.table(found, columns)}"


def _markdown(text: str) -> Markdown:
    from IPython.display import Markdown

    return Markdown(text)
