"""Several hidden numbers: how the texts are built, and how they are mixed into training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import tiny, write_corpus
from transformers import PreTrainedTokenizerFast

import pe
import pe.data
from pe.data.batches import Batches
from pe.data.needles import (
    EARLIER_TASKS,
    FILLER,
    NAMES,
    NEEDLE_TASKS,
    VARIANTS,
    NeedleMix,
    NeedleTask,
    NeedleText,
    Prompt,
    even_depth,
)
from pe.data.shards import Split
from pe.data.tokenizer import END, PAD, train_bpe
from pe.evaluation.covers import covers
from pe.evaluation.retrieval import SEED, evaluate_retrieval, hits, prompts
from pe.evaluation.scorer import Scorer
from pe.model import PEConfig, PEForCausalLM
from pe.runs import Run
from pe.training.build import model_for

LENGTH = 400
DIGITS = 7
TASKS = (*NEEDLE_TASKS.values(), *EARLIER_TASKS)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    text = [FILLER, "\nThe special number of Oslo is 4.\nThe special numbers are, "] * 20
    return PreTrainedTokenizerFast(
        tokenizer_object=train_bpe(text + list(NAMES), 420), eos_token=END, pad_token=PAD
    )


@pytest.fixture(scope="module")
def split(tokenizer: PreTrainedTokenizerFast) -> Split:
    """Words without digits, so that every digit in a text was put there."""
    words = " ".join(np.random.default_rng(0).choice(FILLER.split(), 6000))
    ids = np.asarray(tokenizer(words)["input_ids"], dtype=np.uint16)
    return Split(ids, np.zeros(1, dtype=np.int64), ["a"])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.name}{task.digits}")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prompt_states_what_it_asks_and_its_controls_do_not(
    task: NeedleTask, variant: str, tokenizer: Any, split: Split
) -> None:
    text = NeedleText(task, tokenizer)
    haystack = np.asarray(split.tokens[:LENGTH], dtype=np.int64)
    for index in range(4):
        prompt = text.build(7, index, LENGTH, haystack, variant=variant)
        assert prompt.ids.shape == (LENGTH,)
        asked = prompt.digits.reshape(-1, task.digits)
        assert len(asked) == task.queries * task.values
        assert np.array_equal(prompt.ids[prompt.places], text.digit_ids[prompt.digits])
        assert prompt.places[-1] == LENGTH - 1
        first = prompt.places[0]
        body = tokenizer.decode(prompt.ids[:first])
        stated = [body.count("".join(map(str, number))) for number in asked]
        each = task.stated.count("{number}")
        assert stated == [each if variant == "found" else 0] * len(asked)
        hidden = task.keys * task.values
        gone = task.queries * task.values if variant == "removed" else 0
        number = np.isin(prompt.ids[:first], text.digit_ids).sum()
        assert number == (hidden - gone) * task.digits * each


@pytest.mark.parametrize("name", ["passkey", "multikey", "multiquery"])
def test_depths_tell_which_numbers_lie_in_the_last_part_of_a_text(
    name: str, tokenizer: Any, split: Split
) -> None:
    """A little too many, by the tokens of needles, question and answer."""
    task, text, length, last, count = (
        NEEDLE_TASKS[name],
        NeedleText(name, tokenizer),
        4000,
        2000,
        60,
    )
    haystack = np.asarray(split.tokens[:length], dtype=np.int64)
    told = [depth >= 1 - last / length for depth in task.earliest(SEED, count)]
    inside = []
    for index in range(count):
        depth = even_depth(index, count)
        prompt = text.build(SEED, index, length, haystack, depth=depth)
        body = prompt.ids[: prompt.places[0]].tolist()
        asked = text.digit_ids[prompt.digits.reshape(-1, DIGITS)].tolist()
        firsts = [
            next(i for i in range(len(body)) if body[i : i + DIGITS] == number) for number in asked
        ]
        inside.append(min(firsts) >= length - last)
    assert not [i for i in range(count) if inside[i] and not told[i]]
    assert sum(told) - sum(inside) <= 0.05 * count


def test_numbers_of_one_name_are_asked_in_the_order_of_the_text(
    tokenizer: Any, split: Split
) -> None:
    haystack = np.asarray(split.tokens[:LENGTH], dtype=np.int64)
    for depth in (0.0, 0.5, 1.0):
        text = NeedleText("multivalue", tokenizer)
        prompt = text.build(1, 2, LENGTH, haystack, depth=depth)
        body = tokenizer.decode(prompt.ids)
        places = [body.index("".join(map(str, n))) for n in prompt.digits.reshape(-1, DIGITS)]
        assert places == sorted(places)


def test_the_depth_is_that_of_the_first_needle_asked_for(tokenizer: Any, split: Split) -> None:
    haystack = np.asarray(split.tokens[:LENGTH], dtype=np.int64)
    for name in ("multikey", "multiquery"):
        text = NeedleText(name, tokenizer)
        for index in range(5):
            early = text.build(1, index, LENGTH, haystack, depth=0.0)
            late = text.build(1, index, LENGTH, haystack, depth=1.0)
            number = "".join(map(str, early.digits[:DIGITS]))
            others = [
                tokenizer.decode(p.ids[: p.places[0]]).split("is ")[1:] for p in (early, late)
            ]
            assert others[0][0].startswith(number)
            assert others[1][-2].startswith(number) or others[1][-1].startswith(number)


def test_prompts_are_a_fixed_function_of_seed_and_index(tokenizer: Any, split: Split) -> None:
    text, haystack = NeedleText("multikey", tokenizer), np.asarray(split.tokens[:LENGTH])
    first, again = (text.build(3, 5, LENGTH, haystack) for _ in range(2))
    assert np.array_equal(first.ids, again.ids)
    assert first.digits.tolist() == [int(d) for d in PINNED]
    assert not np.array_equal(first.ids, text.build(4, 5, LENGTH, haystack).ids)


PINNED = "7072655"


def test_training_varies_where_the_question_is_and_how_long_its_text(
    tokenizer: Any, split: Split
) -> None:
    plain = Batches(split, 600, 8, seed=3)
    mix = NeedleMix(plain, 0.5, tokenizer, tuple(NEEDLE_TASKS))
    digits = set(mix.texts[0].digit_ids.tolist())
    ends, starts, replaced = set(), set(), 0
    for step in range(6):
        batch, before = mix.at(step), plain.at(step)
        for row in range(8):
            changed = np.flatnonzero(batch.input_ids[row] != before.input_ids[row])
            if not len(changed):
                assert np.array_equal(batch.targets[row], before.targets[row])
                continue
            replaced += 1
            assert np.array_equal(batch.input_ids[row, 1:], batch.targets[row, :-1])
            numbers = np.flatnonzero(np.isin(batch.input_ids[row], list(digits)))
            starts.add(int(numbers[0]))
            ends.add(int(numbers[-1]))
    assert 12 <= replaced <= 36
    assert len(ends) > replaced // 2
    assert len(starts) > replaced // 2
    assert min(ends) < 400


def test_a_first_token_opens_windows_with_and_without_needles(tokenizer: Any, split: Split) -> None:
    mix = NeedleMix(Batches(split, 600, 8, seed=3, first_token=1), 0.5, tokenizer, ("multikey",))
    without = NeedleMix(Batches(split, 600, 8, seed=3), 0.5, tokenizer, ("multikey",))
    assert (mix.at(0).input_ids[:, 0] == 1).all()
    assert np.array_equal(mix.at(0).targets, without.at(0).targets)


def test_a_window_without_room_is_refused(tokenizer: Any, split: Split) -> None:
    with pytest.raises(ValueError, match="context_length is 64; retrieval texts need"):
        NeedleMix(Batches(split, 64, 2, seed=0), 0.1, tokenizer, ("multikey",))
    with pytest.raises(ValueError, match="has no room for its needles"):
        NeedleText("multikey", tokenizer).build(0, 0, 60, np.zeros(60, dtype=np.int64))
    with pytest.raises(ValueError, match="unknown retrieval task 'multikeys'.*'multikey'"):
        NeedleText("multikeys", tokenizer)


def scorer_of(model: Any, tokenizer: Any, split: Split, lengths: list[int]) -> Scorer:
    data: Any = SimpleNamespace(test=split, tokenizer=tokenizer)
    return Scorer(model, data, tiny(Path("unused")), lengths)


class Oracle(torch.nn.Module):
    """Stands for a model: its hidden state at each place is the next token, one-hot."""

    def __init__(self, vocabulary: int, wrong: int | None = None) -> None:
        super().__init__()
        self.device, self.vocabulary, self.wrong = torch.device("cpu"), vocabulary, wrong
        self.answers: dict[bytes, torch.Tensor] = {}
        self.float32_residual = False

    @property
    def model(self) -> Oracle:
        """The decoder, without the head."""
        return self

    def learn(self, made: list[Prompt]) -> None:
        for prompt in made:
            self.answers[prompt.ids[:-1].tobytes()] = torch.from_numpy(prompt.ids[1:])

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        following = [self.answers[row.numpy().tobytes()] for row in input_ids]
        hidden = torch.nn.functional.one_hot(torch.stack(following), self.vocabulary).float()
        if self.wrong is not None:  # one digit of the last answer of the first prompt
            hidden[0, -self.wrong] = 0
        return SimpleNamespace(last_hidden_state=hidden)

    def lm_head(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


@pytest.mark.parametrize("name", NEEDLE_TASKS)
def test_hits_are_looked_up_where_the_answers_are(name: str, tokenizer: Any, split: Split) -> None:
    text = NeedleText(name, tokenizer)
    made = prompts(text, split, LENGTH, 6)
    numbers = NEEDLE_TASKS[name].queries * NEEDLE_TASKS[name].values
    oracle = Oracle(len(tokenizer))
    oracle.learn(made)
    scorer = scorer_of(oracle, tokenizer, split, [LENGTH])
    scorer.tokens_per_batch = 4 * LENGTH
    right = hits(scorer, made, text.digit_ids)
    assert right.shape == (2, 6, numbers * DIGITS)
    assert right.all()
    digits = text.digit_ids[made[0].digits[-1]]
    oracle.wrong = 1
    scorer.tokens_per_batch = 6 * LENGTH
    right = hits(scorer, made, text.digit_ids)[0]
    missed = int(not right[0, -1])
    assert (~right).sum() == missed == int(digits != text.digit_ids[0]), "ties go to the digit 0"


def test_a_record_keeps_each_prompt_and_says_where_there_is_no_value(
    tokenizer: Any, split: Split
) -> None:
    config = PEConfig(
        vocab_size=len(tokenizer) // 8 * 8 + 8, hidden_size=16, intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=LENGTH, pe="learned",
    )  # fmt: skip
    model = PEForCausalLM(config).eval()
    scorer = scorer_of(model, tokenizer, split, [LENGTH, 2 * LENGTH])
    found = evaluate_retrieval(scorer, ["multikey"], 10)["needles"]
    cell, beyond = (found["tasks"]["multikey"][str(n)] for n in (LENGTH, 2 * LENGTH))
    assert len(cell["prompts"]) == 10
    assert set(cell["prompts"]) <= {"0", "1"}
    assert 0 <= cell["digits"] <= 0.5
    assert set(cell["controls"]) == {"removed", "another"}
    assert beyond == {"prompts": None, "reason": f"no value: longest position {LENGTH - 1}"}


def test_a_recipe_names_its_tasks_and_its_record_has_each_prompt(
    alone: None, tmp_path: Path
) -> None:
    """From training windows that vary to paired hits; every window begins with the first token."""
    corpus = write_corpus(tmp_path / "corpus", train=6000, held_out=3000)
    chosen = tiny(
        corpus, context_length=64, batch_size=2, steps=2, warmup_steps=0,
        target_tokens=8, evaluation_lengths=[96, 128], retrieval_share=0.5, retrieval_samples=1,
        retrieval_tasks=["passkey", "multikey"], vocab_size=400, first_token=True,
    )  # fmt: skip
    with pytest.raises(ValueError, match="evaluation_lengths: 96 tokens are too few"):
        pe.train(Run(tmp_path / "short", chosen), quiet=True)
    chosen = dataclasses.replace(chosen, context_length=256, evaluation_lengths=(256, 320))
    run = pe.train(Run(tmp_path / "run", chosen), quiet=True)
    found = pe.evaluate(run, quiet=True)
    assert "retrieval" not in found
    assert set(found["needles"]["tasks"]) == {"passkey", "multikey"}
    for cells in found["needles"]["tasks"].values():
        assert [len(cells[str(n)]["prompts"]) for n in (256, 320)] == [11, 11]
    assert run.evaluation()["needles"] == found["needles"]
    assert covers(found, chosen)
    assert not covers(found, dataclasses.replace(chosen, retrieval_samples=2))
    assert not covers(found, dataclasses.replace(chosen, retrieval_tasks=("multiquery",)))


def test_every_evaluated_window_begins_with_the_first_token(shared: Path, alone: None) -> None:
    chosen = tiny(shared / "corpus", first_token=True)
    data = pe.data.prepare(chosen.corpus, chosen.vocab_size)
    model = model_for(chosen, data).eval()
    seen: list[torch.Tensor] = []
    model.model.register_forward_pre_hook(
        lambda module, args, given: seen.append(given["input_ids"]), with_kwargs=True
    )
    with_first = Scorer(model, data, chosen)
    with_first.losses(16)
    assert all((ids[:, 0] == data.end_id).all() for ids in seen)
    plain = Scorer(model, data, dataclasses.replace(chosen, first_token=False))
    assert not np.allclose(plain.losses(16), with_first.losses(16))


def test_tasks_without_effect_or_name_are_refused(shared: Path) -> None:
    with pytest.raises(ValueError, match="retrieval_tasks: no effect without retrieval_share"):
        tiny(shared / "corpus", retrieval_tasks=["multikey"])
    with pytest.raises(ValueError, match="retrieval_tasks: unknown task 'needles'"):
        tiny(shared / "corpus", retrieval_tasks=["needles"], retrieval_samples=1)
