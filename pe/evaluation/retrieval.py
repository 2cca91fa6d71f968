"""Can the model find numbers that the text hides? Exact match, by length.

Every prompt with its answers is exactly L tokens, its haystack is held-out text, and all models get
the same prompts (`pe.data.needles`). Scores are teacher-forced: one forward pass gives the logits
of all digits of all answers, and a prompt is right where every digit of every answer is. The choice
is among the ten digits (a guess is right once in ten for each), or, as ``greedy``, the whole
vocabulary; that is the same as greedy decoding, since a continuation is judged only as long as it
is right.

Two controls take the answer out of the text: the needle ``removed``, and a needle that states
``another`` number. A model that still scores there is not reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe._errors import PositionError
from pe.data.needles import DEPTHS, VARIANTS, NeedleText, Prompt, even_depth, texts_of
from pe.data.shards import Split
from pe.evaluation.scorer import Scorer, no_value

SEED, EARLIER_SEED = 20_240_404, 20_231_111
"""Of the prompts: the same for every model and every training seed."""
CONTROLS = 0.2
"""Prompts of each control, as a share of the prompts."""


def prompts(
    text: NeedleText,
    split: Split,
    length: int,
    count: int,
    variant: str = "found",
    seed: int | None = None,
) -> list[Prompt]:
    """``count`` prompts of ``length`` tokens; the first needle asked for lies at even depths.

    Each haystack begins with a document, one document after another. The earlier tasks have as many
    prompts at each of `DEPTHS`, one depth after the other. ``seed`` is `SEED` unless given.

    Raises:
        ValueError: no document of ``split`` has ``length`` tokens, or no room in ``length``.
    """
    documents = np.flatnonzero(split.lengths >= length)
    if not len(documents):
        raise ValueError(
            f"no test document has {length:,} tokens; use a corpus with longer documents or "
            "shorter evaluation_lengths"
        )
    earlier = text.task.earlier
    if seed is None:
        seed = EARLIER_SEED if earlier else SEED
    each = count // len(DEPTHS)
    made = []
    for index in range(count):
        depth = DEPTHS[index // each] if earlier else even_depth(index, count)
        start = int(split.starts[documents[index % len(documents)]])
        haystack = np.asarray(split.tokens[start : start + length], dtype=np.int64)
        made.append(text.build(seed, index, length, haystack, depth=depth, variant=variant))
    return made


def answer_states(hidden: Tensor, places: np.ndarray) -> Tensor:
    """(n, T, hidden) states -> (n, A, hidden), those from which the tokens at ``places`` follow.

    The token at place t is predicted from those before it, at t - 1.
    """
    at = torch.from_numpy(places - 1).to(hidden.device)[..., None]
    return hidden.gather(1, at.expand(-1, -1, hidden.shape[-1]))


def hits(scorer: Scorer, made: Sequence[Prompt], digit_ids: np.ndarray) -> np.ndarray:
    """Right or wrong for each digit of all answers: bool (2, prompts, digits).

    First with the choice among the ten digits, then with the whole vocabulary.
    """
    places = np.stack([p.places for p in made])

    def best(hidden: Tensor, some: slice) -> Tensor:
        choices = torch.from_numpy(digit_ids).to(hidden.device)
        logits: Tensor = scorer.model.lm_head(answer_states(hidden, places[some])).float()
        return torch.stack((choices[logits[..., choices].argmax(-1)], logits.argmax(-1)), 1)

    answers = digit_ids[np.stack([p.digits for p in made])]
    right: np.ndarray = scorer.apply(np.stack([p.ids for p in made]), best) == answers[:, None]
    return right.swapaxes(0, 1)


def evaluate_retrieval(
    scorer: Scorer,
    tasks: Sequence[str],
    count: int,
    temperatures: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """A part of evaluation.json: ``{"needles": ...}`` of each task and length.

    ``prompts`` is a string with 1 for each prompt that is wholly right and 0 for the others, in
    their order, which is the same for every model; ``numbers`` and ``digits`` are the shares of
    numbers and digits that are right; ``controls`` counts prompts that are right without a cause.

    Without tasks it is ``{"retrieval": ...}``, the record of the earlier ones: counts by depth.
    """
    results: dict[str, Any] = {}
    for text in texts_of(tasks, scorer.data.tokenizer):
        cells = results[text.task.name] = {}
        for length in scorer.lengths:
            try:
                with scorer.temperature((temperatures or {}).get(length)):
                    measure = _cell if tasks else _cell_by_depth
                    cells[str(length)] = measure(scorer, text, length, count)
            except PositionError as error:
                names = ("prompts",) if tasks else ("exact", "greedy", "digits", "controls")
                cells[str(length)] = dict.fromkeys(names) | {"reason": no_value(error)}
    digits = text.task.digits
    if tasks:
        return {"needles": {"count": count, "seed": SEED, "digits": digits, "tasks": results}}
    samples = count // len(DEPTHS)
    depths = list(DEPTHS)
    return {"retrieval": {"samples": samples, "depths": depths, "digits": digits, "tasks": results}}


def control_prompts(count: int) -> int:
    """Prompts of each control beside ``count`` prompts."""
    return max(1, round(CONTROLS * count))


def _right(
    scorer: Scorer, text: NeedleText, length: int, count: int, variant: str = "found"
) -> np.ndarray:
    return hits(scorer, prompts(text, scorer.split, length, count, variant), text.digit_ids)


def _cell(scorer: Scorer, text: NeedleText, length: int, count: int) -> dict[str, Any]:
    digits = _right(scorer, text, length, count)[0]
    numbers = digits.reshape(count, -1, text.task.digits).all(-1)
    controls = {v: _right(scorer, text, length, control_prompts(count), v)[0] for v in VARIANTS[1:]}
    return {
        "prompts": "".join(str(int(all(row))) for row in numbers),
        "numbers": round(float(numbers.mean()), 6),
        "digits": round(float(digits.mean()), 6),
        "controls": {variant: int(right.all(-1).sum()) for variant, right in controls.items()},
        "reason": None,
    }


def _cell_by_depth(scorer: Scorer, text: NeedleText, length: int, count: int) -> dict[str, Any]:
    counts: dict[str, dict[str, list[int]]] = {}
    for variant in VARIANTS:
        digits, free = _right(scorer, text, length, count, variant)
        right = {"exact": digits.all(-1), "greedy": free.all(-1), "digits": digits}
        counts[variant] = {
            name: hit.reshape(len(DEPTHS), -1).sum(-1).tolist() for name, hit in right.items()
        }
    controls = {v: {name: sum(c) for name, c in counts[v].items()} for v in VARIANTS[1:]}
    return counts["found"] | {"controls": controls, "reason": None}
