"""Numbers for prose: `pope.ppl@4x` -> "41.2". Prose holds no figures of its own.

    [STUDY/]SUBJECT.QUANTITY[:format]          {record}`pope.ppl@4x`  {record}`study.hardware`
    KEY / KEY                                  {record}`rope.ppl@8x / rope.ppl@1x`
    [STUDY/]ROW vs ROW.QUANTITY                {record}`scaffold/rope vs yarn.ppl@1x`

SUBJECT is an encoding (a mean over its seeds), `study`, or one of `best`, `worst`, `order`, which
give names instead of numbers. `ppl@longest` is the perplexity at the longest evaluated length.
Unknown keys raise ValueError with the nearest valid one.

In a study with a YAML in studies/, SUBJECT is a row's name there (`scaffold/rope-dropped-at-10`),
and QUANTITY any of `pe.results.rows`, `title`, `recipe.FIELD`, `before` (the validation loss of a
converted model before its first step) or `extension.yarn@4.ppl@4x`. `vs` gives words: "lower by
8.1% (3.3 to 13%)", or "no difference shown" where the intervals do not tell the two apart.
"""

from __future__ import annotations

import re
from typing import Any

from book_studies import Snapshot, Studies

from pe._errors import unknown
from pe.results import extensions
from pe.results import rows as results
from pe.results.tables import (
    QUANTITIES,
    Group,
    duration,
    groups,
    measure,
    multiples,
    significant,
    whole,
    write,
)

_RANKS = ("best", "worst", "order")


def look_up(studies: Studies, text: str) -> str:
    """The text that stands for a key, or for the ratio of two keys."""
    match = re.fullmatch(r"\s*(.+?)(?:\s*:\s*([^:/]+))?\s*", text)
    if not match:
        raise ValueError("an empty key")
    key, form = match.groups()
    versus = re.fullmatch(r"(?:([^/\s]+)/)?(\S+) vs (\S+?)\.(\S+)", key)
    if versus:
        return _versus(studies, *versus.groups())
    parts = [part.strip() for part in key.split(" / ")]
    if len(parts) == 2:
        upper, lower = (_number(studies, part) for part in parts)
        return format(upper / lower, form) if form else significant(upper / lower)
    if form:
        return format(_number(studies, key), form)
    return _text(studies, key)


def study_rows(studies: Studies, study: str) -> dict[str, results.Row]:
    """The rows of a study by name; worked out once a build."""
    runs = studies.runs[study]
    cached = studies.rows.get(study)
    if cached is None:
        cached = studies.rows[study] = {row.label: row for row in results.rows(study, runs)}
    return cached


def _versus(studies: Studies, study: str | None, one: str, other: str, quantity: str) -> str:
    study = study or studies.reference
    if study not in studies.runs:
        raise unknown("study", study, studies.runs)
    first, second = (_row(study_rows(studies, study), name) for name in (one, other))
    return results.write_difference(first, second, quantity)


def _row(rows: dict[str, results.Row], subject: str) -> results.Row:
    if subject not in rows:
        raise unknown("subject", subject, [*rows, "study", *_RANKS])
    return rows[subject]


def _of_row(row: results.Row, quantity: str) -> tuple[Any, str]:
    """A quantity of a row as a number or word, and as text."""
    run = row.runs[0]
    kind, _, rest = quantity.partition(".")
    if kind == "recipe":
        recipe = run.read()["recipe"]
        if rest not in recipe:
            raise unknown("recipe field", rest, recipe)
        value = recipe[rest]
        if isinstance(value, float):
            return value, f"{value:g}"
        return value, whole(value) if type(value) is int else str(value)
    if kind == "extension":
        name, _, at = rest.rpartition(".ppl@")
        record = getattr(run, "extended", None)
        if record is None:
            raise ValueError(f"{run.study}/{run.name} has no extension.json")
        length = run.read()["recipe"]["context_length"]
        value = extensions.value(record, length, name, float(at.removesuffix("x")))
        return value, significant(value)
    if quantity == "before":
        lines = run.metrics()
        lines = lines[lines["step"] == 0].dropna(subset="validation_loss")
        if lines.empty:
            raise ValueError(f"{row.label} has no loss from before its first step")
        value = float(lines["validation_loss"].iloc[0])
        return value, f"{value:.3f}"
    if quantity == "seeds":
        return len(row.runs), str(len(row.runs))
    if quantity == "title":
        return row.title, row.title
    found = results.measure(row, quantity)
    if found.value is None:
        raise ValueError(f"{row.label}.{quantity} has no value: {found.reason}")
    return found.value, results.write(found, quantity)


def _split(studies: Studies, key: str) -> tuple[list[Snapshot], str, str]:
    study, _, rest = key.rpartition("/")
    study = study or studies.reference
    if study not in studies.runs:
        raise unknown("study", study, studies.runs)
    subject, dot, quantity = rest.partition(".")
    if not dot:
        raise ValueError(f"expected SUBJECT.QUANTITY such as pope.ppl@4x, got {rest!r}")
    runs = studies.runs[study]
    if quantity == "ppl@longest":
        quantity = f"ppl@{multiples(runs)[-1]}"
    return runs, subject, quantity


def _group(runs: list[Snapshot], subject: str) -> Group:
    found = {group.pe: group for group in groups(runs)}
    if subject not in found:
        raise unknown("subject", subject, [*found, "study", *_RANKS])
    return found[subject]


