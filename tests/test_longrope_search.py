"""LongRoPE's search: rules of the evolution, and a whole search on a model trained in seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import text, tiny, write_corpus

import pe
from pe.data import prepare
from pe.data.needles import NeedleText
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.longrope import LongRoPE
from pe.evaluation.load import load_model
from pe.evaluation.longrope import search as longrope_search
from pe.evaluation.longrope.evolution import (
    Candidate,
    Evolution,
    Scored,
    bounded_seeds,
    critical_frequency,
    rises,
    seeds,
)
from pe.evaluation.longrope.search import Fitness, search_longrope
from pe.evaluation.retrieval import prompts
from pe.evaluation.scorer import Scorer
from pe.model import PEForCausalLM
from pe.runs import Run, RunError


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A trained two-layer model, with validation documents of many times its length."""
    base = tmp_path_factory.mktemp("search")
    write_corpus(base / "corpus", held_out=900)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PE_CACHE", str(base / "cache"))
        torch.set_num_threads(1)
        recipe = tiny(base / "corpus", steps=60, hidden_size=64, qk_norm=True)
        yield pe.train(Run(base / "runs" / recipe.run_name(), recipe=recipe), quiet=True)


@pytest.fixture
def run(shared: Run, tmp_path: Path) -> Run:
    """The same model with no search beside it."""
    folder = tmp_path / shared.name
    folder.mkdir()
    for name in ("run.json", "metrics.jsonl", "checkpoint"):
        (folder / name).symlink_to(shared.directory / name)
    return Run(folder)


def extended(model: PEForCausalLM, settings: dict[str, Any]) -> PEForCausalLM:
    """The model with LongRoPE, as a search has it."""
    options = {name: settings[name] for name in ("factor", "magnitude")}
    return pe.convert(model, settings["pe"], **options).eval()


SMALL: dict[str, Any] = {"iterations": 2, "population": 8, "windows": 4, "quiet": True}


def state(run: Run, factor: int = 4) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.directory / f"longrope-{factor}x.json").read_text())
    return found


# What is made


@pytest.fixture
def first() -> list[Candidate]:
    return seeds(base_frequencies(64, 10000.0), 8.0, 4096)


def test_it_begins_with_pi_ntk_yarn_and_the_authors_own_blend(first: list[Candidate]) -> None:
    import numpy as np

    arrays = np.load(Path(__file__).parent / "golden" / "longrope.npz")
    by_name = {c.origin: np.array(c.factors) for c in first}
    assert list(by_name) == ["pi", "ntk", "yarn", "blend"]
    assert (by_name["pi"] == 8.0).all()
    base = 10000.0 ** -(np.arange(32) / 32)
    ntk = (10000.0 * 8.0 ** (64 / 62)) ** -(np.arange(32) / 32)
    np.testing.assert_allclose(base / by_name["ntk"], ntk, rtol=1e-8)
    np.testing.assert_allclose(
        base / by_name["yarn"], arrays["search_true_yarn_inv_freq"], rtol=5e-7
    )
    np.testing.assert_allclose(by_name["blend"], arrays["search_init_factors"], atol=1e-8)
    np.testing.assert_allclose(
        base / by_name["blend"], arrays["search_init_effective_inv_freq"], rtol=1e-8
    )
    assert all(rises(c.factors) for c in first)


@pytest.mark.parametrize(("dim", "length"), [(4, 3), (8, 16), (32, 256), (128, 4096)])
def test_candidates_rise_stay_in_range_and_are_new(dim: int, length: int) -> None:
    first = seeds(base_frequencies(dim, 10000.0), 4.0, length)
    rules, known = Evolution(first, 4.0, 16, seed=1), []
    for number in range(6):
        new = list(rules.generation(number, known))
        assert new or dim == 4
        for c in new:
            assert len(c.factors) == dim // 2
            assert rises(c.factors)
            assert c.factors[0] >= 1.0
            assert c.factors[-1] <= 5.0
        # A made-up fitness: the nearer to a line, the better.
        known += [
            Scored(c.factors, sum((f - 1 - i / dim) ** 2 for i, f in enumerate(c.factors)))
            for c in new
        ]
    assert len({k.factors for k in known}) == len(known)
    losses = [k.nll for k in known]
    assert min(losses) < min(losses[: len(first)])


