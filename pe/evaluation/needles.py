"""Can the model find several hidden numbers? The hits of every prompt are kept for paired tests.

Scores are teacher-forced, as in `pe.evaluation.retrieval`: one forward pass gives the logits of all
digits of all answers. A prompt is right where every digit of every answer is, the choice being
among the ten digits (chance 1e-7 per number). `pe.data.needles` builds the prompts; all models get
the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe._errors import PositionError
from pe.data.needles import DIGITS, VARIANTS, NeedleText, Prompt, even_depth
from pe.data.shards import Split
from pe.evaluation.retrieval import haystack_starts
from pe.evaluation.scorer import Scorer, no_value

SEED = 20_240_404
"""Of the prompts: the same for every model and every training seed."""
CONTROLS = 0.2
"""Prompts of each control, as a share of the prompts."""


def prompts(
    text: NeedleText, split: Split, length: int, count: int, variant: str = "found"
) -> list[Prompt]:
    """``count`` prompts of ``length`` tokens; the first needle asked for lies at even depths.

    Raises:
        ValueError: no document of ``split`` has ``length`` tokens, or no room in ``length``.
    """
    starts = haystack_starts(split, length)
    made = []
    for index in range(count):
        start = int(starts[index % len(starts)])
        haystack = np.asarray(split.tokens[start : start + length], dtype=np.int64)
        depth = even_depth(index, count)
        made.append(text.build(SEED, index, length, haystack, depth=depth, variant=variant))
    return made


def hits(scorer: Scorer, made: Sequence[Prompt], digit_ids: np.ndarray) -> np.ndarray:
    """Right or wrong for each digit of each answer: bool (prompts, numbers, DIGITS)."""
    # The token at place t is predicted from those before it, at t - 1.
    places = np.stack([p.places for p in made]) - 1

    def digits(hidden: Tensor, some: slice) -> Tensor:
        at = torch.from_numpy(places[some]).to(hidden.device)[..., None]
        choices = torch.from_numpy(digit_ids).to(hidden.device)
        states = hidden.gather(1, at.expand(-1, -1, hidden.shape[-1]))
        logits: Tensor = scorer.model.lm_head(states).float()
        return logits[..., choices].argmax(-1)

    found = scorer.apply(np.stack([p.ids for p in made]), digits)
    right: np.ndarray = found == np.stack([p.digits for p in made])
    return right.reshape(len(made), -1, DIGITS)


def evaluate_needles(
    scorer: Scorer,
    tasks: Sequence[str],
    count: int,
    temperatures: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """What evaluation.json keeps of each task and length.

    ``prompts`` is a string with 1 for each prompt that is wholly right and 0 for the others, in
    their order, which is the same for every model; ``numbers`` and ``digits`` are the shares of
    numbers and digits that are right; ``controls`` counts prompts that are right without a cause.
    """
    found: dict[str, Any] = {}
    for task in tasks:
        text, cells = NeedleText(task, scorer.data.tokenizer), {}
        for length in scorer.lengths:
            try:
                with scorer.temperature((temperatures or {}).get(length)):
                    cells[str(length)] = _cell(scorer, text, length, count)
            except PositionError as error:
                cells[str(length)] = {"prompts": None, "reason": no_value(error)}
        found[task] = cells
    return {"count": count, "seed": SEED, "digits": DIGITS, "tasks": found}


def control_prompts(count: int) -> int:
    """Prompts of each control beside ``count`` prompts."""
    return max(1, round(CONTROLS * count))


def _cell(scorer: Scorer, text: NeedleText, length: int, count: int) -> dict[str, Any]:
    def right(variant: str, many: int) -> np.ndarray:
        made = prompts(text, scorer.split, length, many, variant)
        return hits(scorer, made, text.digit_ids)

    digits = right("found", count)
    numbers = np.asarray(digits.all(-1))
    few = control_prompts(count)
    return {
        "prompts": "".join(str(int(all(row))) for row in numbers),
        "numbers": round(float(numbers.mean()), 6),
        "digits": round(float(digits.mean()), 6),
        "controls": {v: int(right(v, few).all((-1, -2)).sum()) for v in VARIANTS[1:]},
        "reason": None,
    }
