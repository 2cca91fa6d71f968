"""Extend a trained rotary model without training it, by many methods and factors, and compare.

Each cell converts the run's model (`pe.convert`), changes nothing else, and scores the same target
tokens as `pe.evaluation.evaluate`, so that the numbers can be laid beside the run's own. The record
is extension.json beside the run's evaluation.json.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pe._errors import unknown
from pe.encodings import extension_methods
from pe.encodings.core.registry import takes_option
from pe.evaluation.load import holder, load_model
from pe.evaluation.scorer import Scorer, text_of
from pe.model.convert import convert
from pe.runs import SCHEMA_VERSION, Run, RunError
from pe.runs.provenance import code, hardware, now
from pe.training.progress import Progress
from pe.training.start import retraining

FACTORS = (2.0, 4.0, 8.0, 16.0)


def extend(
    run: Run,
    methods: Sequence[str] = (),
    factors: Sequence[float] = FACTORS,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Perplexity of ``run`` under each method and factor, at the lengths of its recipe.

    What extension.json holds already is kept; only missing cells are computed, and those that were
    measured with other options than ``options`` gives them now. Weights that are lost may be those
    of a second training (`pe.study.parents`), which the cells say.

    Args:
        methods: encodings that change RoPE's frequencies; () for all of
            `pe.encodings.extension_methods`. One without an option ``factor``
            (``resonance``) is measured once, under factor 1.
        options: more options by ``method@factor``, such as the factors that a search found for
            ``longrope@4``.

    Returns:
        extension.json as recorded.

    Raises:
        RunError: the run is not complete or its checkpoint is not on this machine.
        ValueError: a method that the run's model cannot be converted to.
    """
    record, recipe = run.read(), run.recipe
    if record["status"] != "complete":
        raise RunError(f"{run.directory} is {record['status']}; train it before extending it")
    lengths = sorted(recipe.evaluation_lengths)
    progress = Progress(enabled=not quiet)
    with run.lock():
        table = run.part("extension") or {
            "schema": SCHEMA_VERSION, "lengths": lengths, "target_tokens": recipe.target_tokens,
            "windows": 0, "cells": {},
        }  # fmt: skip
        if (table["lengths"], table["target_tokens"]) != (lengths, recipe.target_tokens):
            raise RunError(
                f"{run.directory / 'extension.json'} is of other lengths or targets than the "
                "recipe's; remove it to measure again"
            )
        data, source = text_of(run), holder(run)
        model = load_model(source)
        second = {} if source is run else {"retrained": retraining(source)}
        scorer = Scorer(model, data, recipe)
        table["windows"] = len(scorer.ends)
        for name, method, chosen in _cells(methods or extension_methods(), factors, options or {}):
            known = table["cells"].get(name, {"options": {}})["options"]
            if name in table["cells"] and all(known.get(k) == v for k, v in chosen.items()):
                continue
            progress.show(f"extending by {name}", last=True)
            begun, new = time.perf_counter(), convert(model, method, **chosen).eval()
            perplexity = scorer.of(new).perplexities()["perplexity"]
            table["cells"][name] = {
                "pe": method,
                "options": {**new.config.pe_options},
                "created": now(),
                "seconds": round(time.perf_counter() - begun, 2),
                "code": code(),
                "hardware": hardware()["name"],
                "perplexity": perplexity,
                **second,
            }
            run.write_part("extension", table)
    return table


def _cells(
    methods: Sequence[str], factors: Sequence[float], options: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str, dict[str, Any]]]:
    """(cell name, encoding, options) of everything asked for."""
    cells: list[tuple[str, str, dict[str, Any]]] = []
    for method in methods:
        scaled = takes_option(method, "factor")
        for factor in factors if scaled else (1.0,):
            name = f"{method}@{factor:g}"
            chosen = {"factor": float(factor)} if scaled else {}
            cells.append((name, method, {**chosen, **options.get(name, {})}))
    for name in options:
        if name not in (names := [cell[0] for cell in cells]):
            raise unknown("cell in options", name, names)
    return cells