def test_a_generation_is_the_size_that_the_options_say(first: list[Candidate]) -> None:
    rules = Evolution(first, 8.0, 64, seed=0)
    known = [Scored(c.factors, float(i)) for i, c in enumerate(rules.generation(0, []))]
    assert len(known) == 64
    again = list(rules.generation(1, known))
    assert len(again) == 32
    assert [c.origin for c in again[:16]] == ["mutation"] * 16
    assert {c.origin for c in again[16:]} <= {"mutation", "crossover"}
    assert list(rules.generation(1, known)) == again
    assert list(Evolution(first, 8.0, 64, seed=1).generation(1, known)) != again


def test_a_mutation_draws_genes_between_their_neighbours(first: list[Candidate]) -> None:
    import random

    rules, rng = Evolution(first, 8.0, 64, seed=0), random.Random(0)
    parent = first[1].factors  # ntk: strictly rising
    changed = 0
    for _ in range(200):
        child = rules.mutated(rng, parent)
        assert rises(child)
        for i, (gene, old) in enumerate(zip(child, parent, strict=True)):
            if gene != old:
                changed += 1
                left = child[i - 1] if i else 1.0
                right = parent[i + 1] if i + 1 < len(parent) else 9.0
                assert left <= gene <= right
                on_grid = abs(gene * 100 - round(gene * 100)) < 1e-9
                assert on_grid or gene in (left, right)
    assert 0.2 < changed / (200 * 32) < 0.31


# What comes of it


def test_the_factors_are_no_worse_than_yarns_and_the_history_is_whole(run: Run) -> None:
    found = search_longrope(run, 4.0, **SMALL)
    record = state(run)
    history = record["history"]
    assert len(history) == 8 + 2 * 4
    assert len({tuple(e["factors"]) for e in history}) == len(history)
    origins = [e["origin"] for e in history]
    assert origins[:4] == ["pi", "ntk", "yarn", "blend"]
    assert origins[4:8] == [f"mutation of {name}" for name in origins[:4]]
    assert [e["generation"] for e in history] == [0] * 8 + [1] * 4 + [2] * 4
    best = min(history, key=lambda e: e["nll"])
    assert record["best"] == best
    assert found == best["factors"]
    assert best["nll"] <= history[2]["nll"]
    assert best["nll"] < max(e["nll"] for e in history)  # it tells them apart
    assert best["perplexity"] == pytest.approx(math.exp(best["nll"]))
    settings = record["settings"]
    assert (settings["length"], settings["target_tokens"], settings["seed"]) == (64, 8, 0)


def test_it_finds_better_factors_than_it_begins_with(run: Run) -> None:
    search_longrope(run, 4.0, **(SMALL | {"iterations": 6, "population": 16}))
    history = state(run)["history"]
    assert state(run)["best"]["nll"] < min(e["nll"] for e in history[:4])
    later = [e for e in history if e["generation"]]
    assert {e["origin"] for e in later} == {"mutation", "crossover"}


def test_what_is_recorded_is_the_converted_models_loss(run: Run) -> None:
    """Under YaRN's own magnitude, the seed `yarn` is YaRN."""
    found = search_longrope(run, 4.0, **(SMALL | {"magnitude": "yarn", "iterations": 1}))
    record, model = state(run), load_model(run)
    data = prepare(run.recipe.corpus, run.recipe.vocab_size, run.recipe.tokenizer)
    settings = record["settings"]
    scorer = Fitness.of(run.recipe, extended(model, settings), data, settings).scorer
    assert len(scorer.ends) == record["settings"]["windows_found"] == 4
    options = {"factor": 4.0, "long_factor": found, "magnitude": "yarn"}
    for name, given, entry in (
        ("longrope", options, record["best"]),
        ("yarn", {"factor": 4.0}, record["history"][2]),
    ):
        converted = pe.convert(model, name, **given).eval()
        assert scorer.of(converted).nll(64) == pytest.approx(entry["nll"], abs=1e-6)


