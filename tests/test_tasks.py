"""What holds for every task: each is looked up by name, and every choice of an option is tried."""

from __future__ import annotations

import doctest
import functools
import itertools
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from pe.tasks import IGNORE, Batch, Task, score
from pe.tasks.core.chomsky import Chomsky
from pe.tasks.core.draws import Draws
from pe.tasks.core.scoring import guessed
from pe.tasks.counting import value_of

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = 200


def golden(name: str) -> dict[str, Any]:
    examples: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return examples


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """Each task with every combination of those options that are a choice between words."""
    for name in pe.tasks.names():
        fields = pe.tasks.task_class(name).model_fields
        words = {
            option: typing.get_args(field.annotation)
            for option, field in fields.items()
            if typing.get_origin(field.annotation) is typing.Literal
        }
        for choice in itertools.product(*words.values()):
            yield name, dict(zip(words, choice, strict=True))


@functools.cache
def batch_of(task: Task, split: str) -> Batch:
    return task.batch(0, 0, EXAMPLES, split)


CASES = list(variants())
IDS = ["-".join([name, *options.values()]) for name, options in CASES]


@pytest.fixture(params=CASES, ids=IDS, scope="module")
def task(request: pytest.FixtureRequest) -> Task:
    name, options = request.param
    return pe.tasks.task(name, **options)


def test_an_example_follows_from_seed_index_split_and_length_alone(task: Task) -> None:
    for split in task.splits:
        length = task.lengths(split)[0]
        first = task.example(3, 5, split, length)
        task.example(9, 1, split)
        again = task.example(3, 5, split, length)
        in_batch = task.batch(3, 4, 3, split, length)
        width = len(first.tokens)
        for one, other, row in zip(first, again, in_batch, strict=False):
            assert np.array_equal(one, other)
            assert np.array_equal(one, row[1, :width])
        assert (in_batch.targets[1, width:] == IGNORE).all()
        assert in_batch.sizes[1] == width


def test_seeds_indices_and_splits_give_other_examples(task: Task) -> None:
    length = task.lengths("train")[1]
    places = [(0, 0, "train"), (1, 0, "train"), (0, 1, "train"), (0, 0, "id")]
    drawn = [
        tuple(tuple(task.example(s, i + 10 * k, split, length).tokens) for k in range(8))
        for s, i, split in places
    ]
    assert len(set(drawn)) == len(places)


def test_tokens_are_in_the_vocabulary_and_targets_among_the_answers(task: Task) -> None:
    assert len(set(task.symbols)) == task.vocab_size
    assert not any(" " in symbol or not symbol for symbol in task.symbols)
    assert len(set(task.answers)) == len(task.answers) == round(1 / task.chance)
    for split in task.splits:
        for index in range(20):
            tokens, targets = task.example(1, index, split)
            assert tokens.dtype == targets.dtype == np.int64
            assert tokens.shape == targets.shape == (len(tokens),)
            assert 0 <= tokens.min() <= tokens.max() < task.vocab_size
            assert set(targets[targets != IGNORE]) <= set(task.answers)
            assert (targets != IGNORE).any()


def test_lengths_are_those_of_the_split(task: Task) -> None:
    for split in task.splits:
        low, high = task.lengths(split)
        batch = batch_of(task, split)
        assert low <= batch.lengths.min() <= batch.lengths.max() <= high
        assert high - low < 2 or len(set(batch.lengths)) > 1
        assert batch.tokens.shape[1] <= task.longest(split)
        for length in {low, high}:
            assert len(task.example(0, 0, split, length).tokens) <= task.max_tokens(length)


def test_uniform_guesses_reach_chance(task: Task) -> None:
    random = np.random.default_rng(0)
    for split in task.splits:
        batch = batch_of(task, split)
        guesses = random.choice(task.answers, batch.targets.shape)
        result = score(guesses, batch.targets)
        spread = np.sqrt(task.chance * (1 - task.chance) / result.tokens)
        assert abs(result.token - task.chance) < 4.5 * spread
        each = task.chance ** (batch.targets != IGNORE).sum(axis=1)
        spread = np.sqrt((each * (1 - each)).sum()) / EXAMPLES
        assert abs(result.exact - each.mean()) < 4.5 * spread + 3 / EXAMPLES  # a few are luck


