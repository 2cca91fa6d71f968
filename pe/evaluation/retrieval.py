"""Measure whether a model finds numbers that the text hides, by exact match at each length.

Every prompt with its answers has exactly L tokens, its haystack is held-out text, and all models
get the same prompts (`pe.data.needles`). Scores are teacher-forced: one forward pass gives the
logits of all digits of all answers, and a prompt is right if every digit of every answer is right.
The model chooses among the ten digits, where a guess is right with probability 1/10 per digit, or,
for ``greedy``, among the whole vocabulary. The latter equals greedy decoding, because a prompt
counts as right only if all digits before are right. A length at which logits of answers are not
finite has no value, as in perplexities.

Two controls take the answer out of the text: the needle is ``removed``, or it states ``another``
number. A model that scores on these does not take its answers from the text.
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
from pe.evaluation.scorer import NotFinite, Scorer, no_value

SEED, EARLIER_SEED = 20_240_404, 20_231_111
"""The seeds of the prompts; they are the same for every model and every training seed."""
CONTROLS = 0.2
"""The number of prompts of each control, as a share of the prompts."""


def prompts(
    text: NeedleText,
    split: Split,
    length: int,
    count: int,
    variant: str = "found",
    seed: int | None = None,
) -> list[Prompt]:
    """Build ``count`` prompts of ``length`` tokens.

    The haystacks are the beginnings of the documents that are long enough, in turn. The depths of
    the first needles asked for are evenly spaced. `EARLIER_TASKS` have equally many prompts at each
    of `DEPTHS`, and those of a depth follow one another.

    Args:
        variant: one of `pe.data.needles.VARIANTS`.
        seed: of names, numbers and depths. None: `SEED`, or `EARLIER_SEED` for an earlier task.

    Raises:
        ValueError: no document of ``split`` has ``length`` tokens, or ``length`` is too short for
            needles, questions and answers.
    """
    documents = np.flatnonzero(split.lengths >= length)
    if not len(documents):
        raise ValueError(
            f"no document has {length:,} tokens; use a corpus with longer documents or shorter "
            "evaluation_lengths"
        )
    earlier = text.task.earlier
    if seed is None:
        seed = EARLIER_SEED if earlier else SEED
    per_depth = count // len(DEPTHS)
    results = []
    for index in range(count):
        depth = DEPTHS[index // per_depth] if earlier else even_depth(index, count)
        start = int(split.starts[documents[index % len(documents)]])
        haystack = np.asarray(split.tokens[start : start + length], dtype=np.int64)
        results.append(text.build(seed, index, length, haystack, depth=depth, variant=variant))
    return results


def answer_states(hidden: Tensor, places: np.ndarray) -> Tensor:
    """Return the states that predict the tokens at ``places``: (n, T, hidden) -> (n, A, hidden).

    The token at place t is predicted by the state at t - 1.

    Args:
        places: (n, A) int64.
    """
    index = torch.from_numpy(places - 1).to(hidden.device)[..., None]
    return hidden.gather(1, index.expand(-1, -1, hidden.shape[-1]))


def hits(scorer: Scorer, asked: Sequence[Prompt], digit_ids: np.ndarray) -> np.ndarray:
    """Return whether each digit of all answers is right, bool (2, prompts, digits).

    Entry 0 is for a choice among the ten digits, entry 1 for one among the whole vocabulary.

    Args:
        digit_ids: (10,) tokens of the digits.

    Raises:
        NotFinite: some logits are not finite.
        PositionError: the encoding has too few positions.
    """
    places = np.stack([p.places for p in asked])

    def best(hidden: Tensor, some: slice) -> Tensor:
        choices = torch.from_numpy(digit_ids).to(hidden.device)
        logits: Tensor = scorer.model.lm_head(answer_states(hidden, places[some])).float()
        return torch.stack((choices[_largest(logits[..., choices])], _largest(logits)), 1)

    answers = digit_ids[np.stack([p.digits for p in asked])]
    right: np.ndarray = scorer.apply(np.stack([p.ids for p in asked]), best) == answers[:, None]
    return right.swapaxes(0, 1)


def _largest(logits: Tensor) -> Tensor:
    """Return the index of the largest logit, (..., n) -> (...), if that is finite."""
    values, indices = logits.max(dim=-1)
    if not values.isfinite().all():
        raise NotFinite
    return indices


def evaluate_retrieval(
    scorer: Scorer,
    tasks: Sequence[str],
    count: int,
    temperatures: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """Measure retrieval for each task and length.

    Args:
        tasks: names in `pe.data.needles.NEEDLE_TASKS`; empty for `EARLIER_TASKS`.
        count: prompts per task and length.
        temperatures: by length, the length temperature that replaces the model's own.

    Returns:
        ``{"needles": ...}``, an entry of evaluation.json. Per task and length, ``prompts`` is a
        string with 1 for each prompt that is right and 0 for others, in an order that is the same
        for every model. ``numbers`` and ``digits`` are the shares of numbers and digits that are
        right. ``controls`` counts the prompts of each control that are right.
        For `EARLIER_TASKS` it is ``{"retrieval": ...}``, which has counts by depth.
    """
    results: dict[str, Any] = {}
    for text in texts_of(tasks, scorer.data.tokenizer):
        cells = results[text.task.name] = {}
        for length in scorer.lengths:
            try:
                with scorer.temperature((temperatures or {}).get(length)):
                    measure = _cell if tasks else _cell_by_depth
                    cells[str(length)] = measure(scorer, text, length, count)
            except (PositionError, NotFinite) as error:
                names = ("prompts",) if tasks else ("exact", "greedy", "digits", "controls")
                cells[str(length)] = dict.fromkeys(names) | {"reason": no_value(error)}
    digits = text.task.digits
    if tasks:
        return {"needles": {"count": count, "seed": SEED, "digits": digits, "tasks": results}}
    samples = count // len(DEPTHS)
    depths = list(DEPTHS)
    return {"retrieval": {"samples": samples, "depths": depths, "digits": digits, "tasks": results}}


def control_prompts(count: int) -> int:
    """Return the number of prompts of each control for ``count`` prompts."""
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
