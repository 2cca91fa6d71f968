"""Extend a trained rotary model without training it, by many methods and factors, and compare.

For each method and factor (a cell, `pe.evaluation.factors`) the run's model is converted by
`pe.convert` and scored on the same targets as in `pe.evaluation.evaluate`, so that the numbers can
be compared with the run's own. If the recipe names retrieval tasks, the same prompts are asked. The
record is extension.json beside the run's evaluation.json.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pe.data.needles import DEPTHS
from pe.encodings import extension_methods
from pe.encodings.core.extension import Rotary, extension_method
from pe.encodings.rope import RoPE
from pe.evaluation.factors import FACTORS, LENGTH, Cell, Factor, cells, refuse_unused_options
from pe.evaluation.load import complete_record, holder, load_model
from pe.evaluation.retrieval import evaluate_retrieval
from pe.evaluation.scorer import Scorer, text_of
from pe.model import PEForCausalLM
from pe.model.convert import convert
from pe.runs import SCHEMA_VERSION, Run, RunError, checked
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
    """Measure perplexity and retrieval of ``run`` under each method and factor.

    The lengths are those of the run's recipe. Cells that extension.json has already are kept,
    unless they were measured with other options. If the weights of the run are lost, those of a
    second training are used (`pe.study.parents`), and the cells record that.

    Args:
        methods: names in `pe.encodings.extension_methods`, or encodings that change RoPE's
            frequencies. Empty: all of the former. A method that takes no factor (``resonance``,
            ``dynamic_yarn``) is measured once, under factor 1.
        factors: numbers, and ``"length"`` for a factor per length (`pe.evaluation.factors`).
        options: further options by ``method@factor``, such as the factors that a search found for
            ``longrope@4``. ``"length"`` takes those of each factor that it uses.
        quiet: show no progress.

    Returns:
        The content of extension.json.

    Raises:
        RunError: the run is not complete, its checkpoint is not on this machine, or extension.json
            has other lengths, targets or windows than the recipe asks for.
        ValueError: the run's model cannot be converted to a method, a factor is not a number, or
            ``options`` match no cell.
    """
    complete_record(checked(run), "extending")
    recipe, options = run.recipe, options or {}
    lengths = sorted(recipe.evaluation_lengths)
    wanted = cells(methods or extension_methods(), factors)
    if not wanted:
        raise ValueError(f"factors: {', '.join(methods)} needs at least one, such as 2")
    refuse_unused_options(options, wanted, lengths, recipe.context_length)
    progress = Progress(enabled=not quiet)
    with run.lock():
        data, source = text_of(run), holder(run)
        model = load_model(source)
        retrained = {} if source is run else {"retrained": retraining(source)}
        scorer = Scorer(model, data, recipe)
        asked = {
            "lengths": lengths, "target_tokens": recipe.target_tokens, "windows": len(scorer.ends)
        }  # fmt: skip
        table = run.part("extension") or {"schema": SCHEMA_VERSION, **asked, "cells": {}}
        for name, value in asked.items():
            if table[name] != value:
                raise RunError(
                    f"{run.directory / 'extension.json'} has {name} {table[name]} and the recipe "
                    f"asks for {value}; remove it to measure again"
                )
        for cell in wanted:
            at = cell.at(lengths, recipe.context_length)
            extra = {n: options.get(f"{cell.method}@{factor:g}", {}) for n, factor in at.items()}
            if _is_measured(table["cells"].get(cell.name), extra):
                continue
            progress.show(f"extending by {cell.name}", last=True)
            began = time.perf_counter()
            results = _measure(scorer, cell, at, extra)
            seconds = round(time.perf_counter() - began, 2)
            about = {"created": now(), "seconds": seconds, "code": code()}
            about["hardware"] = hardware()["name"]
            table["cells"][cell.name] = results | about | retrained
            run.write_part("extension", table)
    return table


def _is_measured(cell: Mapping[str, Any] | None, extra: Mapping[int, Mapping[str, Any]]) -> bool:
    """Return whether a cell is recorded and was measured with these further options, by length."""
    if cell is None:
        return False
    by_length = cell.get("by_length") or {}
    recorded = {n: {**cell["options"], **by_length.get(str(n), {})} for n in extra}
    return all(recorded[n].get(k) == v for n, more in extra.items() for k, v in more.items())


def _measure(
    scorer: Scorer, cell: Cell, at: Mapping[int, float], extra: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the record of a cell, which has one model for all lengths, or one per length.

    Args:
        at: the factor by length. extra: further options by length.
    """
    if cell.factor != LENGTH:
        model = _extended(scorer, cell.method, next(iter(at.values())), next(iter(extra.values())))
        return _scored(scorer.of(model)) | {"options": {**model.config.pe_options}}
    record: dict[str, Any] = {"options": {}, "by_length": {}}
    for length, factor in at.items():
        beyond = factor > 1
        model = _extended(scorer, cell.method, factor, extra[length]) if beyond else scorer.model
        part = _scored(scorer.of(model, [length]))
        if beyond:
            record["by_length"][str(length)] = {**model.config.pe_options}
        record = _merged(record, part | {"pe": model.config.pe} if beyond else part)
    return record


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested records, which hold results of different lengths."""
    both = {k: _merged(one[k], v) for k, v in other.items() if isinstance(one.get(k), Mapping)}
    return {**one, **other, **both}


def _extended(
    scorer: Scorer, method: str, factor: float, extra: Mapping[str, Any]
) -> PEForCausalLM:
    """Return the scorer's model, converted to a method with this factor and further options."""
    extension, model = extension_method(method), scorer.model
    rope = next((m for m in model.modules() if isinstance(m, RoPE)), None)
    if rope is None:
        raise ValueError(
            f"{method!r} changes the frequencies of RoPE, but the model was trained with "
            f"{model.config.pe!r}, which has none; extend a run of rope"
        )
    trained = Rotary(rope.theta, rope.rotary_dim, scorer.recipe.context_length)
    extended = convert(model, extension.spec, **extension.options(trained, factor), **extra)
    extended.eval()
    return extended


def _scored(scorer: Scorer) -> dict[str, Any]:
    """Measure perplexity, and retrieval if the recipe names tasks."""
    recipe = scorer.recipe
    record = {
        "pe": scorer.model.config.pe,
        "perplexity": scorer.perplexities()["perplexity"],
    }
    if recipe.retrieval_tasks and recipe.retrieval_samples:
        count = recipe.retrieval_samples * len(DEPTHS)
        record |= evaluate_retrieval(scorer, recipe.retrieval_tasks, count)
    return record
