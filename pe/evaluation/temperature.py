"""Fit one number to a trained model: how much sharper attention should be on longer texts.

    logits of a query that sees n > L tokens  <-  logits x (1 + c ln(n / L))

DroPE's long-context results use such a temperature, with c fitted for each model at the length it
is used at (arXiv:2512.12167). It helps other encodings too, so every run may get its own c for each
length: fitted on validation text, reported on test text, beside the model as it was trained
(c = 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pe.evaluation.scorer import Scorer

BOUNDS = (-0.5, 1.5)
TRIALS = 14
WINDOWS = 16
"""Windows of validation text on which a temperature is fitted."""


def fit_temperatures(scorer: Scorer, lengths: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The fit of each length, on the same windows of validation text.

    Raises:
        ValueError: no document of the validation split is longer than the longest length.
    """
    text = Scorer(
        scorer.model, scorer.data, scorer.recipe, lengths, split="validation", windows=WINDOWS,
        float32_residual=scorer.float32_residual,
    )  # fmt: skip
    return {length: fit_temperature(text, length) for length in text.lengths}


def fit_temperature(text: Scorer, length: int) -> dict[str, Any]:
    """The c with the least mean loss behind ``length`` tokens, by Brent's bounded search.

    Args:
        text: the model on windows of validation text.

    Returns:
        The record: ``value``, ``nll`` there and ``nll_without`` at c = 0, the length and windows it
        was fitted on, every trial as [c, nll], and ``at_bound``: no c between the value and the end
        of `BOUNDS` was worse, so that the best c may lie beyond.
    """
    from scipy.optimize import minimize_scalar

    trials: list[list[float]] = []

    def loss(c: float) -> float:
        with text.temperature(float(c)):
            nll = text.nll(length)
        trials.append([round(float(c), 6), round(nll, 6)])
        return nll

    without = loss(0.0)
    minimize_scalar(
        loss, bounds=BOUNDS, method="bounded", options={"maxiter": TRIALS, "xatol": 0.005}
    )
    value, nll = min(trials, key=lambda trial: trial[1])  # never worse than c = 0
    tried = [c for c, _ in trials]
    return {
        "value": value,
        "nll": nll,
        "nll_without": round(without, 6),
        "lengths": [length],
        "windows": len(text.ends),
        "trials": trials,
        "at_bound": value in (min(tried), max(tried)),
    }
