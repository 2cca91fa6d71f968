"""Perplexity by length: against a slow loop, on the same targets, and no value where none is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import tiny, write_corpus
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import pe
from pe import figures
from pe.data import Split, evaluation_windows, prepare
from pe.data.tokenizer import END, PAD, train_bpe
from pe.encodings import Encoding
from pe.evaluation import evaluate as evaluating
from pe.evaluation import scorer as module
from pe.evaluation import temperature
from pe.evaluation.attention import attention_maps, entropies, spread_by_length
from pe.evaluation.evaluate import evaluate
from pe.evaluation.load import load_model, load_tokenizer
from pe.evaluation.scorer import Scorer, by_position, cell
from pe.figures.attention import entropy_by_length
from pe.model import PEForCausalLM
from pe.model.layers import Block
from pe.model.loss import token_losses
from pe.notebooks import page
from pe.recipes.recipe import Recipe
from pe.results import quantities
from pe.runs import Run, RunBusy, RunError
from pe.runs.models.evaluation import AttentionSpread, Tempered
from pe.training.build import build_model
from pe.training.train import train

# One for each way to act; what holds for all encodings, and what windows rest on, are laws.
STEADY = ["nope", "rope", "sinusoidal", "alibi", "fox", "dynamic_ntk"]


class Short(Encoding):
    """An encoding with a hard end: positions 0 to 31."""

    max_positions = 32

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + 0.01 * positions[..., None]


class Grumpy(Encoding):
    """An encoding with a mistake that shows at long sequences."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        if positions.shape[-1] > 40:
            raise ValueError("positions: some other trouble")
        return x


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("evaluation")
    write_corpus(base / "corpus", held_out=700)
    return base


