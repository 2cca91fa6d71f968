"""Hidden numbers: passkey, multi-key, multi-value and multi-query retrieval.

    [text] needle [text] needle ... [text]  question  answer      exactly L tokens

The tasks follow RULER (Hsieh et al. 2024, arXiv:2404.06654). A needle is a sentence such as "The
special number of Oslo is 4077123." With several keys (names), the numbers of other names distract,
so a model that copies any number it sees does not succeed. Numbers have seven digits, and each
digit is a token. A guess is right with probability 1/10 for a digit and 10^-7 for a number.
``passkey`` (arXiv:2305.16300) hides a single number, stated twice, in filler text.

Evaluation prompts and training windows (`NeedleMix`) are built in the same way. In training the
text of a task has a random length and a random place in the window, so that the position of the
question and its distance from the needles vary.

`EARLIER_TASKS` are those of the first studies, whose recipes do not name tasks: one number of five
digits, and in training a text that fills its window. They stay so that these runs can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pe._errors import unknown
from pe.data.batches import Batch, Batches

Int = npt.NDArray[np.int64]
DEPTHS = tuple(round(0.1 * i, 1) for i in range(11))
"""The depths at which evaluation of `EARLIER_TASKS` hides numbers, as shares of the text. A recipe
gives the number of prompts per depth."""
NAMES = tuple(
    "Oslo Lima Cairo Delhi Paris Quito Tokyo Sydney Geneva Lisbon Madrid Vienna Warsaw Athens "
    "Boston Denver Dublin Havana London Moscow Munich Naples Ottawa Prague Venice Zurich".split()
)
FILLER = (
    "The river runs slowly past the mill. The miller sleeps until noon. Clouds gather and drift "
    "away again. Nobody has come up the road today.\n"
)
VARIANTS = ("found", "removed", "another")
"""The prompt itself, and two controls, in which the needles that are asked for are left out, or
state other numbers."""


def _raw(seed: int, index: int, count: int) -> npt.NDArray[np.uint64]:
    """Return ``count`` raw numbers of Philox with the key (seed, index).

    NumPy never changes this raw output; it may change its distributions.
    """
    key = np.array([seed, index], dtype=np.uint64)  # NumPy would convert a list to float
    return np.random.Philox(key=key).random_raw(count)


@dataclass(frozen=True)
class NeedleTask:
    """What a text hides and what it asks for."""

    name: str
    keys: int
    """How many names have numbers in the text."""
    values: int
    """How many numbers each name has, each in a needle of its own. They are asked for in the order
    of the text."""
    queries: int
    """How many names are asked for, one after another."""
    digits: int = 7
    """The number of digits of each number."""
    stated: str = "\nThe special number of {name} is {number}.\n"
    """The needle."""
    asked: str = "\nThe special number of {name} is "
    """The question, which the answer follows."""
    filler: bool = False
    """Whether the haystack consists of a few repeated sentences and not of real text."""
    earlier: bool = False
    """Whether it is one of `EARLIER_TASKS`."""

    def draw(
        self, seed: int, index: int, depth: float | None
    ) -> tuple[list[str], list[int], Int, np.ndarray]:
        """Draw what prompt ``index`` hides; it is a function of (seed, index).

        Args:
            depth: of the first needle that is asked for. None: it is drawn like the others.

        Returns:
            Names of K keys; the indices of the keys that are asked for, in order; numbers, (K, V,
            digits); and depths, (K, V), ascending for each key, because its numbers are asked for
            in the order of the text.
        """
        hidden = self.keys * self.values
        if self.earlier:
            *digits, name, place = _raw(seed, index, self.digits + 2)
            drawn, shares = np.array(digits), np.array([place])
            names, asked = [NAMES[int(name % len(NAMES))]], [0]
        else:
            counts = (len(NAMES), self.keys, hidden * self.digits, hidden)
            raw = np.split(_raw(seed, index, sum(counts)), np.cumsum(counts)[:-1])
            drawn, shares = raw[2:]
            names = [NAMES[i] for i in np.argsort(raw[0], kind="stable")[: self.keys]]
            asked = np.argsort(raw[1], kind="stable")[: self.queries].tolist()
        numbers = (drawn % 10).astype(np.int64).reshape(self.keys, self.values, self.digits)
        depths = (shares.astype(np.float64) / 2.0**64).reshape(self.keys, self.values)
        if depth is not None:
            depths[asked[0], 0] = depth
        return names, asked, numbers, np.sort(depths, axis=1)

    def earliest(self, seed: int, count: int) -> list[float]:
        """Return for each of ``count`` prompts the depth of the first needle that is asked for."""
        drawn = (self.draw(seed, i, even_depth(i, count)) for i in range(count))
        return [float(depths[asked].min()) for _, asked, _, depths in drawn]


def even_depth(index: int, count: int) -> float:
    """Return the depth of the first needle asked for in prompt ``index``; all are evenly spaced."""
    return (index + 0.5) / count


NEEDLE_TASKS = {
    task.name: task
    for task in (
        NeedleTask(
            "passkey",
            keys=1,
            values=1,
            queries=1,
            filler=True,
            stated="\nThe pass key is {number}. Remember it: {number} is the pass key.\n",
            asked="\nWhat is the pass key? The pass key is ",
        ),
        NeedleTask("multikey", keys=4, values=1, queries=1),
        NeedleTask(
            "multivalue",
            keys=1,
            values=4,
            queries=1,
            asked="\nThe special numbers of {name} are ",
        ),
        NeedleTask("multiquery", keys=4, values=1, queries=4),
    )
}
EARLIER_TASKS = (
    replace(NEEDLE_TASKS["passkey"], digits=5, earlier=True),
    NeedleTask("needle", keys=1, values=1, queries=1, digits=5, earlier=True),
)


class Tokenizer(Protocol):
    """A tokenizer that maps text to {"input_ids": [...]}, as those of transformers do."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any: ...