def test_baselines_reach_their_exact_score(request: pytest.FixtureRequest, task: Task) -> None:
    """`task_baselines.json` has scores by formula, and by 20,000 examples where there is none.

    Training has the score of its distribution's other examples where it has none of its own.
    """
    exact = golden("task_baselines")[request.node.callspec.id]
    assert set(exact) <= {baseline.name for baseline in task.baselines()}
    for split, baseline in itertools.product(task.splits, task.baselines()):
        batch = batch_of(task, split)
        asked = (batch.targets != IGNORE).sum(axis=1)
        rows = zip(batch.tokens, batch.targets, strict=True)
        right = np.array([guessed(baseline.guess, x[None], y[None]).tokens_right for x, y in rows])
        result = guessed(baseline.guess, batch.tokens, batch.targets)
        assert (result.tokens_right, result.examples) == (right.sum(), EXAMPLES)
        if baseline.name not in exact:
            continue
        expected = exact[baseline.name].get(split, exact[baseline.name]["id"])
        error = (right.sum() - expected * asked.sum()) / asked.sum()
        # Tokens of one example are not independent: the spread is that of whole examples.
        apart = right - expected * asked
        spread = np.sqrt((apart**2).sum()) / asked.sum()
        if (right > 0).sum() < 20:  # too few to see the spread: take the largest possible
            spread = np.sqrt(expected * (1 - expected) / EXAMPLES)
        assert abs(error) < 4.5 * spread + 1e-5, (baseline.name, split)


def test_baselines_look_at_nothing_behind_the_position(task: Task) -> None:
    random = np.random.default_rng(0)
    for index, baseline in itertools.product(range(5), task.baselines()):
        tokens, targets = task.example(0, index, "id")
        (places,) = (targets != IGNORE).nonzero()
        for number in (0, len(places) // 2):
            other = tokens.copy()
            behind = slice(places[number] + 1, None)
            other[behind] = random.integers(0, task.vocab_size, len(other[behind]))
            one, two = baseline.guess(tokens, places), baseline.guess(other, places)
            assert np.array_equal(one[: number + 1], two[: number + 1])


def test_a_task_is_what_its_options_are(task: Task) -> None:
    """As a record writes them, and as controls of a page are made from."""
    written = json.loads(json.dumps(task.model_dump()))
    assert pe.tasks.task(task.name, **written) == task
    assert set(type(task).model_json_schema()["properties"]) == set(written)


def test_every_task_says_what_it_is(task: Task) -> None:
    about = pe.tasks.about(task.name)
    assert about.title
    assert about.source
    assert about.paper is None or len(about.paper) == 10
    assert set(about.options) == set(type(task).model_fields)
    assert {"train_lengths", "ood_lengths"} <= set(about.options)
    example = task.example(0, 0, length=task.lengths("train")[0])
    assert len(task.text(example).split()) == 2 * len(example.tokens) + 1
    assert task.baselines()
    assert all(baseline.meaning.endswith(".") for baseline in task.baselines())


def test_wrong_settings_get_one_sentence() -> None:
    for options, message in [
        ({"kk": 1}, "unknown option of the task 'k_back' 'kk' (did you mean 'k'?)"),
        ({"k": 0}, "k: expected 1 or more, got 0"),
        ({"k": 2.5}, "k: expected a whole number, got 2.5"),
        ({"k": 64}, "k = 64 reaches back farther than a length of 64"),
        ({"read": "cop"}, "unknown read 'cop' (did you mean 'copy'?)"),
        ({"train_lengths": (9, 4)}, "train_lengths: expected (shortest, longest), from 1 on"),
        ({"train_lengths": (0, 4)}, "train_lengths: expected (shortest, longest), from 1 on"),
        (
            {"train_lengths": [4]},
            "train_lengths: expected two lengths, (shortest, longest), got",
        ),
        ({"train_lengths": (4, 5, 6)}, "train_lengths: expected two lengths"),
        ({"train_lengths": 64}, "train_lengths: expected two lengths"),
        ({"ood_lengths": (50, 128)}, "ood_lengths: the split 'ood' has lengths 50 to 128, and "),
    ]:
        with pytest.raises(ValueError, match=".") as raised:
            pe.tasks.task("k_back", **options)
        assert str(raised.value).startswith(message)
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="did you mean 'k_back'"):
        pe.tasks.task("kback")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("flip_flop", {"ignored": float("nan")}, "ignored: expected a number, got nan"),
        ("associative_recall", {"power": float("inf")}, "power: expected a number, got inf"),
        (
            "associative_recall",
            {"vocabulary": 511},
            "vocabulary: expected a multiple of 2",
        ),
        ("sorting", {"kind": "numbers", "items": 9}, "items: has no effect with kind 'numbers'"),
        ("selective_copy", {"train_lengths": (64, 64)}, "ood_lengths: the split 'ood_dense'"),
    ]
    for name, option, message in cases:
        with pytest.raises(ValueError, match=message):
            pe.tasks.task(name, **option)
    task = pe.tasks.task("pattern")
    arguments: list[dict[str, Any]] = [
        {"seed": 0.5}, {"seed": "0"}, {"index": 1.0}, {"length": 9.5}, {"length": "9"}
    ]  # fmt: skip
    for wrong in arguments:
        (name,) = wrong
        with pytest.raises(ValueError, match=f"{name}: expected a whole number"):
            task.example(**{"seed": 0, "index": 0} | wrong)
    with pytest.raises(ValueError, match="count: expected a whole number from 1 on, got 1.5"):
        task.batch(0, 0, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown split 'oot'.*'ood'"):
        task.example(0, 0, "oot")
    with pytest.raises(ValueError, match="pattern needs a length of 5 or more, got 2"):
        task.example(0, 0, length=2)
    with pytest.raises(ValueError, match="indirect_indexing needs a length of 1 or more, got 0"):
        pe.tasks.task("indirect_indexing").example(0, 0, length=0)
    with pytest.raises(ValueError, match="pattern needs a length of 5 or more"):
        pe.tasks.task("pattern", train_lengths=(2, 64))
    with pytest.raises(ValueError, match="seed: expected a whole number from 0"):
        task.example(-1, 0)
    with pytest.raises(ValueError, match="reaches back farther than a length of 2"):
        pe.tasks.task("k_back").example(0, 0, length=2)


def test_what_the_package_shows_is_what_it_does() -> None:
    assert doctest.testmod(pe.tasks).failed == 0
    assert doctest.testmod(pe.tasks).attempted > 2


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="two tasks are called 'k_back'"):
        pe.tasks.register("k_back", title="", paper=None, source="")(pe.tasks.task_class("match"))