def _number(studies: Studies, key: str) -> float:
    runs, subject, quantity = _split(studies, key)
    if subject == "study":
        value = _facts(runs)[_known(runs, quantity)]
        if not isinstance(value, int | float):
            raise ValueError(f"{key} is no number")
        return value
    if results.planned(runs[0].study):
        value, _ = _of_row(_row(study_rows(studies, runs[0].study), subject), quantity)
        if not isinstance(value, int | float):
            raise ValueError(f"{key} is no number")
        return value
    result = measure(_group(runs, subject), quantity)
    if result.value is None:
        raise ValueError(f"{key} has no value: {result.reason}")
    return result.value


def _text(studies: Studies, key: str) -> str:
    runs, subject, quantity = _split(studies, key)
    if subject == "study":
        value = _facts(runs)[_known(runs, quantity)]
        if quantity in ("wall_time", "evaluation_time"):
            return duration(value)
        return whole(value) if isinstance(value, int | float) else str(value)
    if results.planned(runs[0].study):
        rows = study_rows(studies, runs[0].study)
        if subject not in _RANKS:
            return _of_row(_row(rows, subject), quantity)[1]
        cells = [(results.measure(row, quantity).value, row.title) for row in rows.values()]
        titles = [name for _, name in sorted((x, name) for x, name in cells if x is not None)]
        return {"best": titles[0], "worst": titles[-1], "order": ", ".join(titles)}[subject]
    if subject in _RANKS:
        ranked = sorted((_number_or_last(g, quantity), g.label) for g in groups(runs))
        names = [name for _, name in ranked]
        return {"best": names[0], "worst": names[-1], "order": ", ".join(names)}[subject]
    if quantity == "seeds":
        return str(len(_group(runs, subject).runs))
    result = measure(_group(runs, subject), quantity)
    if result.value is None:
        raise ValueError(f"{key} has no value: {result.reason}")
    return write(result, quantity)


def _number_or_last(group: Group, quantity: str) -> float:
    value = measure(group, quantity).value
    return float("inf") if value is None else value


def _known(runs: list[Snapshot], quantity: str) -> str:
    facts = _facts(runs)
    if quantity not in facts:
        raise unknown("quantity of a study", quantity, facts)
    return quantity


def _facts(runs: list[Snapshot]) -> dict[str, Any]:
    """What holds for a study as a whole; where its runs differ, all values are listed."""
    records = [run.read() for run in runs]
    recipes = [record["recipe"] for record in records]
    data = [record["data"] or {} for record in records]
    evaluations = [run.evaluation() or {} for run in runs]
    machine = [
        f"{h['name']}, {h['cores']} cores"
        if h["device"] == "cpu"
        else f"{h['count']} × {h['name']}"
        for h in (record["hardware"] for record in records)
    ]
    facts: dict[str, Any] = {
        "runs": len(runs),
        "encodings": ", ".join(group.label for group in groups(runs)),
        "hardware": _one(machine),
        "commit": _one([(record["code"]["commit"] or "unknown")[:12] for record in records]),
        "date": _one([record["created"][:10] for record in records]),
        "recipe": _one([recipe["name"] for recipe in recipes]),
        "name": records[0]["study"],
        "corpus": _one([entry.get("corpus") for entry in data]),
        "fingerprint": _one([entry.get("fingerprint") for entry in data]),
        "wall_time": sum((record["training"] or {}).get("wall_seconds", 0.0) for record in records),
        "tokens": _one([(record["training"] or {}).get("tokens") for record in records]),
        "lengths": ", ".join(multiples(runs)).replace("x", "×"),
        "longest": multiples(runs)[-1].removesuffix("x"),
        "windows": _one([entry.get("windows") for entry in evaluations]),
        "target_tokens": _one([entry.get("target_tokens") for entry in evaluations]),
        "evaluation_time": sum(entry.get("seconds") or 0.0 for entry in evaluations),
        "prompts": _one([_prompts(entry) for entry in evaluations]),
        **_controls(evaluations),
        "layers": _one([recipe["num_hidden_layers"] for recipe in recipes]),
        "heads": _one([recipe["num_attention_heads"] for recipe in recipes]),
    }
    for key in ("documents", "train_tokens", "test_tokens", "vocab_size"):
        facts[key] = _one([entry.get(key) for entry in data])
    for key in ("context_length", "steps", "batch_size", "hidden_size"):
        facts[key] = _one([recipe[key] for recipe in recipes])
    for package in ("python", "torch", "transformers"):
        facts[package] = _one([record["versions"].get(package) for record in records])
    return facts


def _prompts(evaluation: dict[str, Any]) -> int | None:
    """How often each retrieval task is asked at one length."""
    asked = evaluation.get("retrieval")
    return asked and asked["samples"] * len(asked["depths"])


def _controls(evaluations: list[dict[str, Any]]) -> dict[str, int]:
    """Prompts without the number asked for, over all runs, and how many were answered with it."""
    hits = asked = 0
    for evaluation in evaluations:
        for lengths in (evaluation.get("retrieval") or {"tasks": {}})["tasks"].values():
            for cell in lengths.values():
                for control in (cell["controls"] or {}).values():
                    hits += control["exact"]
                    asked += _prompts(evaluation) or 0
    return {"control_hits": hits, "control_prompts": asked}


def _one(values: list[Any]) -> Any:
    different = list(dict.fromkeys(value for value in values if value is not None))
    if len(different) == 1:
        return different[0]
    return ", ".join(str(value) for value in different) or "not recorded"


def names(studies: Studies) -> list[str]:
    """Every key of the reference study, for messages and tests."""
    runs = studies.runs[studies.reference]
    quantities = [*QUANTITIES, "seeds", *(f"ppl@{name}" for name in multiples(runs))]
    keys = [f"{group.pe}.{quantity}" for group in groups(runs) for quantity in quantities]
    return [*keys, *(f"study.{fact}" for fact in _facts(runs))]
