"""Can the model find a number that the text hides? Exact match by length and depth.

Every prompt with its answer is exactly L tokens. Scores are teacher-forced: one forward pass gives
the logits of all digits of the answer. Three are recorded for each cell of the grid, as counts:

    exact    all digits right, the choice being among the ten digits   (chance 1e-5)
    greedy   all digits right, the choice being the whole vocabulary; the same as greedy decoding,
             since a continuation is judged only as long as it is right
    digits   single digits right, among the ten                        (chance 0.1 each)

Two controls take the answer out of the text: the needle ``removed``, and a needle that states
``another`` key. A model that still scores there is not reading. Haystacks are held-out text; all
models get the same prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe._errors import PositionError
from pe.data.retrieval import DEPTHS, DIGITS, TASKS, Item, RetrievalText, draw_item
from pe.data.shards import Split
from pe.evaluation.scorer import Scorer, no_value

SEED = 20_231_111
"""Of the prompts: the same for every model and every training seed."""
VARIANTS = ("found", "removed", "another")


def prompts(
    text: RetrievalText, split: Split, length: int, samples: int, variant: str
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (depths x samples, length) and the digits to be found (depths x samples, 5).

    Raises:
        ValueError: no document of ``split`` has as many tokens as ``length``.
    """
    places = haystack_starts(split, length)
    rows, keys = [], []
    for d, depth in enumerate(DEPTHS):
        for s in range(samples):
            index = d * samples + s
            item = draw_item(SEED, index, depth)
            start = places[index % len(places)]
            haystack = np.asarray(split.tokens[start : start + length], dtype=np.int64)
            if variant == "removed":
                row = text.without_needle(item, length, haystack)
            elif variant == "another":  # every digit differs
                other = Item((item.key + 1 + index % 9) % 10, item.name, depth)
                row = text.build(item, length, haystack, hidden=other)
            else:
                row = text.build(item, length, haystack)
            rows.append(row)
            keys.append(item.key)
    return np.stack(rows), np.stack(keys)


def haystack_starts(split: Split, length: int) -> np.ndarray:
    """Where haystacks begin: each inside one document, one document after another."""
    documents = np.flatnonzero(split.lengths >= length)
    if not len(documents):
        raise ValueError(
            f"no test document has {length:,} tokens; use a corpus with longer documents or "
            "shorter evaluation_lengths"
        )
    return np.asarray(split.starts[documents])


def score(
    scorer: Scorer, rows: np.ndarray, keys: np.ndarray, digit_ids: np.ndarray
) -> dict[str, np.ndarray]:
    """Right or wrong for each prompt: ``exact`` and ``greedy`` (N,), ``digits`` (N, 5)."""

    def answers(hidden: Tensor, some: slice) -> Tensor:
        """The best among the digits and the best of the vocabulary, (n, 2, 5) token ids."""
        choices = torch.from_numpy(digit_ids).to(hidden.device)
        logits = scorer.model.lm_head(hidden[:, -DIGITS:]).float()
        return torch.stack((choices[logits[..., choices].argmax(-1)], logits.argmax(-1)), 1)

    right = scorer.apply(rows, answers) == digit_ids[keys][:, None]
    digits, free = right[:, 0], right[:, 1]
    return {"exact": digits.all(-1), "greedy": free.all(-1), "digits": digits}


def evaluate_retrieval(
    scorer: Scorer, temperatures: Mapping[int, float] | None = None
) -> dict[str, Any]:
    """The ``retrieval`` part of evaluation.json: counts by task, length, depth.

    As many prompts in each cell as the scorer's recipe says; controls are pooled over the depths.
    ``temperatures`` as in `Scorer.perplexities`.
    """
    samples, tasks = scorer.recipe.retrieval_samples, {}
    for task in TASKS:
        text, cells = RetrievalText(task, scorer.data.tokenizer), {}
        for length in scorer.lengths:
            with scorer.temperature((temperatures or {}).get(length)):
                cells[str(length)] = _length(scorer, text, length, samples)
        tasks[task] = cells
    return {"samples": samples, "depths": list(DEPTHS), "digits": DIGITS, "tasks": tasks}


def _length(scorer: Scorer, text: RetrievalText, length: int, samples: int) -> dict[str, Any]:
    cell: dict[str, Any] = {"exact": None, "greedy": None, "digits": None, "controls": None}
    try:
        for variant in VARIANTS:
            rows, keys = prompts(text, scorer.split, length, samples, variant)
            right = score(scorer, rows, keys, text.digit_ids)
            by_depth = {k: v.reshape(len(DEPTHS), -1).sum(-1).tolist() for k, v in right.items()}
            if variant == "found":
                cell |= by_depth | {"controls": {}}
            else:
                cell["controls"][variant] = {name: sum(c) for name, c in by_depth.items()}
    except PositionError as error:
        return cell | {"reason": no_value(error)}
    return cell | {"reason": None}