def test_scores_count_tokens_and_whole_examples() -> None:
    targets = np.array([[IGNORE, 1, 2], [3, IGNORE, IGNORE]])
    result = score(np.array([[0, 1, 1], [3, 0, 0]]), targets)
    assert result == (2, 3, 1, 2)
    assert (result.token, result.exact) == (2 / 3, 1 / 2)
    with pytest.raises(ValueError, match="expected the same"):
        score(targets[:, :2], targets)
    with pytest.raises(ValueError, match="at least one per example"):
        score(targets, np.array([[IGNORE, IGNORE, IGNORE], [1, 2, 3]]))


def test_the_four_of_the_comparison_app_are_what_its_code_makes() -> None:
    tokens, targets = pe.tasks.task("modular_sum").example(0, 1)
    assert targets[-1] == tokens.sum() % 10
    tokens, targets = pe.tasks.task("modular_sum", read="running").example(0, 1)
    assert list(targets[:3]) == [0, tokens[0] % 10, (tokens[0] + tokens[1]) % 10]
    task = pe.tasks.task("k_back", read="match", k=2, items=3)
    tokens, targets = task.example(0, 1)
    assert list(targets[:2] - 3) == [0, 0]
    assert all((targets[t] == 4) == (tokens[t] == tokens[t - 2]) for t in range(2, 64))

    task = pe.tasks.task("pattern")
    places: dict[str, set[int]] = {"train": set(), "id": set()}
    for split, index in itertools.product(places, range(300)):
        tokens, targets = task.example(0, index, split)
        found = [t for t in range(63) if tokens[t] == 48 and tokens[t + 1] == 49]
        assert (targets[-1] == 51) == bool(found) == (48 in tokens) == (49 in tokens)
        places[split] |= set(found)
    assert places == {"train": set(range(2, 10)), "id": set(range(54, 62))}

    apart = set()
    for index in range(800):
        tokens, targets = pe.tasks.task("match").example(0, index)
        assert (targets[-1] == 51) == (tokens[0] == tokens[-1])
        apart.add(int(tokens[-1] - tokens[0]) % 50)
    assert apart == set(range(49))