class Prompt(NamedTuple):
    """A text, and the places and values of the digits of its answers."""

    ids: Int
    """(L,) tokens. The last one is the last digit of the last answer."""
    places: Int
    """(A,) indices in ``ids`` of the answers' digits, ascending."""
    digits: Int
    """(A,) the values of these digits, 0 to 9."""


class NeedleText:
    """Builds the texts of a task with a tokenizer.

    Raises:
        ValueError: the task is unknown, or the tokenizer does not make each digit a token.
    """

    def __init__(self, task: str | NeedleTask, tokenizer: Tokenizer) -> None:
        if isinstance(task, str):
            if task not in NEEDLE_TASKS:
                raise unknown("retrieval task", task, NEEDLE_TASKS)
            task = NEEDLE_TASKS[task]
        self.task = task
        self._tokenizer = tokenizer
        self._ids: dict[str, Int] = {}  # of texts that were tokenised before
        digits = [self._text(str(digit)) for digit in range(10)]
        if any(len(ids) != 1 for ids in digits) or len({int(ids[0]) for ids in digits}) < 10:
            raise ValueError(
                "retrieval needs a tokenizer that makes each digit one token; the tokenizer 'bpe' "
                "does"
            )
        self.digit_ids = np.concatenate(digits)
        """(10,) tokens of the digits."""

    def _text(self, text: str) -> Int:
        if text not in self._ids:
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            self._ids[text] = np.asarray(ids, dtype=np.int64)
        return self._ids[text]

    def _needle(self, name: str, number: Int) -> Int:
        parts: list[Int] = []
        for index, text in enumerate(self.task.stated.split("{number}")):
            parts += [self.digit_ids[number]] if index else []
            parts.append(self._text(text.format(name=name)))
        return np.concatenate(parts)

    def _question(self, name: str, numbers: Int) -> tuple[Int, Int]:
        """Return the tokens of a question and its answer, and the places of the answer's digits."""
        parts = [self._text(self.task.asked.format(name=name))]
        places: list[Int] = []
        for index, number in enumerate(numbers):
            if index:
                parts.append(self._text(", "))
            places.append(sum(map(len, parts)) + np.arange(self.task.digits))
            parts.append(self.digit_ids[number])
        return np.concatenate(parts), np.concatenate(places)

    def shortest(self) -> int:
        """Return the number of tokens that needles, questions and answers take at most.

        A text of this length has room for all of them, whatever names and numbers are drawn.
        """
        task, zeros = self.task, np.zeros((self.task.values, self.task.digits), dtype=np.int64)
        needle = max(len(self._needle(name, zeros[0])) for name in NAMES)
        question = max(len(self._question(name, zeros)[0]) for name in NAMES)
        return task.keys * task.values * needle + task.queries * question

    def build(
        self,
        seed: int,
        index: int,
        length: int,
        haystack: Int,
        *,
        depth: float | None = None,
        variant: str = "found",
    ) -> Prompt:
        """Build a text; names, numbers and depths are functions of (seed, index).

        Args:
            length: of the text in tokens, the last answer included.
            haystack: (n,) tokens of text, at least as many as needles and questions leave room for.
            depth: share of the haystack, 0 to 1, before the first needle that is asked for; the
                other needles are at random depths. None: this one too.
            variant: one of `VARIANTS`.

        Raises:
            ValueError: the variant is unknown, ``length`` has no room for needles, questions and
                answers, or the haystack is too short.
        """
        if variant not in VARIANTS:
            raise unknown("variant", variant, VARIANTS)
        task = self.task
        names, asked, numbers, depths = task.draw(seed, index, depth)
        questions = [self._question(names[key], numbers[key]) for key in asked]
        stated = numbers.copy()
        if variant == "another":  # every digit becomes another one
            stated[asked] = (numbers[asked] + 1 + index % 9) % 10
        needles = [
            (depths[key, value], self._needle(names[key], stated[key, value]))
            for key in range(task.keys)
            for value in range(task.values)
            if variant != "removed" or key not in asked
        ]
        needles.sort(key=lambda needle: needle[0])
        taken = sum(len(n) for _, n in needles) + sum(len(q) for q, _ in questions)
        room = length - taken
        if room < 0:
            raise ValueError(
                f"a {task.name} text of {length} tokens has no room for its needles, questions "
                f"and answers; use at least {self.shortest()}"
            )
        if task.filler:
            haystack = np.resize(self._text(FILLER), room)
        if len(haystack) < room:
            raise ValueError(f"the haystack has {len(haystack)} tokens; {room} are needed")
        parts, before = [], 0
        for share, needle in needles:
            here = round(float(share) * room)
            parts += [haystack[before:here], needle]
            before = here
        parts.append(haystack[before:room])
        places, at = [], sum(map(len, parts))
        for question, inside in questions:
            parts.append(question)
            places.append(at + inside)
            at += len(question)
        digits = np.concatenate([numbers[key].ravel() for key in asked])
        return Prompt(np.concatenate(parts), np.concatenate(places), digits)


