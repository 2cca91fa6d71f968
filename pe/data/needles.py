"""Hidden numbers: passkey, multi-key, multi-value and multi-query retrieval.

    [text] needle [text] needle ... [text]  question  answer      exactly L tokens

After RULER's tasks (Hsieh et al. 2024, arXiv:2404.06654): one needle says "The special number of
Oslo is 4077123." With several keys the others distract, so copying the only number in sight earns
nothing. Numbers have seven digits, each a token; a guess is right once in ten for a digit and once
in ten million for a number. ``passkey`` (arXiv:2305.16300) states one number twice in filler.

The same builder makes evaluation prompts and training windows (`NeedleMix`). In training the whole
puzzle has a random length and a random place in the window, so that neither the position of the
question nor its distance from the needles is always the same.

`EARLIER_TASKS` are those of the first studies, whose recipes name no tasks: one number of five
digits, and training texts that fill their window. They are kept so that those runs can be repeated.
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
"""A recipe asks for so many prompts at each; evaluation of `EARLIER_TASKS` hides numbers there."""
NAMES = tuple(
    "Oslo Lima Cairo Delhi Paris Quito Tokyo Sydney Geneva Lisbon Madrid Vienna Warsaw Athens "
    "Boston Denver Dublin Havana London Moscow Munich Naples Ottawa Prague Venice Zurich".split()
)
FILLER = (
    "The river runs slowly past the mill. The miller sleeps until noon. Clouds gather and drift "
    "away again. Nobody has come up the road today.\n"
)
VARIANTS = ("found", "removed", "another")
"""The prompt itself, and two controls: asked needles left out, or stating other numbers."""


def _raw(seed: int, index: int, count: int) -> npt.NDArray[np.uint64]:
    """Raw Philox output: fixed for good, which NumPy does not promise of its distributions."""
    key = np.array([seed, index], dtype=np.uint64)  # a list of both sizes would become float
    return np.random.Philox(key=key).random_raw(count)


@dataclass(frozen=True)
class NeedleTask:
    """What is hidden and what is asked."""

    name: str
    keys: int
    """Names that the text gives numbers to."""
    values: int
    """Numbers per name, each in a separate needle; they are asked in the order of the text."""
    queries: int
    """Names that are asked for, one after another."""
    digits: int = 7
    stated: str = "\nThe special number of {name} is {number}.\n"
    asked: str = "\nThe special number of {name} is "
    filler: bool = False
    """The haystack is a few sentences, repeated, in place of real text."""
    earlier: bool = False
    """One of `EARLIER_TASKS`."""

    def draw(
        self, seed: int, index: int, depth: float | None
    ) -> tuple[list[str], list[int], Int, np.ndarray]:
        """What prompt ``index`` hides, from (seed, index) alone.

        Args:
            depth: of the first needle that is asked for; None: drawn as the others are.

        Returns:
            Names, keys in the order in which they are asked, numbers (K, V, digits), and depths
            (K, V), ascending: a name's numbers are asked in the order of the text.
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
        """The depth of the earliest needle that is asked for, of each prompt of an evaluation."""
        drawn = (self.draw(seed, i, even_depth(i, count)) for i in range(count))
        return [float(depths[asked].min()) for _, asked, _, depths in drawn]


def even_depth(index: int, count: int) -> float:
    """The depth of the first needle asked for, in prompt ``index`` of ``count``."""
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
    """What is asked of a tokenizer: text -> {"input_ids": [...]}"""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any: ...


class Prompt(NamedTuple):
    """One text and where its answers are."""

    ids: Int
    """(L,) tokens; the last one is the last digit of the last answer."""
    places: Int
    """(A,) places of the answers' digits in ``ids``, ascending."""
    digits: Int
    """(A,) their values, 0 to 9."""