@pytest.fixture(autouse=True)
def environment(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PE_CACHE", str(shared / "cache"))
    torch.set_num_threads(1)


@pytest.fixture
def trained(shared: Path, tmp_path: Path) -> Callable[..., Run]:
    """Makes a trained run of a test's own: trained once in this file, and copied."""

    def make(**changes: Any) -> Run:
        chosen = tiny(shared / "corpus", **({"steps": 6} | changes))
        first = train(Run(shared / "trained" / chosen.run_name(), chosen), quiet=True)
        own = tmp_path / "study" / first.name
        shutil.copytree(first.directory, own, ignore=shutil.ignore_patterns("checkpoints"))
        run = Run(own, chosen)
        run.update(study="study")
        return run

    return make


def scorer_of(model: PEForCausalLM, split: Split, lengths: list[int]) -> Scorer:
    """On ``split`` as test and validation text; 8 targets, as many windows as there are."""
    data: Any = SimpleNamespace(test=split, validation=split)
    return Scorer(model, data, tiny(Path("unused"), evaluation_windows=100), lengths)


def window_losses(
    model: PEForCausalLM, split: Split, ends: list[int], length: int, tokens_per_batch: int
) -> np.ndarray:
    """Of windows that are given by their ends."""
    scorer = scorer_of(model, split, [length])
    scorer.ends, scorer.tokens_per_batch = ends, tokens_per_batch
    return scorer.losses(length)


def model_and_text(name: str = "rope") -> tuple[PEForCausalLM, Split]:
    options = {"table_size": 48} if name == "learned" else {}
    chosen = tiny(Path("unused"), pe=name, pe_options=options)
    model = build_model(chosen, 264).eval()
    with torch.no_grad():  # far from uniform, so that mistakes show
        for parameter in model.parameters():
            parameter.mul_(3.0)
    tokens = np.random.default_rng(0).integers(0, 264, 400).astype(np.uint16)
    return model, Split(tokens, np.array([0]), ["text"])


def slow_losses(model: PEForCausalLM, tokens: np.ndarray, end: int, length: int) -> list[float]:
    """One window, one target at a time, by the definition."""
    found = []
    # Where the length decides, a window is read at the length that it has.
    whole = model.model.encodings[0].length_dependent
    for target in range(end - length, end):
        last = end - 1 if whole else target
        context = torch.from_numpy(tokens[end - length - 1 : last].astype(np.int64))[None]
        with torch.no_grad():
            logits = model(context).logits[0, target - last - 1].double()
        found.append(float(torch.logsumexp(logits, 0) - logits[int(tokens[target])]))
    return found


@pytest.mark.parametrize("name", STEADY)
def test_window_losses_equal_a_slow_loop(name: str) -> None:
    model, split = model_and_text(name)
    for length, ends in ((16, [70, 131, 400]), (40, [400])):
        found = window_losses(model, split, ends, length, tokens_per_batch=2 * length)
        assert found.shape == (len(ends), length)
        assert found.dtype == np.float64
        for row, end in zip(found, ends, strict=True):
            wanted = slow_losses(model, split.tokens, end, length)
            assert row == pytest.approx(wanted, abs=2e-4)


@pytest.mark.parametrize("name", [*STEADY, "randomized"])
def test_losses_do_not_depend_on_how_many_windows_run_at_once(name: str) -> None:
    model, split = model_and_text(name)
    ends = list(range(70, 330, 20))
    one = window_losses(model, split, ends, 48, tokens_per_batch=1)
    for together in (96, 48 * 5, 10**6):
        many = window_losses(model, split, ends, 48, tokens_per_batch=together)
        np.testing.assert_allclose(many, one, atol=1e-5)


def test_every_length_scores_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model, split = model_and_text()
    scored: list[Tensor] = []

    def recorded(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        scored.append(targets)
        return token_losses(hidden, weight, targets)

    monkeypatch.setattr(module, "token_losses", recorded)
    ends = evaluation_windows(split, 128, 8, 20)
    for length in (8, 16, 64, 128):
        window_losses(model, split, ends, length, tokens_per_batch=10**6)
    places = np.concatenate([np.arange(end - 8, end) for end in ends])
    assert len(set(places.tolist())) == len(places)
    wanted = split.tokens[places].astype(np.int64)
    for targets in scored:
        assert np.array_equal(targets.view(len(ends), -1)[:, -8:].flatten().numpy(), wanted)


def test_tokens_weigh_the_same_and_windows_are_kept_for_intervals() -> None:
    losses = np.array([[1.0, 2.0, 3.0], [4.0, 0.0, 2.0]])
    found = cell(losses)
    assert found["nll"] == 2.0
    assert found["value"] == pytest.approx(math.exp(2.0), abs=1e-4)
    assert found["window_nll"] == [2.0, 2.0]
    assert found["reason"] is None
    too_large = cell(np.full((2, 3), 800.0))
    assert too_large["value"] is None
    assert too_large["nll"] == 800.0
    assert "too large" in too_large["reason"]
    json.dumps(too_large, allow_nan=False)


class Overflowing(Encoding):
    """An encoding whose numbers overflow at position 40."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + torch.where(positions < 40, 0.0, math.inf)[..., None]


def test_a_length_at_which_the_loss_is_no_number_has_a_reason_and_no_value() -> None:
    model, split = model_and_text()
    model.model.encodings[0] = Overflowing()
    scorer = scorer_of(model, split, [32, 64])
    measures = scorer.perplexities()
    for name in ("perplexity", "window_perplexity"):
        assert measures[name]["32"]["reason"] is None
        assert measures[name]["64"] == module.NO_CELL | {"reason": module.NOT_FINITE}
    assert measures["loss_by_position"]["length"] == 32
    spread = spread_by_length(scorer)["lengths"]
    assert spread["32"]["reason"] is None
    assert spread["64"] == {"entropy": None, "reason": "no value: it is not finite"}


def test_scoring_with_a_first_token_leaves_the_callers_texts_as_they_were() -> None:
    model, split = model_and_text()
    scorer = scorer_of(model, split, [32])
    scorer.recipe = dataclasses.replace(scorer.recipe, first_token=True)
    scorer.data.end_id = 0
    texts = np.full((2, 9), 7)
    scorer.apply(texts, lambda hidden, some: hidden)
    assert (texts == 7).all()


@pytest.mark.parametrize("length", [1, 5, 31, 32, 33, 100, 128])
def test_loss_by_position_averages_to_the_whole_window(length: int) -> None:
    losses = np.random.default_rng(length).exponential(2.0, (7, length))
    found = by_position(losses)
    edges = found["edges"]
    assert (edges[0], edges[-1], found["length"]) == (0, length, length)
    assert len(found["nll"]) == len(edges) - 1 == min(32, length)
    widths = np.diff(edges)
    assert widths.min() > 0
    assert widths.max() - widths.min() <= 1
    assert np.average(found["nll"], weights=widths) == pytest.approx(losses.mean(), abs=1e-6)
    assert found["nll"][0] == pytest.approx(losses[:, : edges[1]].mean(), abs=1e-6)


def test_a_uniform_model_has_the_vocabulary_as_its_perplexity(
    trained: Callable[..., Run],
) -> None:
    run = trained()
    model = load_model(run)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    model.save_pretrained(run.checkpoint)
    found = evaluate(run, quiet=True)
    for kind in ("perplexity", "window_perplexity"):
        for length in ("16", "32", "64"):
            assert found[kind][length]["value"] == pytest.approx(264.0, rel=1e-5)
    assert found["loss_by_position"]["nll"] == pytest.approx([math.log(264)] * 32, abs=1e-5)


def test_the_record_is_what_the_definition_says(trained: Callable[..., Run]) -> None:
    run = trained()
    found = evaluate(run, quiet=True)
    assert found == run.evaluation()
    data, model = prepare(run.recipe.corpus, 264), load_model(run)
    ends = evaluation_windows(data.test, 64, 8, 6)
    assert found["windows"] == len(ends) == 6
    assert (found["lengths"], found["target_tokens"]) == ([16, 32, 64], 8)
    for length in (16, 64):
        slow = np.array([slow_losses(model, data.test.tokens, end, length) for end in ends])
        last, whole = found["perplexity"][str(length)], found["window_perplexity"][str(length)]
        assert last["nll"] == pytest.approx(slow[:, -8:].mean(), abs=1e-4)
        assert last["value"] == pytest.approx(math.exp(slow[:, -8:].mean()), rel=1e-3)
        assert last["window_nll"] == pytest.approx(slow[:, -8:].mean(axis=1).tolist(), abs=1e-4)
        assert whole["nll"] == pytest.approx(slow.mean(), abs=1e-4)
    positions = found["loss_by_position"]
    assert positions["length"] == 64
    assert np.mean(positions["nll"]) == pytest.approx(found["window_perplexity"]["64"]["nll"])


@pytest.mark.parametrize("name", ["randomized", "alibi+randomized", "sinusoidal+randomized"])
def test_random_positions_are_judged_alike_each_time(
    trained: Callable[..., Run], name: str
) -> None:
    run = trained(pe=name, retrieval_samples=0)
    found = []
    for seed, lengths in ((1, [16, 64]), (2, [16, 64]), (3, [64])):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        again = evaluate(reopened(run, evaluation_lengths=lengths, target_tokens=8), quiet=True)
        assert torch.equal(torch.get_rng_state(), before), "the caller's own draws are as they were"
        found.append([again[part]["64"] for part in ("perplexity", "window_perplexity")])
        (run.directory / "evaluation.json").unlink()
    assert found[0] == found[1] == found[2]
    assert found[0][0]["value"] > 1


def test_a_length_beyond_the_last_position_has_no_value(trained: Callable[..., Run]) -> None:
    run = trained(pe="test_evaluation:Short")
    found = evaluate(run, quiet=True)
    for kind in ("perplexity", "window_perplexity"):
        assert found[kind]["32"]["value"] > 1
        assert found[kind]["64"] == {
            "value": None, "nll": None, "window_nll": None,
            "reason": "no value: longest position 31",
        }  # fmt: skip
    assert found["loss_by_position"]["length"] == 32
    row = pe.runs.load(run.directory.parent.parent).iloc[0]
    assert row["ppl@2x"] == found["perplexity"]["32"]["value"]
    assert math.isnan(row["ppl@4x"] if row["ppl@4x"] is not None else math.nan)


def test_a_sample_longer_than_the_last_position_is_refused_in_one_line(
    trained: Callable[..., Run],
) -> None:
    run = trained(pe="test_evaluation:Short")
    prompt = "the cat"
    used = len(load_tokenizer(run)(prompt)["input_ids"])
    assert pe.sample(run, prompt, tokens=33 - used).startswith(prompt)
    with pytest.raises(ValueError, match=f"tokens: {34 - used} after a prompt of {used}.*1 to"):
        pe.sample(run, prompt, tokens=34 - used)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"prompt": 3}, "prompt: expected a text, got 3"),
        ({"prompt": ["a"]}, r"prompt: expected a text, got \['a'\]"),
        ({"tokens": 0}, "tokens: expected a whole number of at least 1, got 0"),
        ({"tokens": 2.5}, "tokens: expected a whole number of at least 1, got 2.5"),
        ({"tokens": True}, "tokens: expected a whole number of at least 1, got True"),
        ({"seed": -1}, "seed: expected a whole number from 0 to .*, got -1"),
        ({"seed": "x"}, "seed: expected a whole number from 0 to .*, got 'x'"),
    ],
)
def test_a_sample_names_an_argument_of_the_wrong_kind(
    trained: Callable[..., Run], arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        pe.sample(trained(), **arguments)


def test_logits_that_are_not_finite_write_no_text(trained: Callable[..., Run]) -> None:
    run = trained()
    model = load_model(run)
    with torch.no_grad():
        model.lm_head.weight[3] = math.nan
    model.save_pretrained(run.checkpoint)
    with pytest.raises(module.NotFinite, match="the logits are not finite"):
        pe.sample(run, "the cat", tokens=2)
    assert page.sample(run).data == "No text: the logits are not finite."


def test_the_residual_stream_can_be_read_in_float32_and_the_record_says_so(
    trained: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(precision="bfloat16")
    seen: list[torch.dtype] = []
    forward = Block.forward

    def watched(self: Block, x: Tensor, *rest: Any) -> Any:
        seen.append(x.dtype)
        return forward(self, x, *rest)

    monkeypatch.setattr(Block, "forward", watched)
    narrow = evaluate(run, quiet=True)
    assert narrow["precision"] == {"products": "bfloat16", "residual": "bfloat16"}
    assert set(seen) == {torch.bfloat16}
    seen.clear()
    wide = evaluate(run, quiet=True, float32_residual=True)
    assert wide["precision"] == {"products": "bfloat16", "residual": "float32"}
    assert set(seen) == {torch.float32}
    a, b = (found["perplexity"]["64"]["nll"] for found in (narrow, wide))
    assert a != b
    assert a == pytest.approx(b, rel=1e-2)
    seen.clear()
    assert evaluate(run, quiet=True, float32_residual=True) == wide == evaluate(run, quiet=True)
    assert seen == [], "a wider record serves both"


def test_another_mistake_is_not_taken_for_a_missing_position(trained: Callable[..., Run]) -> None:
    run = trained(pe="test_evaluation:Grumpy")
    with pytest.raises(ValueError, match="some other trouble"):
        evaluate(run, quiet=True)
    assert run.evaluation() is None
    assert run.busy() is None


def reopened(run: Run, **changes: Any) -> Run:
    return Run(run.directory, Recipe.from_dict(run.recipe.to_dict() | changes))


def test_what_is_recorded_is_not_computed_again(
    trained: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained()
    first = evaluate(run, quiet=True)
    calls: list[Any] = []
    inner = evaluating._evaluate

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return inner(*arguments)

    monkeypatch.setattr(evaluating, "_evaluate", counted)
    assert evaluate(Run(run.directory), quiet=True) == first
    assert evaluate(reopened(run, evaluation_lengths=[64, 16, 32]), quiet=True) == first
    assert calls == []
    for changes, where in (
        ({"evaluation_lengths": [16, 48]}, ("lengths", [16, 48])),
        ({"target_tokens": 4}, ("target_tokens", 4)),
        ({"evaluation_windows": 3}, ("windows", 3)),
        ({"evaluation_windows": 10**6}, ("windows_wanted", 10**6)),
    ):
        done = len(calls)
        again = evaluate(reopened(run, **changes), quiet=True)
        assert len(calls) == done + 1
        assert again[where[0]] == where[1]
        assert run.evaluation() == again
        assert evaluate(reopened(run, **changes), quiet=True) == again
        assert len(calls) == done + 1
    assert again["windows"] < 10**6


def test_a_record_without_its_weights_can_be_read_but_not_extended(
    trained: Callable[..., Run],
) -> None:
    run = trained()
    first = evaluate(run, quiet=True)
    shutil.rmtree(run.checkpoint)
    assert evaluate(Run(run.directory), quiet=True) == first
    with pytest.raises(RunError, match="is not on this machine .*train the run again") as error:
        evaluate(reopened(run, evaluation_lengths=[16]), quiet=True)
    assert str(run.checkpoint) in str(error.value)
    assert run.evaluation() == first
    with pytest.raises(RunError, match="is not on this machine"):
        pe.sample(run)


def test_what_is_not_trained_is_not_evaluated(trained: Callable[..., Run], tmp_path: Path) -> None:
    run = trained()
    run.fail("stopped by SIGTERM", status="interrupted")
    with pytest.raises(RunError, match="is interrupted; train it before evaluating it"):
        evaluate(run, quiet=True)
    with pytest.raises(RunError, match="there is no such record"):
        evaluate(Run(tmp_path / "nothing", run.recipe), quiet=True)


def test_lengths_that_cannot_be_are_refused(trained: Callable[..., Run]) -> None:
    run = trained()
    with pytest.raises(ValueError, match="0 evaluation windows of 4,096 tokens are possible"):
        evaluate(reopened(run, evaluation_lengths=[16, 4096]), quiet=True)
    assert run.evaluation() is None


def test_other_text_than_that_of_training_is_refused(tmp_path: Path) -> None:
    chosen = tiny(write_corpus(tmp_path / "corpus"), steps=4)
    run = train(Run(tmp_path / "study" / chosen.run_name(), chosen), quiet=True)
    with open(tmp_path / "corpus" / "test.txt", "a") as file:
        file.write("leaked")
    with pytest.raises(RunError, match="was trained on other data .* train it again") as error:
        evaluate(run, quiet=True)
    assert str(run.directory) in str(error.value)
    assert run.read()["data"]["fingerprint"] in str(error.value)


def test_a_complete_run_is_not_shown_over_text_that_was_edited(tmp_path: Path) -> None:
    chosen = tiny(write_corpus(tmp_path / "corpus"), steps=4)
    run = train(Run(tmp_path / "study" / chosen.run_name(), chosen), quiet=True)
    assert train(run, quiet=True) is run
    with open(tmp_path / "corpus" / "train.txt", "a") as file:
        file.write("one more word")
    with pytest.raises(RunError, match="the text was .* and is now .*; choose another study"):
        train(run, quiet=True)
    shutil.rmtree(tmp_path / "corpus")
    assert train(run, quiet=True) is run, "its record can be read where its text is not"


def test_a_tokenizer_replaced_under_its_path_is_refused(tmp_path: Path) -> None:
    """By training that goes on, and by evaluation: losses by other tokens are not comparable."""
    corpus, path = write_corpus(tmp_path / "corpus"), tmp_path / "own"

    def write_tokenizer(text: str) -> None:
        made = train_bpe([text] * 4, 264)
        PreTrainedTokenizerFast(
            tokenizer_object=made, eos_token=END, pad_token=PAD
        ).save_pretrained(path)

    write_tokenizer("the cat sat on the mat " * 9)
    chosen = tiny(corpus, tokenizer=str(path), steps=4, checkpoint_every=2)
    run = train(Run(tmp_path / "study" / chosen.run_name(), chosen), quiet=True)
    write_tokenizer("her old red house by night " * 9)
    with pytest.raises(RunError, match="the tokenizer was .* and is now .*; train it again"):
        evaluate(run, quiet=True)
    run.fail("as if it had been stopped", "interrupted", None)
    with pytest.raises(RunError, match="the tokenizer was .* and is now .*; delete the folder"):
        train(run, quiet=True)


def test_a_run_that_is_being_written_is_not_evaluated(trained: Callable[..., Run]) -> None:
    run = trained()
    with run.lock(), pytest.raises(RunBusy):
        evaluate(run, quiet=True)


def test_terminal_shows_our_lines_and_no_others(
    shared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = tiny(shared / "corpus", steps=6)
    run = Run(tmp_path / "run", chosen)
    train(run)
    evaluate(run)
    pe.sample(run, "the", tokens=2)
    out, err = capfd.readouterr()
    assert out == ""
    ours = ("preparing ", "step ", "evaluating at ")
    assert [line for line in err.splitlines() if not line.startswith(ours)] == []
    assert err.splitlines()[0] == f"preparing {chosen.corpus}"


def test_a_temperature_is_fitted_at_each_length_and_never_makes_that_worse() -> None:
    model, split = model_and_text("nope")
    scorer = scorer_of(model, split, [16, 32, 64])
    fits = temperature.fit_temperatures(scorer, [32, 64])
    assert list(fits) == [32, 64]
    assert fits[32]["value"] != fits[64]["value"]
    ends = evaluation_windows(split, 64, 8, temperature.WINDOWS)
    for length, fit in fits.items():
        trials = dict(fit["trials"])
        assert fit["trials"][0] == [0.0, fit["nll_without"]]
        assert fit["nll"] == min(trials.values()) <= fit["nll_without"]
        assert trials[fit["value"]] == fit["nll"]
        assert len(trials) > 5
        assert fit["lengths"] == [length]
        assert model.config.length_temperature == 0.0
        with scorer.temperature(fit["value"]):
            again = window_losses(model, split, ends, length, 512)[:, -8:].mean()
        assert again == pytest.approx(fit["nll"], abs=1e-6)


class Bowl:
    """A loss with its least value at ``best``, whatever the text; from c = 0.7 on ``broken``."""

    ends = range(4)
    c = 0.0

    def __init__(self, best: float, broken: float | None = None) -> None:
        self.best, self.broken = best, broken

    @contextlib.contextmanager
    def temperature(self, c: float) -> Iterator[None]:
        self.c = c
        yield

    def nll(self, length: int) -> float:
        return (self.c - self.best) ** 2 if self.broken is None or self.c < 0.7 else self.broken


@pytest.mark.parametrize(("best", "stopped"), [(0.4, False), (9.0, True), (-9.0, True)])
def test_a_fit_that_ends_at_its_bound_says_so(best: float, stopped: bool) -> None:
    bowl: Any = Bowl(best)
    fit = temperature.fit_temperature(bowl, 64)
    assert fit["at_bound"] is stopped
    assert abs(fit["value"] - min(max(best, -0.5), 1.5)) < 0.02


def test_a_loss_that_is_no_number_gives_no_fit_and_its_reason_is_recorded() -> None:
    model, split = model_and_text("nope")
    model.model.encodings[0] = Overflowing()
    scorer = scorer_of(model, split, [16, 32, 64])
    record = evaluating._tempered(scorer, lambda text: None)
    assert Tempered.model_validate(json.loads(json.dumps(record, allow_nan=False)))
    assert record["fit"]["lengths"] == [32]
    assert record["fit"]["reason"] is record["reason"] is None
    assert record["fits"]["64"]["trials"] == [[0.0, None]]
    no_cell = module.NO_CELL | {"reason": module.NOT_FINITE}
    for name in ("perplexity", "window_perplexity"):
        assert record[name]["32"]["reason"] is None
        assert record[name]["64"] == no_cell

    scorer.lengths = [64]
    scorer.recipe = dataclasses.replace(scorer.recipe, evaluation_lengths=(64,))
    record = evaluating._tempered(scorer, lambda text: None)
    Tempered.model_validate(json.loads(json.dumps(record, allow_nan=False)))
    assert (record["fit"], record["reason"]) == (None, module.NOT_FINITE)
    assert record["perplexity"] == {"64": no_cell}
    run: Any = SimpleNamespace(evaluation=lambda: {"tempered": record})
    assert quantities.value(run, "c") == (None, module.NOT_FINITE)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_temperature_at_which_the_loss_is_no_number_is_never_the_best(broken: float) -> None:
    bowl: Any = Bowl(0.4, broken)
    fit = temperature.fit_temperature(bowl, 64)
    assert abs(fit["value"] - 0.4) < 0.02
    assert None in [nll for _, nll in fit["trials"]]
    json.dumps(fit, allow_nan=False)


def test_a_temperature_changes_only_what_lies_beyond_the_training_context() -> None:
    model, split = model_and_text("rope")
    length = model.config.max_position_embeddings
    scorer = scorer_of(model, split, [2 * length])
    plain = scorer.losses(2 * length)
    with scorer.temperature(0.7):
        sharper = scorer.losses(2 * length)
    np.testing.assert_array_equal(plain[:, :length], sharper[:, :length])
    assert np.abs(plain[:, length:] - sharper[:, length:]).max() > 1e-3


@pytest.mark.parametrize("name", ["rope", "learned"])
def test_the_spread_of_attention_on_record_is_that_of_the_maps(name: str) -> None:
    model, split = model_and_text(name)
    scorer = scorer_of(model, split, [16, 64])
    spread = spread_by_length(scorer)
    maps = [
        attention_maps(model, torch.tensor(split.tokens[end - 17 : end - 1].astype(np.int64)))
        for end in scorer.ends[: spread["windows"]]
    ]
    expected = torch.stack([entropies(one).mean(dim=-1) for one in maps]).mean(dim=0)
    recorded = spread["lengths"]["16"]["entropy"]
    assert torch.allclose(torch.tensor(recorded), expected, atol=1e-4)
    longer = spread["lengths"]["64"]
    if name == "learned":
        assert longer["entropy"] is None
        assert longer["reason"] == "no value: longest position 47"
    else:
        assert longer["entropy"] != recorded
    assert not model.model.layers[0].attention._forward_hooks, "nothing stays behind"
    AttentionSpread.model_validate(spread)
    assert "layer 2" in figures.svg(entropy_by_length(spread, 16))
