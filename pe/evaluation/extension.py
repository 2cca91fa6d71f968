"""Extend a trained rotary model without training it, by many methods and factors, and compare.

Each cell converts the run's model (`pe.convert`), changes nothing else, and scores the same target
tokens as `pe.evaluation.evaluate`, so that the numbers can be laid beside the run's own. Where the
recipe names retrieval tasks, the same prompts are asked, too. The record is extension.json beside
the run's evaluation.json.

Cells are those of `pe.evaluation.factors`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pe.data.needles import DEPTHS
from pe.encodings import extension_methods
from pe.encodings.core.extending import extension_method
from pe.encodings.core.extension import Rotary
from pe.encodings.rope import RoPE
from pe.evaluation.factors import FACTORS, LENGTH, Cell, Factor, cells, refuse_unused_options
from pe.evaluation.load import holder, load_model
from pe.evaluation.retrieval import evaluate_retrieval
from pe.evaluation.scorer import Scorer, text_of
from pe.model import PEForCausalLM
from pe.model.convert import convert
from pe.runs import SCHEMA_VERSION, Run, RunError
from pe.runs.provenance import code, hardware, now
from pe.training.progress import Progress
from pe.training.start import retraining


def extend(
    run: Run,
    methods: Sequence[str] = (),
    factors: Sequence[Factor] = FACTORS,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Perplexity and retrieval of ``run`` under each method and factor, at its recipe's lengths.

    What extension.json holds already is kept; only missing cells are computed, and those that were
    measured with other options than ``options`` gives them now. Weights that are lost may be those
    of a second training (`pe.study.parents`), which the cells say.

    Args:
        methods: of `pe.encodings.extension_methods`, or encodings that change RoPE's frequencies;
            () for all of the former. One without a factor (``resonance``, ``dynamic_yarn``) is
            measured once, under factor 1.
        factors: numbers, and ``"length"`` for the factor that equals each length.
        options: more options by ``method@factor``, such as the factors that a search found for
            ``longrope@4``; ``"length"`` takes those of each factor it uses.

    Returns:
        extension.json as recorded.

    Raises:
        RunError: the run is not complete or its checkpoint is not on this machine.
        ValueError: a method that the run's model cannot be converted to.
    """
    record, recipe, options = run.read(), run.recipe, options or {}
    if record["status"] != "complete":
        raise RunError(f"{run.directory} is {record['status']}; train it before extending it")
    lengths = sorted(recipe.evaluation_lengths)
    wanted = cells(methods or extension_methods(), factors)
    refuse_unused_options(options, wanted, lengths, recipe.context_length)
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
        for cell in wanted:
            at = cell.at(lengths, recipe.context_length)
            given = {n: options.get(f"{cell.method}@{factor:g}", {}) for n, factor in at.items()}
            if _measured(table["cells"].get(cell.name), given):
                continue
            progress.show(f"extending by {cell.name}", last=True)
            begun = time.perf_counter()
            made = _measure(scorer, cell, at, given)
            seconds = round(time.perf_counter() - begun, 2)
            about = {"created": now(), "seconds": seconds, "code": code()}
            table["cells"][cell.name] = made | about | {"hardware": hardware()["name"]} | second
            run.write_part("extension", table)
    return table


def _measured(known: Mapping[str, Any] | None, given: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether a recorded cell has the options that are given now."""
    if known is None:
        return False
    by_length = known.get("by_length") or {}
    recorded = {n: {**known["options"], **by_length.get(str(n), {})} for n in given}
    return all(recorded[n].get(k) == v for n, more in given.items() for k, v in more.items())


def _measure(
    scorer: Scorer, cell: Cell, at: Mapping[int, float], given: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """A cell: one model for all lengths, or one for each."""
    if cell.factor != LENGTH:
        model = _extended(scorer, cell.method, next(iter(at.values())), next(iter(given.values())))
        return _scored(scorer.of(model)) | {"options": {**model.config.pe_options}}
    record: dict[str, Any] = {"options": {}, "by_length": {}}
    for length, factor in at.items():
        beyond = factor > 1
        model = _extended(scorer, cell.method, factor, given[length]) if beyond else scorer.model
        part = _scored(scorer.of(model, [length]))
        if beyond:
            record["by_length"][str(length)] = {**model.config.pe_options}
        record = _merged(record, part | {"pe": model.config.pe} if beyond else part)
    return record


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two parts of a record that are of different lengths."""
    both = {k: _merged(one[k], v) for k, v in other.items() if isinstance(one.get(k), Mapping)}
    return {**one, **other, **both}


def _extended(
    scorer: Scorer, method: str, factor: float, given: Mapping[str, Any]
) -> PEForCausalLM:
    """The model under a method."""
    way, model = extension_method(method), scorer.model
    rope = next((m for m in model.modules() if isinstance(m, RoPE)), None)
    if rope is None:
        raise ValueError(
            f"{method!r} changes the frequencies of RoPE, and the model was trained with "
            f"{model.config.pe!r}, which has none of them"
        )
    trained = Rotary(rope.theta, rope.rotary_dim, scorer.recipe.context_length)
    extended = convert(model, way.spec, **way.options(trained, factor), **given)
    extended.eval()
    return extended


def _scored(scorer: Scorer) -> dict[str, Any]:
    """What a cell holds of a model: perplexity, and hits where the recipe names tasks."""
    recipe = scorer.recipe
    record = {
        "pe": scorer.model.config.pe,
        "perplexity": scorer.perplexities()["perplexity"],
    }
    if recipe.retrieval_tasks and recipe.retrieval_samples:
        count = recipe.retrieval_samples * len(DEPTHS)
        record |= evaluate_retrieval(scorer, recipe.retrieval_tasks, count)
    return record
