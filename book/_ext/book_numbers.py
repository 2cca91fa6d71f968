"""Numbers for prose: `pope.ppl@4x` -> "41.2". Prose holds no figures of its own.

    [STUDY/]SUBJECT.QUANTITY[:format]          {record}`pope.ppl@4x`  {record}`study.hardware`
    KEY / KEY                                  {record}`rope.ppl@8x / rope.ppl@1x`
    [STUDY/]ROW vs ROW.QUANTITY                {record}`scaffold/rope vs yarn.ppl@1x`
    [STUDY/]SUBJECT#SEED.QUANTITY              {record}`rope#0.ppl@1x`, beside rows of that seed

SUBJECT is an encoding (a mean over its seeds), `study`, or `order`, which gives the names of all
rows, best first, and says between which neighbours a difference is shown. `ppl@longest` is the
perplexity at the longest evaluated length. Unknown keys raise ValueError with the nearest one.

In a study with a YAML in studies/, SUBJECT is a row's name there (`scaffold/rope-dropped-at-10`),
and QUANTITY any of `pe.results.rows`, `title`, `recipe.FIELD`, `before` (the validation loss of a
converted model before its first step), `cut.needle@4x` (what it would be if the row read the last
training length alone), `beside.ppl@4x` (`better`, `worse` or `undecided` beside that) or
`extension.yarn@4.ppl@4x`. `vs` gives words: "lower by 8.1% (3.3 to 13%)", or "no difference
shown" (`pe.results.difference.difference`).
"""

from __future__ import annotations

import re
from typing import Any

from book_studies import Studies

from pe._errors import unknown
from pe.results import extensions, quantities
from pe.results.difference import order, write_difference
from pe.results.measure import beside_cutting, cut, measure, write
from pe.results.quantities import GUESSING, duration, multiples, significant, whole
from pe.results.rows import Row


def look_up(studies: Studies, text: str) -> str:
    """Return the text for a key, or for the ratio of two keys."""
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


def _study(studies: Studies, name: str | None) -> str:
    name = name or studies.reference
    if name not in studies.runs:
        raise unknown("study", name, studies.runs)
    return name


def _row(rows: dict[str, Row], subject: str) -> Row:
    name, _, seed = subject.partition("#")
    if name not in rows:
        raise unknown("subject", name, [*rows, "study", "order"])
    if seed and seed not in map(str, rows[name].seeds):
        raise ValueError(f"{name} has no run of seed {seed!r}; it has {rows[name].seeds}")
    return rows[name].of([int(seed)]) if seed else rows[name]


def _versus(studies: Studies, study: str | None, one: str, other: str, quantity: str) -> str:
    rows = studies.rows(_study(studies, study))
    return write_difference(_row(rows, one), _row(rows, other), quantity)


def _of_row(row: Row, quantity: str) -> tuple[Any, str]:
    """Return a quantity of a row as a number or word, and as text."""
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
        return value, quantities.perplexity(value, quantities.vocabulary(run))
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
    if kind == "cut":
        value = cut(row, rest)
        if value is None:
            raise ValueError(f"{row.label}.{quantity} has no value")
        return value, quantities.write(value, rest, quantities.vocabulary(run))
    if kind == "beside":
        word = beside_cutting(row, rest)
        if not word:
            raise ValueError(f"{row.label}.{rest} cannot be held against the cut text")
        return word, word
    cell = measure(row, quantity)
    if cell.value is None:
        raise ValueError(f"{row.label}.{quantity} has no value: {cell.reason}")
    return cell.value, write(cell, quantity)


def _split(studies: Studies, key: str) -> tuple[str, str, str]:
    study, _, rest = key.rpartition("/")
    study = _study(studies, study)
    subject, dot, quantity = rest.partition(".")
    if not dot:
        raise ValueError(f"expected SUBJECT.QUANTITY such as pope.ppl@4x, got {rest!r}")
    if quantity == "ppl@longest":
        quantity = f"ppl@{multiples(studies.runs[study])[-1]}"
    return study, subject, quantity


def _number(studies: Studies, key: str) -> float:
    study, subject, quantity = _split(studies, key)
    if subject == "study":
        value, text = _facts(studies, study)[_known(studies, study, quantity)], ""
    else:
        value, text = _of_row(_row(studies.rows(study), subject), quantity)
    if not isinstance(value, int | float) or text == GUESSING:
        raise ValueError(f"{key} is no number" + (f": {text}" if text == GUESSING else ""))
    return value


def _text(studies: Studies, key: str) -> str:
    study, subject, quantity = _split(studies, key)
    if subject == "study":
        value = _facts(studies, study)[_known(studies, study, quantity)]
        if quantity in ("wall_time", "evaluation_time"):
            return duration(value)
        return whole(value) if isinstance(value, int | float) else str(value)
    if subject == "order":
        rows = studies.rows(study).values()
        return order([row for row in rows if measure(row, quantity).value is not None], quantity)
    return _of_row(_row(studies.rows(study), subject), quantity)[1]


def _known(studies: Studies, study: str, quantity: str) -> str:
    facts = _facts(studies, study)
    if quantity not in facts:
        raise unknown("quantity of a study", quantity, facts)
    return quantity


def _facts(studies: Studies, study: str) -> dict[str, Any]:
    """Return the facts about a study as a whole. If its runs differ, all values are listed."""
    runs = studies.runs[study]
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
        "encodings": ", ".join(row.title for row in studies.rows(study).values()),
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
    """Return the number of prompts per retrieval task and length."""
    if needles := evaluation.get("needles"):
        return int(needles["count"])
    asked = evaluation.get("retrieval")
    return asked and asked["samples"] * len(asked["depths"])


def _controls(evaluations: list[dict[str, Any]]) -> dict[str, int]:
    """Count the prompts of all runs without the number asked for, and the answers that have it."""
    from pe.evaluation.retrieval import control_prompts  # it imports transformers

    hits = asked = 0
    for evaluation in evaluations:
        for lengths in (evaluation.get("retrieval") or {"tasks": {}})["tasks"].values():
            for cell in lengths.values():
                for control in (cell.get("controls") or {}).values():
                    hits += control["exact"]
                    asked += _prompts(evaluation) or 0
        needles = evaluation.get("needles") or {"tasks": {}, "count": 0}
        for lengths in needles["tasks"].values():
            for cell in lengths.values():
                controls = cell.get("controls") or {}  # none where a length has no value
                hits += sum(controls.values())
                asked += len(controls) * control_prompts(needles["count"])
    return {"control_hits": hits, "control_prompts": asked}


def _one(values: list[Any]) -> Any:
    different = list(dict.fromkeys(value for value in values if value is not None))
    if len(different) == 1:
        return different[0]
    return ", ".join(str(value) for value in different) or "not recorded"