def texts_of(tasks: Sequence[str], tokenizer: Tokenizer) -> list[NeedleText]:
    """Return the tasks of a recipe's ``retrieval_tasks``; `EARLIER_TASKS` if it names none."""
    return [NeedleText(task, tokenizer) for task in tasks or EARLIER_TASKS]


# The index of a prompt is the second half of a Philox key. Evaluation prompts are counted from 0,
# training texts and the choices below from these numbers, so that no two share a key.
_KEYS, _EARLIER_KEYS = (3 * 2**61, 2**63 + 2**62), (2**62, 2**63)


class NeedleMix(Batches):
    """`Batches` in which a share of the windows contains a retrieval text of one of the tasks.

    Which windows these are, which task each has, how long its text is and where it begins are
    functions of (seed, number of the window). The text before and after it, and its haystack, are
    those of the window.

    Args:
        plain: the batches in which windows are replaced. share: of windows, more than 0, at most 1.
        tasks: names of tasks, as in a recipe. Empty: `EARLIER_TASKS`, whose texts fill the window.

    Raises:
        ValueError: a task is unknown, the share is not in this range, or the context is too short.
    """

    def __init__(
        self, plain: Batches, share: float, tokenizer: Tokenizer, tasks: Sequence[str]
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(
                f"the share of retrieval texts is {share}; expected more than 0 and at most 1"
            )
        super().__init__(
            plain.split, plain.context_length, plain.batch_size, plain.seed, plain.first_token
        )
        self.share, self.fill = share, not tasks
        self.texts = texts_of(tasks, tokenizer)
        self._shortest = [text.shortest() for text in self.texts]
        if plain.context_length + 1 < max(self._shortest):
            raise ValueError(
                f"context_length is {plain.context_length}; retrieval texts need "
                f"{max(self._shortest)}: use a longer one, or set retrieval_share to 0"
            )

    def windows_of(self, step: int, rows: slice) -> Batch:
        """Return the windows of a batch, some of which contain a retrieval text."""
        batch = super().windows_of(step, rows)
        numbers = (step * self.batch_size + np.arange(self.batch_size))[rows]
        training, choices = _EARLIER_KEYS if self.fill else _KEYS
        for row, number in enumerate(numbers):
            raw = _raw(self.seed, choices + int(number), 4)
            if float(raw[0]) / 2.0**64 >= self.share:
                continue
            which = int(raw[1] % len(self.texts))
            window = np.append(batch.input_ids[row], batch.targets[row, -1])
            longest, shortest = len(window), self._shortest[which]
            length = longest if self.fill else shortest + int(raw[2] % (longest - shortest + 1))
            begin = int(raw[3] % (longest - length + 1))
            prompt = self.texts[which].build(
                self.seed, training + int(number), length, window[begin : begin + length]
            )
            window[begin : begin + length] = prompt.ids
            batch.input_ids[row], batch.targets[row] = window[:-1], window[1:]
            batch.documents[row] = 0
            batch.positions[row] = np.arange(self.context_length)
        return batch