class NeedleText:
    """Builds the texts of one task with one tokenizer.

    ``digit_ids``, (10,), are the tokens of the digits.

    Raises:
        ValueError: an unknown task, or a tokenizer that does not make each digit one token.
    """

    def __init__(self, task: str | NeedleTask, tokenizer: Tokenizer) -> None:
        if isinstance(task, str):
            if task not in NEEDLE_TASKS:
                raise unknown("retrieval task", task, NEEDLE_TASKS)
            task = NEEDLE_TASKS[task]
        self.task = task
        self._tokenizer = tokenizer
        self._known: dict[str, Int] = {}
        digits = [self._text(str(digit)) for digit in range(10)]
        if any(len(ids) != 1 for ids in digits) or len({int(ids[0]) for ids in digits}) < 10:
            raise ValueError(
                "retrieval needs a tokenizer that makes each digit one token; the tokenizer 'bpe' "
                "does"
            )
        self.digit_ids = np.concatenate(digits)

    def _text(self, text: str) -> Int:
        if text not in self._known:
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            self._known[text] = np.asarray(ids, dtype=np.int64)
        return self._known[text]

    def _needle(self, name: str, number: Int) -> Int:
        parts: list[Int] = []
        for index, text in enumerate(self.task.stated.split("{number}")):
            parts += [self.digit_ids[number]] if index else []
            parts.append(self._text(text.format(name=name)))
        return np.concatenate(parts)

    def _question(self, name: str, numbers: Int) -> tuple[Int, Int]:
        """Tokens of a question with its answer, and the places of the digits in them."""
        parts = [self._text(self.task.asked.format(name=name))]
        places: list[Int] = []
        for index, number in enumerate(numbers):
            if index:
                parts.append(self._text(", "))
            places.append(sum(map(len, parts)) + np.arange(self.task.digits))
            parts.append(self.digit_ids[number])
        return np.concatenate(parts), np.concatenate(places)

    def shortest(self) -> int:
        """Tokens that needles, questions and answers take at most: no text can be shorter."""
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
        """Prompt ``index`` of the endless row that ``seed`` names.

        Args:
            length: tokens, the last answer included. haystack: at least that many tokens of text.
            depth: share of the haystack, 0 to 1, before the first needle that is asked for; the
                others lie at random. None: that one, too.
            variant: one of `VARIANTS`.

        Raises:
            ValueError: an unknown variant, or no room for needles, questions and answers.
        """
        if variant not in VARIANTS:
            raise unknown("variant", variant, VARIANTS)
        task = self.task
        names, asked, numbers, depths = task.draw(seed, index, depth)
        questions = [self._question(names[key], numbers[key]) for key in asked]
        stated = numbers.copy()
        if variant == "another":  # every digit differs
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
    """The texts of a recipe's ``retrieval_tasks``; `EARLIER_TASKS` where it names none."""
    return [NeedleText(task, tokenizer) for task in tasks or EARLIER_TASKS]


# Second halves of Philox keys of (training texts, choices): evaluation prompts count from 0,
# these from far above. The second row is that of EARLIER_TASKS.
_KEYS, _EARLIER_KEYS = (3 * 2**61, 2**63 + 2**62), (2**62, 2**63)


class NeedleMix(Batches):
    """`Batches` in which a share of the windows holds a retrieval text of one of the tasks.

    Which windows, which task, how long the text is and where it begins follows from (seed, row)
    alone. What lies before and after it, and its haystack, is the window's own text.

    Args:
        tasks: as a recipe names them; none: `EARLIER_TASKS`, whose texts fill the window.

    Raises:
        ValueError: an unknown task, a share outside 0 to 1, or a context length without room.
    """

    def __init__(
        self, plain: Batches, share: float, tokenizer: Tokenizer, tasks: Sequence[str]
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"the share of retrieval texts is {share}; expected 0 to 1")
        super().__init__(
            plain.split, plain.context_length, plain.batch_size, plain.seed, plain.first_token
        )
        self.share, self.fill = share, not tasks
        self.texts = texts_of(tasks, tokenizer)
        self._shortest = [text.shortest() for text in self.texts]
        if plain.context_length + 1 < max(self._shortest):
            raise ValueError(
                f"context_length is {plain.context_length}; retrieval texts need "
                f"{max(self._shortest)}"
            )

    def windows_of(self, step: int, rows: slice) -> Batch:
        """The windows of a batch, some of them replaced."""
        batch = super().windows_of(step, rows)
        numbers = (step * self.batch_size + np.arange(self.batch_size))[rows]
        training, choices = _EARLIER_KEYS if self.fill else _KEYS
        for row, number in enumerate(numbers):
            raw = _raw(self.seed, choices + int(number), 4)
            if float(raw[0]) / 2.0**64 >= self.share:
                continue
            which = int(raw[1] % len(self.texts))
            window = np.append(batch.input_ids[row], batch.targets[row, -1])
            longest, least = len(window), self._shortest[which]
            length = longest if self.fill else least + int(raw[2] % (longest - least + 1))
            begin = int(raw[3] % (longest - length + 1))
            made = self.texts[which].build(
                self.seed, training + int(number), length, window[begin : begin + length]
            )
            window[begin : begin + length] = made.ids
            batch.input_ids[row], batch.targets[row] = window[:-1], window[1:]
            batch.documents[row] = 0
            batch.positions[row] = np.arange(self.context_length)
        return batch