def test_kazemnejad_s_tasks_answer_what_they_ask() -> None:
    def halves(name: str, index: int, **options: str) -> tuple[list[str], list[str]]:
        task = pe.tasks.task(name, **options)
        read, said = task.text(task.example(0, index)).split(" -> ")
        asked = said.split().count("_") + 1
        return read.split()[:asked], said.split()[asked - 1 :]

    for index in range(30):
        prompt, answer = halves("addition", index)
        a, b = "".join(prompt).rstrip("=").split("+")
        assert "".join(answer) == f"{int(a) + int(b)}</s>"
        assert str(int(a)) == a
        assert str(int(b)) == b
        prompt, answer = halves("summation", index)
        assert answer == [str(sum(map(int, prompt[::2])) % 10)]
        prompt, answer = halves("parity", index)
        assert answer == ["no" if prompt.count("1") % 2 else "yes"]
        prompt, answer = halves("sorting", index)
        assert answer == [*map(str, sorted(map(int, prompt[:-1]))), "</s>"]
        prompt, answer = halves("sorting", index, kind="numbers")
        read, said = ("".join(x[:-1]).rstrip(",").split(",") for x in (prompt, answer))
        assert said == sorted(read, key=int)
        assert all(10 <= int(x) <= 9999 for x in read)

    x = ["0", "1", "2"]
    for name, kind, wanted in [
        ("copy", "random", x),
        ("copy", "random_twice", [*x, "NEXT", *x]),
        ("copy", "repeat_twice", [*x, *x]),
        ("reverse", "once", x[::-1]),
        ("reverse", "twice", [*x[::-1], "NEXT", *x[::-1]]),
        ("reverse", "then_copy", [*x[::-1], "NEXT", *x]),
    ]:
        task = pe.tasks.task(name, kind=kind)
        assert [task.symbols[i] for i in task.answer(np.arange(3))] == wanted  # type: ignore[attr-defined]
    prompt, answer = halves("copy", 0, kind="repeat")
    assert answer == [*prompt[:-1], "</s>"]
    assert len(set(answer)) == 2
    prompt, answer = halves("copy", 0, kind="replace")
    assert prompt[0] != prompt[1]
    assert set(prompt[3:-1]) == {prompt[0]}
    assert answer == [*[prompt[1]] * (len(prompt) - 4), "</s>"]


@pytest.mark.parametrize("kind", ["random", "repeat", "replace"])
def test_a_mark_comes_first_and_changes_nothing_else(kind: str) -> None:
    plain, marked = (pe.tasks.task("copy", kind=kind, marked=m) for m in (False, True))
    for index in range(5):
        without, with_mark = (task.example(0, index) for task in (plain, marked))
        mark = marked.symbols.index("<s>")
        assert with_mark.tokens.tolist() == [mark, *without.tokens]
        assert with_mark.targets[1:].tolist() == without.targets.tolist()
        assert mark not in marked.answers
    assert marked.longest() == plain.longest() + 1
    batch = marked.batch(0, 0, 1000, "id")
    exact = golden("task_baselines")[f"copy-{kind}"]
    for one in marked.baselines():
        reached = guessed(one.guess, batch.tokens, batch.targets).token
        assert reached == pytest.approx(exact[one.name]["id"], abs=0.02), one.name


def test_pairs_of_summands_are_uniform_over_the_grid() -> None:
    task = pe.tasks.task("addition", train_lengths=(1, 3), ood_lengths=(4, 4))
    counts: dict[tuple[int, int], int] = {}
    for index in range(1800):
        read = "".join(task.text(task.example(0, index)).split(" -> ")[0].split())
        a, _, rest = read.partition("+")
        pair = len(a), len(rest.partition("=")[0])
        counts[pair] = counts.get(pair, 0) + 1
    assert sorted(counts) == list(itertools.product(range(1, 4), repeat=2))
    assert all(abs(count - 200) < 60 for count in counts.values())


