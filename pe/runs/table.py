"""Find all runs below a folder, and show them as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe._errors import unknown
from pe.runs.folder import RESTORE, RunError, root
from pe.runs.record import Run

if TYPE_CHECKING:
    import pandas

FILES = ("run.json", "metrics.jsonl", "evaluation.json")
COLUMNS = (
    "study", "run", "pe", "pe_options", "seed", "status", "recipe", "learning_rate",
    "encoding_rate", "batch_size", "config_hash", "steps", "tokens", "parameters",
    "tokens_per_second", "mfu", "peak_memory_gib", "wall_seconds", "final_loss", "validation_loss",
    "context_length", "start_from", "start_step", "commit", "directory",
)  # fmt: skip


def find(
    path: str | Path | None = None, study: str | None = None, *, failed: bool = False
) -> list[Run]:
    """Return the runs below ``path`` (default `root`), in order of folder name.

    A folder with any file of a record counts as a run, also if run.json is missing or damaged, so
    that reading the record reports it.

    Args:
        failed: also return runs that failed.

    Raises:
        RunError: no such folder, or no such study in it; the nearest name is given.
    """
    runs = [Run(folder) for folder in folders_with(FILES, path, study)]
    return runs if failed else [run for run in runs if not _has_failed(run)]


def folders_with(
    files: Sequence[str], path: str | Path | None = None, study: str | None = None
) -> list[Path]:
    """Return the folders ``STUDY/NAME`` below ``path`` that hold any of these files, sorted.

    Args:
        files: names, or patterns of names. path: default: `root`. study: default: all.

    Raises:
        RunError: no such folder, or no such study in it; the nearest name is given. Or ``path`` is
            the folder of a single study or record.
    """
    if study is not None and not (isinstance(study, str) and study):
        raise RunError(f"study: expected the name of a folder of runs, got {study!r}")
    base = Path(path) if path is not None else root()
    if not base.is_dir():
        named = isinstance(path, str) and (root() / path).is_dir()
        hint = f"for a study write study={path!r}" if named else "pe train makes the first one"
        raise RunError(f"{base}: there is no such folder of runs; {hint}")
    known = sorted(p.name for p in base.iterdir() if p.is_dir() and not p.name.startswith("."))
    if study is not None and study not in known:
        raise RunError(f"{unknown('study', study, known)} (in {base})")
    folders = {file.parent for name in files for file in base.glob(f"{study or '*'}/*/{name}")}
    if not folders and study is None:
        for one, record in ((base, "*"), (base.parent, base.name)):
            if any(next(one.glob(f"{record}/{name}"), None) for name in files):
                raise RunError(
                    f"{base} is the folder of one study or of a record in it; give "
                    f"study={one.name!r}, and as path the folder of all studies, {one.parent}"
                )
    return sorted(folders)


def _has_failed(run: Run) -> bool:
    try:
        return bool(run.read()["status"] == "failed")
    except RunError:  # raised again when the record is read
        return False


def load(
    path: str | Path | None = None, study: str | None = None, *, failed: bool = False
) -> pandas.DataFrame:
    """Return every record below ``path`` as a table, one row per run.

    Runs that failed are left out unless ``failed`` asks for them.

    Columns: study, run, pe, pe_options (as JSON, "" without any), seed, status, recipe,
    learning_rate (the peak), encoding_rate (its multiple for the encoding's parameters),
    batch_size, config_hash, steps, tokens, parameters, tokens_per_second, mfu, peak_memory_gib,
    wall_seconds, final_loss, validation_loss, context_length, start_from and start_step (the run a
    converted one began with, and its step, or None), commit (every one that trained, with commas),
    directory, and perplexities and shares of prompts answered by tokens (``ppl@512``,
    ``passkey@512``) and by multiples of the training context (``ppl@2x``).

    Raises:
        RunError: names the path of every damaged record; none is skipped.
    """
    import pandas

    rows, damaged = [], []
    for run in find(path, study, failed=failed):
        try:
            rows.append(_row(run))
        except RunError as error:
            damaged.append(str(error))
    if damaged:
        raise RunError("damaged records:\n" + "\n".join(damaged))
    columns = list(dict.fromkeys([*COLUMNS, *(key for row in rows for key in row)]))
    return pandas.DataFrame(rows, columns=columns)


def _row(run: Run) -> dict[str, Any]:
    record, evaluation = run.record, run.evaluation() or {}
    # The last line of a run that was killed may be incomplete.
    lines = run.metric_lines(drop_torn_end=record.status == "running")
    if record.status == "complete" and record.training and record.training.steps and not lines:
        raise RunError(f"{run.directory / 'metrics.jsonl'}: there is no such record; {RESTORE}")
    recipe, parent = record.recipe, record.parent
    length, options = recipe.get("context_length"), recipe.get("pe_options")
    if not isinstance(length, int) or length < 1:
        raise RunError(
            f"{run.directory / 'run.json'}: recipe: context_length: expected a whole number from 1 "
            f"on, got {length!r}; {RESTORE}"
        )
    row: dict[str, Any] = {
        "study": record.study,
        "run": record.run,
        "pe": record.pe,
        "pe_options": json.dumps(options, sort_keys=True) if options else "",
        "seed": record.seed,
        "status": record.status,
        "recipe": recipe.get("name"),
        "learning_rate": recipe.get("learning_rate"),
        "encoding_rate": recipe.get("encoding_rate", 1.0),  # the oldest records have none
        "batch_size": recipe.get("batch_size"),
        "config_hash": record.config_hash,
        "parameters": record.model and record.model.parameters,
        "context_length": length,
        "start_from": parent and f"{parent.study}/{parent.run}",
        "start_step": parent and parent.step,
        "commit": ", ".join(record.commits) or None,
        "directory": str(run.directory),
    }
    row |= (
        record.training.model_dump(exclude={"passes", "resumes", "best"}) if record.training else {}
    )
    cells = {f"ppl@{at}": cell["value"] for at, cell in evaluation.get("perplexity", {}).items()}
    for part in (evaluation[name] for name in ("retrieval", "needles") if evaluation.get(name)):
        samples = part.get("samples", 1)
        for task, lengths in part["tasks"].items():
            cells |= {f"{task}@{at}": _share(cell, samples) for at, cell in lengths.items()}
    for name, value in cells.items():
        kind, _, at = name.partition("@")
        row[name] = value
        if int(at) % length == 0:
            row[f"{kind}@{int(at) // length}x"] = value
    return row


def _share(cell: Mapping[str, Any], samples: int) -> float | None:
    """Return the share of prompts with all digits right; None if the model could not be run.

    A cell has the number of hits at each depth, of ``samples`` prompts (``exact``), or a 0 or 1 for
    each prompt (``prompts``).
    """
    hits = cell.get("prompts", cell.get("exact"))
    return None if hits is None else sum(map(int, hits)) / (len(hits) * samples)
