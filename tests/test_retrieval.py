"""Texts that hide a number: how they are built, mixed into training, and scored."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import tiny, write_corpus
from transformers import PreTrainedTokenizerFast

import pe
from pe.data.batches import Batches
from pe.data.needles import (
    DEPTHS,
    EARLIER_TASKS,
    FILLER,
    NAMES,
    VARIANTS,
    NeedleMix,
    NeedleTask,
    NeedleText,
)
from pe.data.shards import Split
from pe.data.tokenizer import END, PAD, train_bpe
from pe.evaluation.retrieval import evaluate_retrieval, hits, prompts
from pe.evaluation.scorer import Scorer
from pe.model import PEForCausalLM
from pe.model.config import PEConfig
from pe.runs import Run
from pe.runs.models.evaluation import Needles, Retrieval

LENGTH = 160
DIGITS = 5
NEEDLE = EARLIER_TASKS[1]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    text = [FILLER, "The special number of Oslo is 4.\nWhat is the pass key? Remember it: "] * 20
    return PreTrainedTokenizerFast(
        tokenizer_object=train_bpe(text + list(NAMES), 400), eos_token=END, pad_token=PAD
    )


@pytest.fixture(scope="module")
def split(tokenizer: PreTrainedTokenizerFast) -> Split:
    """Three documents of words; no digits, so that every digit in a text was put there."""
    rng = np.random.default_rng(0)
    words = [" ".join(rng.choice(FILLER.split(), 400)) for _ in range(3)]
    ids = [tokenizer(w)["input_ids"] for w in words]
    starts = np.cumsum([0, *(len(i) for i in ids[:-1])])
    return Split(np.concatenate(ids).astype(np.uint16), starts, ["a", "b", "c"])


def digest(arrays: Iterable[np.ndarray]) -> str:
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return whole.hexdigest()[:16]


@pytest.mark.parametrize("task", EARLIER_TASKS, ids=lambda task: task.name)
def test_depth_is_the_share_of_the_haystack_before_the_needle(
    task: NeedleTask, tokenizer: Any, split: Split
) -> None:
    text = NeedleText(task, tokenizer)
    haystack = np.asarray(split.tokens[:LENGTH], dtype=np.int64)
    before = []
    for depth in (0.0, 0.5, 1.0):
        row, plain = (
            text.build(3, 5, LENGTH, haystack, depth=depth, variant=variant).ids
            for variant in ("found", "removed")
        )
        before.append(int(np.argmax(row != plain)))
    assert before[0] == 0
    assert before[1] == round(before[2] / 2)
    assert before[2] >= LENGTH - text.shortest()


# Runs of the first studies were trained and judged with these; a record can only be repeated while
# the texts stay the same to the last token.
PINNED = {
    "windows": "9293b1fb86c99556",
    "passkey": "1867cdf195d37f8d",
    "passkey removed": "03c5a9d8cd70cc15",
    "passkey another": "2a16f06823aea367",
    "needle": "c83fe8d685204fb7",
    "needle removed": "70bdd8186cf50173",
    "needle another": "a6dd92f8fb135177",
}


def test_texts_of_the_first_studies_are_what_they_were(tokenizer: Any, split: Split) -> None:
    mix = NeedleMix(Batches(split, 100, 8, seed=1), 0.25, tokenizer, ())
    texts = {"windows": digest(array for step in range(40) for array in mix.at(step))}
    for task in EARLIER_TASKS:
        for variant in VARIANTS:
            made = prompts(NeedleText(task, tokenizer), split, LENGTH, 22, variant)
            name = task.name if variant == "found" else f"{task.name} {variant}"
            texts[name] = digest(
                [np.stack([getattr(p, a) for p in made]) for a in ("ids", "digits")]
            )
    assert texts == PINNED


def test_a_mix_replaces_its_share_and_leaves_the_other_windows_alone(
    tokenizer: Any, split: Split
) -> None:
    plain = Batches(split, 100, 8, seed=1)
    mix = NeedleMix(plain, 0.25, tokenizer, ())
    replaced = 0
    for step in range(40):
        a, b = plain.at(step), mix.at(step)
        changed = (a.input_ids != b.input_ids).any(1)
        replaced += int(changed.sum())
        for x, y in zip(a, b, strict=True):
            assert np.array_equal(x[~changed], y[~changed])
        assert np.array_equal(b.input_ids[:, 1:], b.targets[:, :-1])
        assert (b.documents[changed] == 0).all()
        for row, target in zip(b.input_ids[changed], b.targets[changed], strict=True):
            body = tokenizer.decode(np.append(row, target[-1]))
            assert body[-DIGITS:].isdigit()
            assert body.count(body[-DIGITS:]) >= 2
        again = mix.at(step, slice(2, 5))
        assert np.array_equal(again.input_ids, b.input_ids[2:5])
    assert 0.18 < replaced / 320 < 0.32


def test_what_does_not_fit_is_refused(tokenizer: Any, split: Split) -> None:
    with pytest.raises(ValueError, match="context_length is 20; retrieval texts need"):
        NeedleMix(Batches(split, 20, 2, seed=0), 0.5, tokenizer, ())
    with pytest.raises(ValueError, match="no document has 9,999 tokens"):
        prompts(NeedleText("passkey", tokenizer), split, 9999, 11)
    pairs = PreTrainedTokenizerFast(tokenizer_object=_pairs_of_digits())
    with pytest.raises(ValueError, match="makes each digit one token"):
        NeedleText("multikey", pairs)


def _pairs_of_digits() -> Any:
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({"unknown": 0}, unk_token="unknown"))


class Reader:
    """Answers with the digits that stand behind the last 'is ' of the text before the question."""

    device = torch.device("cpu")

    def __init__(self, answer: Any, vocabulary: int = 400) -> None:
        self.answer, self.vocabulary = answer, vocabulary

        self.config = SimpleNamespace(length_temperature=0.0)
        self.model = self  # the decoder, which the scorer tells its precision
        self.float32_residual = False

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        """Hidden state t is the prediction of token t+1, one-hot."""
        hidden = torch.zeros(*input_ids.shape, self.vocabulary)
        for row, ids in enumerate(input_ids.tolist()):
            for place, token in enumerate(self.answer(ids)):
                hidden[row, input_ids.shape[1] - DIGITS + place, token] = 1
        return SimpleNamespace(last_hidden_state=hidden)

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def scorer_of(model: Any, tokenizer: Any, split: Split) -> Scorer:
    """At two lengths, with three prompts, a few prompts at once."""
    data: Any = SimpleNamespace(test=split, tokenizer=tokenizer)
    recipe = tiny(Path("unused"), evaluation_lengths=[LENGTH, 300], retrieval_samples=3)
    scorer = Scorer(model, data, recipe)
    scorer.tokens_per_batch = 500
    return scorer


def test_a_model_that_reads_the_needle_scores_and_fails_both_controls(
    tokenizer: Any, split: Split
) -> None:
    text = NeedleText(NEEDLE, tokenizer)

    def read(ids: list[int]) -> list[int]:
        stated = [t for t in ids[: -DIGITS + 1] if t in text.digit_ids][:DIGITS]
        return stated if len(stated) == DIGITS else [0] * DIGITS

    reader: Any = Reader(read)
    found = evaluate_retrieval(scorer_of(reader, tokenizer, split), (), 3 * len(DEPTHS))
    for cell in found["retrieval"]["tasks"]["needle"].values():
        assert cell["exact"] == cell["greedy"] == [3] * len(DEPTHS)
        assert cell["digits"] == [3 * DIGITS] * len(DEPTHS)
        assert cell["controls"]["another"] == {"exact": 0, "greedy": 0, "digits": 0}
        assert cell["controls"]["removed"]["exact"] == 0
        assert cell["reason"] is None


def test_counts_are_of_the_right_things(tokenizer: Any, split: Split) -> None:
    text = NeedleText(NEEDLE, tokenizer)
    made = prompts(text, split, LENGTH, 44)
    seven: Any = Reader(lambda ids: [int(text.digit_ids[7])] * DIGITS)
    right = hits(scorer_of(seven, tokenizer, split), made, text.digit_ids)[0]
    assert right.tolist() == [(p.digits == 7).tolist() for p in made]
    # A model that would rather say something else than a digit is right among digits only.
    best = {tuple(row[:-1]): row[-DIGITS:].tolist() for row in (p.ids for p in made)}
    talkative: Any = Reader(lambda ids: best[tuple(ids)])
    talkative.lm_head = lambda hidden: (
        hidden + 2 * torch.nn.functional.one_hot(torch.tensor(int(tokenizer.eos_token_id)), 400)
    )
    right, greedy = hits(scorer_of(talkative, tokenizer, split), made, text.digit_ids)
    assert right.all()
    assert not greedy.any()


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_logits_that_are_not_finite_find_no_number(
    broken: float, tokenizer: Any, split: Split
) -> None:
    """A maximum is the first NaN: without a check every model that diverged says one digit."""
    reader: Any = Reader(lambda ids: [])
    reader.lm_head = lambda hidden: hidden + broken
    for tasks in (("multikey",), ()):
        found = evaluate_retrieval(scorer_of(reader, tokenizer, split), tasks, 3 * len(DEPTHS))
        (part,) = found.values()
        for cells in part["tasks"].values():
            for cell in cells.values():
                assert cell["reason"] == "no value: the logits are not finite"
                assert {value for name, value in cell.items() if name != "reason"} == {None}
        model = Needles if tasks else Retrieval
        model.model_validate(json.loads(json.dumps(part, allow_nan=False)))


def test_greedy_scores_are_those_of_greedy_decoding(tokenizer: Any, split: Split) -> None:
    torch.manual_seed(0)
    config = PEConfig(vocab_size=400, hidden_size=64, num_hidden_layers=2, intermediate_size=128)
    model = PEForCausalLM(config)
    text = NeedleText(NEEDLE, tokenizer)
    made = prompts(text, split, 64, 11)
    rows = np.stack([p.ids for p in made])
    learnt = torch.from_numpy(rows[:6])  # by heart; the others it cannot know
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(40):
        labels = learnt.clone()
        labels[:, :-DIGITS] = -100
        model(learnt, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    greedy = hits(scorer_of(model, tokenizer, split), made, text.digit_ids)[1].all(-1)
    prompt = torch.from_numpy(rows[:, :-DIGITS])
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=DIGITS, do_sample=False,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    said = (out[:, -DIGITS:].numpy() == rows[:, -DIGITS:]).all(1)
    assert greedy.tolist() == said.tolist()
    assert greedy[:6].all()
    assert not greedy.all()


def test_a_run_is_judged_by_retrieval_and_with_a_fitted_temperature(
    tmp_path: Path, own_runs: Path
) -> None:
    corpus = write_corpus(tmp_path / "corpus", held_out=900)
    lengths = [128, 256]
    recipe = tiny(
        corpus, context_length=128, steps=3, warmup_steps=1, evaluation_lengths=lengths,
        retrieval_share=0.5, retrieval_samples=1, fit_temperature=True, evaluation_windows=2,
    )  # fmt: skip
    run = pe.train(Run(own_runs / "local" / recipe.run_name(), recipe=recipe), quiet=True)
    found = pe.evaluate(run, quiet=True)
    assert run.evaluation() == found
    cell = found["retrieval"]["tasks"]["passkey"]["256"]
    assert len(cell["exact"]) == len(cell["digits"]) == len(DEPTHS)
    fit = found["tempered"]["fit"]
    assert fit["lengths"] == [256]
    assert found["tempered"]["fits"] == {"256": fit}
    assert found["precision"] == {"products": "float32", "residual": "float32"}
    assert found["tempered"]["perplexity"]["128"] == found["perplexity"]["128"]
    assert found["tempered"]["retrieval"].keys() == found["retrieval"].keys()
    stamp = (run.directory / "evaluation.json").stat().st_mtime_ns
    pe.evaluate(run, quiet=True)
    assert (run.directory / "evaluation.json").stat().st_mtime_ns == stamp
    more = dataclasses.replace(recipe, retrieval_samples=2)  # the same run, judged more closely
    assert more.config_hash() == recipe.config_hash()
    again = pe.evaluate(Run(run.directory, recipe=more), quiet=True)
    assert again["retrieval"]["samples"] == 2