def test_counting_agrees_with_the_authors_generator() -> None:
    for variables, examples in golden("tasks_cope_counting")["examples"].items():
        task = pe.tasks.task("counting", variables=int(variables))
        for example in examples:
            words = example["context"].split()
            assert set(words) <= set(task.symbols)
            assert value_of(words, example["question"].split()[1]) == int(example["answer"])

    stated = golden("tasks_cope_counting")["default_stats_3vars_512steps"]
    task = pe.tasks.task("counting", block=4096)
    batch = task.batch(0, 0, 1000)
    answers = batch.targets[batch.targets != IGNORE]
    tokens = (batch.targets != IGNORE).argmax(axis=1) - 1  # without "print a"
    assert abs(tokens.mean() - stated["mean_tokens"]) < 4 * 157 * np.sqrt(1 / 1000 + 1 / 2000)
    expected = np.array(stated["answer_hist"]) / 2000
    spread = np.sqrt(expected * (1 - expected) * (1 / 1000 + 1 / 2000))
    assert (abs(np.bincount(answers, minlength=11) / 1000 - expected) < 4 * spread).all()
    assert abs((tokens > 512).mean() - stated["frac_over_512"]) < 4 * 0.0131


def test_counting_cuts_at_the_left_in_training_only() -> None:
    whole, cut = pe.tasks.task("counting", block=4096), pe.tasks.task("counting")
    tokens, targets = whole.example(0, 0, length=512)
    assert len(tokens) > 512
    assert np.array_equal(cut.example(0, 0, length=512).tokens, tokens[-512:])
    assert len(cut.example(0, 0, "ood", 1024).tokens) > 1024
    assert targets[-1] == cut.example(0, 0, length=512).targets[-1]


def test_flip_flop_reads_the_bit_that_was_written_last() -> None:
    task = pe.tasks.task("flip_flop")
    for split, ignored in [("id", 0.8), ("ood_sparse", 0.98), ("ood_dense", 0.1)]:
        skipped = 0
        for index in range(40):
            tokens, targets = task.example(0, index, split)
            assert len(tokens) == 511
            assert (tokens[0], tokens[-1]) == (2, 3)
            stored = None
            for place in range(0, 511, 2):
                if tokens[place] == 2:
                    stored = tokens[place + 1]
                assert targets[place] == (stored if tokens[place] == 3 else IGNORE)
            assert (targets[1::2] == IGNORE).all()
            skipped += int((tokens[::2] == 4).sum())
        assert abs(skipped / (40 * 254) - ignored) < 0.02
    with pytest.raises(ValueError, match="length 511: expected a multiple of 2"):
        pe.tasks.task("flip_flop", train_lengths=(511, 511))


def test_selective_copy_drops_the_blanks() -> None:
    task = pe.tasks.task("selective_copy", copied=5)
    for split, blanks in [("train", 128), ("ood_dense", 64), ("ood_sparse", 256)]:
        tokens, targets = task.example(0, 0, split)
        separator = int((tokens == 17).argmax())
        assert separator == blanks + 5
        read = tokens[:separator]
        assert list(read[read != 16]) == list(targets[separator:])


def test_indirect_indexing_points_at_its_answer() -> None:
    task = pe.tasks.task("indirect_indexing")
    shifts = set()
    for index in range(400):
        read, said = task.text(task.example(0, index)).split(" -> ")
        letters, letter, shift, _ = "".join(read.split()).split(",")
        assert letters[letters.index(letter) + int(shift)] == said.split()[-1]
        assert letters.index(letter) + int(shift) >= 0
        assert len(set(letters)) == len(letters)
        shifts.add(int(shift))
    assert shifts == set(range(-15, 16))
    with pytest.raises(ValueError, match="52 letters, too few for a length of 53"):
        task.example(0, 0, length=53)
    with pytest.raises(ValueError, match="52 letters, too few for a length of 60"):
        pe.tasks.task("indirect_indexing", ood_lengths=(41, 60))


