"""Fit one number to a trained model: how much sharper attention should be on longer texts.

    logits of a query that sees n > L tokens  <-  logits x (1 + c ln(n / L))

DroPE's long-context results use such a temperature, with c fitted for each model
(arXiv:2512.12167). It helps other encodings too, so every run may get its own c: fitted on
validation text, reported on test text, beside the model as it was trained (c = 0).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pe.data import Split, evaluation_windows
from pe.evaluation.perplexity import Context, window_losses
from pe.model import PEForCausalLM

BOUNDS = (-0.5, 1.5)
TRIALS = 14
WINDOWS = 16


@contextlib.contextmanager
def length_temperature(model: PEForCausalLM, c: float) -> Iterator[None]:
    """The model with another c inside the block."""
    before = model.config.length_temperature
    model.config.length_temperature = c
    try:
        yield
    finally:
        model.config.length_temperature = before


def fit_temperature(
    model: PEForCausalLM,
    validation: Split,
    lengths: list[int],
    target_tokens: int,
    tokens_per_batch: int,
    autocast: Context = contextlib.nullcontext,
) -> dict[str, Any]:
    """The c with the least mean loss over ``lengths``, by Brent's bounded search.

    Returns:
        The record: ``value``, ``nll`` there and ``nll_without`` at c = 0, the lengths and windows
        it was fitted on, and every trial as [c, nll].

    Raises:
        ValueError: no document of the validation split is as long as the longest length.
    """
    from scipy.optimize import minimize_scalar

    ends = evaluation_windows(validation, max(lengths), target_tokens, WINDOWS)
    trials: list[list[float]] = []

    def loss(c: float) -> float:
        with length_temperature(model, float(c)):
            means = [
                window_losses(model, validation, ends, n, tokens_per_batch, autocast)
                [:, -target_tokens:].mean()
                for n in lengths
            ]  # fmt: skip
        nll = float(sum(means) / len(means))
        trials.append([round(float(c), 6), round(nll, 6)])
        return nll

    without = loss(0.0)
    minimize_scalar(
        loss, bounds=BOUNDS, method="bounded", options={"maxiter": TRIALS, "xatol": 0.005}
    )
    value, nll = min(trials, key=lambda trial: trial[1])  # never worse than c = 0
    return {
        "value": value,
        "nll": nll,
        "nll_without": round(without, 6),
        "lengths": lengths,
        "windows": len(ends),
        "trials": trials,
    }