def test_the_same_seed_gives_the_same_search_and_another_one_another(
    shared: Run, run: Run, tmp_path: Path
) -> None:
    first = search_longrope(run, 4.0, **SMALL)
    history = state(run)["history"]
    (run.directory / "longrope-4x.json").unlink()
    assert search_longrope(run, 4.0, **SMALL) == first
    assert state(run)["history"] == history
    (run.directory / "longrope-4x.json").unlink()
    search_longrope(run, 4.0, **(SMALL | {"seed": 1}))
    other = state(run)["history"]
    assert other[:4] == history[:4]
    assert other[4:] != history[4:]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """How many candidates were evaluated since; a search may be killed after some."""

    def start(stop_after: int | None = None) -> list[int]:
        made: list[int] = []
        inner = Fitness.nll

        def nll(self: Fitness, factors: tuple[float, ...]) -> float:
            if len(made) == stop_after:
                raise KeyboardInterrupt
            made.append(1)
            return inner(self, factors)

        monkeypatch.setattr(Fitness, "nll", nll)
        return made

    return start


@pytest.mark.parametrize("after", [1, 6, 8, 11])
def test_a_search_that_was_stopped_ends_as_if_it_had_not_been(
    run: Run, counted: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    whole = search_longrope(run, 4.0, **SMALL)
    history = state(run)["history"]
    (run.directory / "longrope-4x.json").unlink()
    with monkeypatch.context():
        counted(stop_after=after)
        with pytest.raises(KeyboardInterrupt):
            search_longrope(run, 4.0, **SMALL)
    monkeypatch.undo()
    assert state(run)["history"] == history[:after]
    assert run.busy() is None
    made = counted()
    assert search_longrope(run, 4.0, **SMALL) == whole
    assert len(made) == len(history) - after
    assert state(run)["history"] == history


def test_more_iterations_go_on_and_none_is_evaluated_twice(
    run: Run, counted: Callable[..., list[int]]
) -> None:
    made = counted()
    search_longrope(run, 4.0, **(SMALL | {"iterations": 1}))
    search_longrope(run, 4.0, **SMALL)
    search_longrope(run, 4.0, **SMALL)
    assert len(made) == len(state(run)["history"]) == 16
    early = search_longrope(run, 4.0, **(SMALL | {"iterations": 0}))
    assert len(made) == 16
    assert early == min(state(run)["history"][:8], key=lambda e: e["nll"])["factors"]


def test_other_factors_have_files_of_their_own(run: Run) -> None:
    few = SMALL | {"iterations": 0, "population": 4}
    search_longrope(run, 2.0, **few)
    search_longrope(run, 4.0, **few)
    assert state(run, 2)["settings"]["length"] == 32
    assert run.part("longrope", "-2x") == state(run, 2)
    assert run.part("longrope", "-8x") is None


def test_other_settings_and_other_candidates_are_not_mixed_in(run: Run) -> None:
    few = SMALL | {"iterations": 0}
    search_longrope(run, 4.0, **few)
    with pytest.raises(
        RunError, match=r"longrope-4x.json is of a search with other settings \(seed 0\)"
    ):
        search_longrope(run, 4.0, **(few | {"seed": 3}))
    path = run.directory / "longrope-4x.json"
    changed = state(run)
    changed["history"][5]["factors"][0] = 1.5
    path.write_text(json.dumps(changed))
    with pytest.raises(RunError, match="candidate 5 is not the one"):
        search_longrope(run, 4.0, **few)
    path.write_text("{")
    with pytest.raises(RunError, match="damaged record"):
        search_longrope(run, 4.0, **few)


def test_only_validation_text_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    losses = Scorer.losses

    def looking(self: Scorer, length: int) -> Any:
        seen.append(self.split)
        return losses(self, length)

    monkeypatch.setattr(Scorer, "losses", looking)
    search_longrope(run, 4.0, **(SMALL | {"iterations": 0}))
    written = text(900, 2)  # what write_corpus puts into validation.txt
    data = prepare(run.recipe.corpus, run.recipe.vocab_size, run.recipe.tokenizer)
    tokenizer = data.load_tokenizer()
    for split in seen:
        read = tokenizer.decode(split.tokens[:-1].tolist())
        assert read.strip() == written.strip()


def test_the_encoding_that_is_searched_for_may_have_more_parts(run: Run) -> None:
    few = SMALL | {"iterations": 0, "population": 4}
    found = search_longrope(run, 4.0, spec="longrope+resonance", **few)
    assert len(found) == 16
    assert state(run)["settings"]["pe"] == "longrope+resonance"


def test_a_search_changes_no_model_but_its_own(run: Run) -> None:
    model = load_model(run)
    data = prepare(run.recipe.corpus, run.recipe.vocab_size, run.recipe.tokenizer)
    settings = {"pe": "longrope", "factor": 4.0, "magnitude": "su", "windows": 4}
    fitness = Fitness.of(run.recipe, extended(model, settings), data, settings)
    first, second, third = (fitness.nll((f,) * 16) for f in (4.0, 1.0, 4.0))
    assert first == third != second
    assert not [m for m in model.modules() if isinstance(m, LongRoPE)]


@pytest.mark.parametrize(
    ("factor", "options", "message"),
    [
        (1.0, {}, "factor: expected a finite number above 1, got 1.0"),
        (4.0, {"population": 3}, "population: expected a whole number of at least 4, got 3"),
        (4.0, {"population": "many"}, "population: expected .* at least 4, got 'many'"),
        (4.0, {"iterations": -1}, "iterations: expected a whole number of at least 0, got -1"),
        (4.0, {"windows": 1.5}, "windows: expected a whole number of at least 1, got 1.5"),
        (4.0, {"seed": "q"}, "seed: expected a whole number from 0 to .*, got 'q'"),
        (4.0, {"spec": "yarn"}, "'yarn' has no longrope in it"),
        (4.0, {"spec": "longrope+pope"}, "longrope changes RoPE's frequencies, and pope"),
        (4.0, {"magnitude": "us"}, "magnitude 'us'"),
        (400.0, {}, "0 evaluation windows of 6,400 tokens"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    run: Run, factor: float, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        search_longrope(run, factor, **(SMALL | options))
    assert not list(run.directory.glob("longrope*"))


def test_a_loss_that_is_no_number_is_never_the_best(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Fitness.nll

    def nll(self: Fitness, factors: tuple[float, ...]) -> float:
        return math.nan if factors == (4.0,) * 16 else inner(self, factors)

    monkeypatch.setattr(Fitness, "nll", nll)
    search_longrope(run, 4.0, **SMALL)
    pi, second = state(run)["history"][:2]
    assert (pi["origin"], pi["nll"], pi["perplexity"]) == ("pi", None, None)
    assert state(run)["best"]["nll"] <= second["nll"]
    assert len(state(run)["history"]) == 16


def test_it_is_a_public_name() -> None:
    assert pe.search_longrope is longrope_search.search_longrope


# LongRoPE2: by needles, and bounded by the critical frequency


def test_the_critical_frequency_is_that_of_the_authors_script() -> None:
    """``math.ceil(math.log(original_length / 2 / math.pi, rope_base) * head_size / 2) - 1``"""
    for dim, theta, length in ((128, 500_000.0, 8192), (96, 10_000.0, 2048), (64, 10_000.0, 1024)):
        theirs = math.ceil(math.log(length / 2 / math.pi, theta) * dim / 2) - 1
        assert critical_frequency(dim, theta, length) == theirs
        turns = base_frequencies(dim, theta).inv_freq * length / (2 * math.pi)
        assert turns[theirs] >= 1 > turns[theirs + 1]
    assert critical_frequency(128, 500_000.0, 8192) == 34
    assert critical_frequency(8, 10_000.0, 2) == 1
    assert critical_frequency(4, 10_000.0, 10**9) == 1


def test_bounded_seeds_are_the_authors() -> None:
    """Their ``ntk_init`` of genetic_base.py for 64 times, from 64 on in steps of 4."""
    spectrum = base_frequencies(96, 10_000.0)
    yarn, *made = bounded_seeds(spectrum, 64.0, 2048, 27)
    for step, seed in enumerate(made):
        scale = 64 + 4 * step
        extended = scale ** (48 / 27)
        below = [extended ** (i / 48) for i in range(27)]
        assert seed.factors[:27] == pytest.approx(below)
        assert seed.factors[27:] == pytest.approx([scale + scale / 640 * i for i in range(21)])
    assert len(made) == 8
    assert made[0].factors[28] == pytest.approx(64.1)
    assert yarn.factors[27:] == (64.0,) * 21
    assert all(rises(c.factors) for c in (yarn, *made))


@pytest.mark.parametrize(("dim", "length"), [(8, 64), (32, 256), (128, 4096)])
def test_no_frequency_from_the_critical_one_on_is_slowed_by_less(dim: int, length: int) -> None:
    critical = critical_frequency(dim, 10_000.0, length)
    first = bounded_seeds(base_frequencies(dim, 10_000.0), 4.0, length, critical)
    rules, known = Evolution(first, 4.0, 16, seed=1, critical=critical), []
    for number in range(5):
        for c in rules.generation(number, known):
            assert rises(c.factors)
            assert c.factors[critical] >= 4.0
            assert c.factors[0] >= 1.0
            assert c.factors[-1] <= 8.0
            known.append(Scored(c.factors, sum(c.factors)))
    assert min(k.factors[0] for k in known) < 4.0
    assert len({k.factors for k in known}) == len(known) > 16


NEEDLES: dict[str, Any] = {
    "iterations": 1, "population": 9, "windows": 3, "needles": "multikey", "quiet": True,
}  # fmt: skip


def test_a_search_by_needles_measures_answers_and_has_a_file_of_its_own(run: Run) -> None:
    """Of 16 times the training length, where the task fits."""
    found = search_longrope(run, 16.0, **NEEDLES)
    record = json.loads((run.directory / "longrope-16x-multikey.json").read_text())
    settings, history = record["settings"], record["history"]
    assert (settings["needles"], settings["critical"]) == ("multikey", None)
    assert (settings["length"], settings["windows_found"]) == (256, 3)
    assert found == record["best"]["factors"]
    assert [e["origin"] for e in history[:3]] == ["yarn", "ntk to 16", "ntk to 17"]
    critical = critical_frequency(32, 10_000.0, 16)
    assert all(e["factors"][critical] >= 16.0 for e in history)
    assert run.part("longrope", "-16x") is None, "that is the search by text"
    # The loss of the digits by hand, from the model's logits.
    data = prepare(run.recipe.corpus, run.recipe.vocab_size, run.recipe.tokenizer)
    options = {"factor": 16.0, "long_factor": history[1]["factors"]}
    model = pe.convert(load_model(run), "longrope", **options).eval()
    split = Scorer(model, data, run.recipe, [256], split="validation", windows=3).split
    losses = []
    hidden = NeedleText("multikey", data.tokenizer)
    for prompt in prompts(hidden, split, 256, 3, seed=longrope_search.NEEDLE_SEED):
        assert hidden.digit_ids[prompt.digits].tolist() == prompt.ids[prompt.places].tolist()
        with torch.no_grad():
            logits = model(torch.from_numpy(prompt.ids)[None], use_cache=False).logits[0]
        for place in prompt.places:
            losses.append(-logits.log_softmax(-1)[place - 1, prompt.ids[place]].item())
    assert sum(losses) / len(losses) == pytest.approx(history[1]["nll"], abs=1e-5)


def test_numbers_of_the_search_are_not_those_of_the_evaluation(run: Run) -> None:
    data = prepare(run.recipe.corpus, run.recipe.vocab_size, run.recipe.tokenizer)
    hidden = NeedleText("multikey", data.tokenizer)
    asked, searched = (
        prompts(hidden, data.test, 256, 4, seed=seed)
        for seed in (None, longrope_search.NEEDLE_SEED)
    )
    assert all((a.digits != s.digits).any() for a, s in zip(asked, searched, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critical": 3}, "critical 3: has no effect without needles"),
        (NEEDLES | {"population": 8}, "population 8: expected at least 9, the seeds of a search"),
        (NEEDLES | {"critical": 16}, "critical 16: expected one of the frequencies 1 to 15"),
        (NEEDLES | {"critical": 0}, "critical 0: expected one of the frequencies 1 to 15"),
        (NEEDLES | {"needles": "haystack"}, "unknown retrieval task 'haystack'"),
    ],
)
def test_a_search_by_needles_that_cannot_be_done_is_refused(
    run: Run, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        search_longrope(run, 16.0, **(SMALL | options))
    assert not list(run.directory.glob("longrope*"))


def test_another_critical_frequency_is_another_search(run: Run) -> None:
    few = NEEDLES | {"iterations": 0}
    search_longrope(run, 16.0, critical=4, **few)
    with pytest.raises(RunError, match=r"multikey.json is of a search with other .*critical 4"):
        search_longrope(run, 16.0, critical=3, **few)