def test_recall_asks_for_each_key_once() -> None:
    task = pe.tasks.task("associative_recall")
    first = 0
    for index in range(200):
        tokens, targets = task.example(0, index)
        told = dict(zip(tokens[:16:2], tokens[1:16:2], strict=True))
        (places,) = (targets != IGNORE).nonzero()
        assert {int(k) for k in tokens[places]} == {int(k) for k in told}
        assert all(told[tokens[p]] == targets[p] for p in places)
        assert places.min() >= 16
        assert not places.any() or not (places % 2).any()
        first += 16 in places
    # Of 24 even distances the first is drawn most often: 1 / 3.76 of the weight, eight draws.
    assert first > 150
    with pytest.raises(ValueError, match="length 33: expected a multiple of 2"):
        task.example(0, 0, length=33)
    with pytest.raises(ValueError, match="length 30: expected at least 32"):
        pe.tasks.task("associative_recall", train_lengths=(30, 64))
    with pytest.raises(ValueError, match="too few keys"):
        pe.tasks.task("associative_recall", vocabulary=16)


def test_kth_item_counts_from_one() -> None:
    task = pe.tasks.task("kth_item")
    for index in range(50):
        read, said = task.text(task.example(0, index)).split(" -> ")
        items, number = (part.split() for part in read.split("?"))
        assert said.split()[-1] == items[int("".join(number)) - 1]
    with pytest.raises(ValueError, match="a list of 40 different items needs as many, got 30"):
        pe.tasks.task("kth_item", items=30)


CHOMSKY = golden("tasks_chomsky")["tasks"]


@pytest.mark.parametrize("name", CHOMSKY)
def test_the_fifteen_tasks_agree_with_the_authors_code(name: str) -> None:
    task, expected = pe.tasks.task(name), CHOMSKY[name]
    assert isinstance(task, Chomsky)
    assert len(task.answers) == expected["output_size"]
    assert len(task.written) == expected["input_size"]
    for example in expected["examples"]:
        question = np.array(example["input"])
        answer = task.solution(question)
        assert list(answer) == np.ravel(example["output"]).tolist()
        size = expected["output_length"][str(example["length"])]
        assert len(answer) == size
        assert len(question) + size <= task.max_tokens(example["length"])
        drawn = task.question(Draws(0, 0, 0), example["length"])
        assert len(drawn) == len(question)
        assert 0 <= drawn.min() <= drawn.max() < expected["input_size"]
        assert len(task.solution(drawn)) == size


def test_every_task_of_the_fifteen_is_here() -> None:
    here = {n for n in pe.tasks.names() if issubclass(pe.tasks.task_class(n), Chomsky)}
    assert here == set(CHOMSKY)
    assert len(here) == 15


def test_symbols_of_the_fifteen_are_as_frequent_as_in_the_authors_examples() -> None:
    """At length 20: where symbols are drawn by rules, the rules are the same."""
    for name, expected in CHOMSKY.items():
        task = pe.tasks.task(name)
        assert isinstance(task, Chomsky)
        theirs = [e["input"] for e in expected["examples"] if e["length"] == 20]
        ours = [task.question(Draws(0, i, 0), 20) for i in range(200)]
        size = expected["input_size"]
        their = np.array([np.bincount(x, minlength=size) for x in theirs])
        our = np.array([np.bincount(x, minlength=size) for x in ours])
        spread = our.std(axis=0) / np.sqrt(len(theirs)) + 0.1
        assert (abs(their.mean(axis=0) - our.mean(axis=0)) < 4 * spread).all(), name


def test_short_lengths_of_the_fifteen_have_an_answer() -> None:
    for name in CHOMSKY:
        for length in (1, 2, 3, 4):
            example = pe.tasks.task(name).example(0, 0, length=length)
            assert (example.targets != IGNORE).any()
    assert list(pe.tasks.task("binary_multiplication").example(0, 0, length=2).targets[2:]) == [
        0,
        2,
    ]
    assert pe.tasks.task("missing_duplicate_string").example(0, 0, length=1).targets[-1] == 1


def test_what_follows_the_end_of_an_answer_is_not_asked_for() -> None:
    task = pe.tasks.task("stack_manipulation")
    for index in range(20):
        _, targets = task.example(0, index, length=9)
        asked = targets[targets != IGNORE]
        assert asked[-1] == 2
        assert not (asked[:-1] == 2).any()
        assert np.array_equal(targets[9 : 9 + len(asked)], asked)
