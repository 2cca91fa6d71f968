"""Texts that hide a number and ask for it: passkey and needle, built from token ids.

    [haystack]  needle  [haystack]  question  answer        exactly L tokens

``passkey`` repeats a few sentences of filler and states one key twice (arXiv:2305.16300);
``needle`` hides one sentence about a named thing in real text. The answer is a row of digits, each
a token of its own, so every prompt of a length has the answer at the same places and a guess is
right once in ten for a digit, once in 100,000 for five.

The same builder makes training windows (`RetrievalMix`) and evaluation prompts
(`pe.evaluation.retrieval`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pe._errors import unknown
from pe.data.batches import Batch, Batches

Int = npt.NDArray[np.int64]
TASKS = ("passkey", "needle")
DIGITS = 5
DEPTHS = tuple(round(0.1 * i, 1) for i in range(11))
"""Depths at which evaluation hides a number; a recipe asks for so many prompts at each."""
NAMES = tuple(
    "Oslo Lima Cairo Delhi Paris Quito Tokyo Sydney Geneva Lisbon Madrid Vienna Warsaw Athens "
    "Boston Denver Dublin Havana London Moscow Munich Naples Ottawa Prague Venice Zurich".split()
)
FILLER = (
    "The river runs slowly past the mill. The miller sleeps until noon. Clouds gather and drift "
    "away again. Nobody has come up the road today.\n"
)


class Tokenizer(Protocol):
    """What is asked of a tokenizer: text -> {"input_ids": [...]}"""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any: ...


def digit_tokens(tokenizer: Tokenizer) -> Int:
    """(10,) token of each digit.

    Raises:
        ValueError: the tokenizer does not make each digit one token.
    """
    single = [tokenizer(str(d), add_special_tokens=False)["input_ids"] for d in range(10)]
    if any(len(ids) != 1 for ids in single) or len({int(ids[0]) for ids in single}) < 10:
        raise ValueError(
            "retrieval needs a tokenizer that makes each digit one token; the tokenizer 'bpe' does"
        )
    return np.asarray(single, dtype=np.int64)[:, 0]


class Item(NamedTuple):
    """One hidden number."""

    key: Int
    """(DIGITS,) values 0 to 9."""
    name: str
    depth: float
    """Share of the haystack that lies before the needle, 0 to 1."""


class RetrievalText:
    """Builds the texts of one task with one tokenizer.

    Raises ValueError for an unknown task, and for a tokenizer that does not give every digit a
    token of its own.
    """

    def __init__(self, task: str, tokenizer: Tokenizer) -> None:
        if task not in TASKS:
            raise unknown("retrieval task", task, TASKS)
        self.task = task
        self._encode = lambda text: np.asarray(
            tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int64
        )
        self.digit_ids: Int = digit_tokens(tokenizer)
        """(10,) token of each digit."""
        self._filler = self._encode(FILLER)
        self._cache: dict[str, Int] = {}

    def _text(self, text: str) -> Int:
        if text not in self._cache:
            self._cache[text] = self._encode(text)
        return self._cache[text]

    def needle(self, item: Item) -> Int:
        """The sentence that states the number."""
        key = self.digit_ids[item.key]
        if self.task == "passkey":
            parts = ["\nThe pass key is ", key, ". Remember it: ", key, " is the pass key.\n"]
        else:
            parts = [f"\nThe special number of {item.name} is ", key, ".\n"]
        return np.concatenate([self._text(p) if isinstance(p, str) else p for p in parts])

    def question(self, item: Item) -> Int:
        """What precedes the answer."""
        if self.task == "passkey":
            return self._text("\nWhat is the pass key? The pass key is ")
        return self._text(f"\nThe special number of {item.name} is ")

    def shortest(self) -> int:
        """Tokens that needle, question and answer take at most: no text can be shorter."""
        names = NAMES if self.task == "needle" else NAMES[:1]
        items = [Item(np.zeros(DIGITS, dtype=np.int64), name, 0.0) for name in names]
        return max(len(self.needle(i)) + len(self.question(i)) + DIGITS for i in items)

    def build(self, item: Item, length: int, haystack: Int, hidden: Item | None = None) -> Int:
        """(length,) token ids whose last `DIGITS` are the answer ``item.key``.

        Args:
            haystack: at least ``length`` tokens of real text; ``passkey`` does not use them.
            hidden: what the needle states instead, for a control.

        Raises:
            ValueError: ``length`` has no room for needle, question and answer.
        """
        needle, question = self.needle(hidden or item), self.question(item)
        return self._assemble(item, length, haystack, needle, question)

    def without_needle(self, item: Item, length: int, haystack: Int) -> Int:
        """The same text with haystack where the needle was."""
        return self._assemble(item, length, haystack, self.needle(item)[:0], self.question(item))

    def _assemble(self, item: Item, length: int, haystack: Int, needle: Int, question: Int) -> Int:
        room = length - len(needle) - len(question) - DIGITS
        if room < 0:
            raise ValueError(
                f"a {self.task} text of {length} tokens has no room for its needle, question and "
                f"answer; use at least {self.shortest()}"
            )
        if self.task == "passkey":
            haystack = np.resize(self._filler, room)
        if len(haystack) < room:
            raise ValueError(f"the haystack has {len(haystack)} tokens; {room} are needed")
        before = round(item.depth * room)
        answer = self.digit_ids[item.key]
        return np.concatenate((haystack[:before], needle, haystack[before:room], question, answer))


# Second halves of Philox keys: epochs and evaluation prompts count from 0, these from far above.
_TRAINING, _CHOICES = 2**62, 2**63


def _raw(seed: int, index: int, count: int) -> npt.NDArray[np.uint64]:
    """Raw Philox output: fixed for good, which NumPy does not promise of its distributions."""
    key = np.array([seed, index], dtype=np.uint64)  # a list of both sizes would become float
    raw: npt.NDArray[np.uint64] = np.random.Philox(key=key).random_raw(count)
    return raw


def draw_item(seed: int, index: int, depth: float | None = None) -> Item:
    """Item ``index`` of an endless row; its depth too, unless it is given."""
    raw = _raw(seed, index, DIGITS + 2)
    key = (raw[:DIGITS] % 10).astype(np.int64)
    where = float(raw[-1]) / 2.0**64 if depth is None else depth
    return Item(key, NAMES[int(raw[DIGITS] % len(NAMES))], where)


class RetrievalMix(Batches):
    """`Batches` in which a share of the windows are retrieval texts, half of each task.

    Which windows, and what they hide, follows from (seed, row) alone. A replaced window keeps its
    own text as haystack. Raises ValueError if the context length has no room for such a text.
    """

    def __init__(self, plain: Batches, share: float, tokenizer: Tokenizer) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"the share of retrieval texts is {share}; expected 0 to 1")
        super().__init__(
            plain.split, plain.context_length, plain.batch_size, plain.seed, plain.first_token
        )
        self.share = share
        self.texts = [RetrievalText(task, tokenizer) for task in TASKS]
        shortest = max(text.shortest() for text in self.texts)
        if plain.context_length + 1 < shortest:
            raise ValueError(
                f"context_length is {plain.context_length}; retrieval texts need {shortest}"
            )

    def windows_of(self, step: int, rows: slice) -> Batch:
        """The windows of a batch, some of them replaced."""
        batch = super().windows_of(step, rows)
        numbers = (step * self.batch_size + np.arange(self.batch_size))[rows]
        for place, number in enumerate(numbers):
            choice = _raw(self.seed, _CHOICES + int(number), 2)
            if float(choice[0]) / 2.0**64 >= self.share:
                continue
            text = self.texts[int(choice[1] % len(self.texts))]
            haystack = np.append(batch.input_ids[place], batch.targets[place, -1])
            made = text.build(
                draw_item(self.seed, _TRAINING + int(number)), len(haystack), haystack
            )
            batch.input_ids[place], batch.targets[place] = made[:-1], made[1:]
            batch.documents[place] = 0
            batch.positions[place] = np.arange(self.context_length)
        return batch
