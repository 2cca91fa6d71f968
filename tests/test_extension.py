"""Zero-shot extension: each cell is the converted model, and nothing is measured twice."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from tiny_training import tiny, write_corpus

import pe
from pe.encodings.core.extension import Rotary, raised_base, with_raised_base
from pe.encodings.core.frequencies import base_frequencies
from pe.evaluation.evaluate import evaluate
from pe.evaluation.extension import extend
from pe.results import extensions, markdown, rows
from pe.results.difference import difference
from pe.results.measure import cut, measure
from pe.runs import Run, RunError


@pytest.fixture
def run(tmp_path: Path, own_runs: Path) -> Run:
    recipe = tiny(write_corpus(tmp_path / "corpus"), steps=4, warmup_steps=1)
    return pe.train(Run(own_runs / "local" / recipe.run_name(), recipe=recipe), quiet=True)


def test_cells_are_the_conversions_by_name(run: Run) -> None:
    own = evaluate(run, quiet=True)["perplexity"]
    half = "yarn, rope"  # every second layer
    found = extend(run, ["pi", "yarn", "resonance", half], [1.0, 4.0], quiet=True)["cells"]
    names = {"pi@1", "pi@4", "yarn@1", "yarn@4", "resonance@1", f"{half}@1", f"{half}@4"}
    assert set(found) == names
    for name in ("pi@1", "yarn@1", f"{half}@1"):  # factor 1 changes nothing
        assert found[name]["perplexity"] == own
    for name in ("pi@4", "yarn@4", "resonance@1", f"{half}@4"):
        assert found[name]["perplexity"]["64"]["nll"] != own["64"]["nll"]
    assert found["pi@4"]["options"]["factor"] == 4.0
    assert run.part("extension") is not None


def test_only_missing_cells_are_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = extend(run, ["pi"], [2.0], quiet=True)
    from pe.evaluation import extension

    converted = []

    def counting(model: object, spec: str, **options: object) -> object:
        converted.append((spec, options["factor"]))
        return pe.convert(model, spec, **options)  # type: ignore[type-var,arg-type]

    monkeypatch.setattr(extension, "convert", counting)
    second = extend(run, ["pi"], [2.0, 4.0], quiet=True)
    assert converted == [("pi", 4.0)]
    assert second["cells"]["pi@2"] == first["cells"]["pi@2"]


def test_a_record_of_other_lengths_is_not_mixed_with_new_cells(run: Run) -> None:
    extend(run, ["pi"], [2.0], quiet=True)
    path = run.directory / "extension.json"
    path.write_text(path.read_text().replace('"target_tokens": 8', '"target_tokens": 4'))
    with pytest.raises(RunError, match="has target_tokens 4 and the recipe asks for 8; remove"):
        extend(run, ["pi"], [2.0], quiet=True)


def test_what_names_no_cell_is_refused(run: Run) -> None:
    wrong: list[tuple[Any, Any, str]] = [
        ("yarn", [2], r"methods: expected a list, got 'yarn'; write \['yarn'\]"),
        (["yarn"], 2, r"factors: expected a list, got 2; write \[2\]"),
        (["yarn"], ["2"], "factors: expected a finite number or 'length', got '2'"),
        (["yarn"], [math.inf], "factors: expected a finite number or 'length', got inf"),
        (["yarn"], [], "factors: yarn needs at least one"),
    ]
    for methods, factors, message in wrong:
        with pytest.raises(ValueError, match=message):
            extend(run, methods, factors, quiet=True)
    with pytest.raises(ValueError, match="factor: expected a finite number above 1, got '2'"):
        pe.search_longrope(run, "2", quiet=True)  # type: ignore[arg-type]


def test_cells_of_other_windows_are_not_mixed_with_new_ones(run: Run) -> None:
    extend(run, ["pi"], [2.0], quiet=True)
    other = dataclasses.replace(run.recipe, evaluation_windows=2)
    assert other.config_hash() == run.recipe.config_hash()
    with pytest.raises(RunError, match="has windows . and the recipe asks for 2"):
        extend(Run(run.directory, recipe=other), ["yarn"], [2.0], quiet=True)


@pytest.fixture
def asked(tmp_path: Path, own_runs: Path) -> Run:
    recipe = tiny(
        write_corpus(tmp_path / "corpus", 4000, 1300), steps=4, warmup_steps=1, context_length=256,
        evaluation_lengths=(256, 512), retrieval_tasks=("multikey",), retrieval_samples=1,
    )  # fmt: skip
    run = pe.train(Run(own_runs / "local" / recipe.run_name(), recipe=recipe), quiet=True)
    pe.evaluate(run, quiet=True)
    return run


def test_each_length_is_read_with_its_own_factor_and_compared_prompt_by_prompt(asked: Run) -> None:
    own = asked.evaluation()
    assert own is not None
    found = extend(asked, ["yarn", "abf", "dynamic_yarn"], [2.0, "length"], quiet=True)["cells"]
    assert sorted(found) == ["abf@2", "abf@length", "dynamic_yarn@1", "yarn@2", "yarn@length"]
    for method in ("yarn", "abf"):
        fixed, each = found[f"{method}@2"], found[f"{method}@length"]
        assert each["by_length"] == {"512": fixed["options"]}
        for name in ("perplexity", "needles"):
            there = [c[name] if name == "perplexity" else c[name]["tasks"]["multikey"]
                     for c in (own, fixed, each)]  # fmt: skip
            assert there[2] == {"256": there[0]["256"], "512": there[1]["512"]}
        assert fixed["perplexity"]["256"] != own["perplexity"]["256"]
    dynamic = found["dynamic_yarn@1"]
    assert dynamic["options"] == {"dynamic": True}
    assert dynamic["perplexity"]["512"]["nll"] == pytest.approx(
        found["yarn@2"]["perplexity"]["512"]["nll"], abs=1e-5
    )
    assert dynamic["perplexity"]["256"] == own["perplexity"]["256"]
    assert len(dynamic["needles"]["tasks"]["multikey"]["512"]["prompts"]) == 11
    assert found["abf@2"]["pe"] == "rope"
    (base,) = rows.grouped([asked])
    record = asked.part("extension")
    compared = {row.title: row for row in extensions.rows(base, {asked.name: record})}
    assert {"RoPE", "YaRN, factor = length", "Dynamic YaRN"} <= set(compared)
    both = [compared[title] for title in ("RoPE", "YaRN, factor = length")]
    assert difference(both[1], both[0], "multikey@2x").over == "prompts"
    assert markdown.table(both, ["multikey"]).count("cut: ") == 2
    assert cut(both[1], "ppl@2x") == measure(both[0], "ppl@1x").value
    assert found["abf@2"]["options"]["theta"] > 10_000


def test_a_larger_base_leaves_no_frequency_with_a_new_angle() -> None:
    base = raised_base(Rotary(1e4, 64, 1024), 4.0)
    assert base is not None
    before, after = (base_frequencies(64, theta).inv_freq for theta in (1e4, base))
    short = before * 1024 < 2 * math.pi
    assert bool(short.any() and not short.all())
    assert bool((after[short] * 4096 <= before[short] * 1024 * (1 + 1e-12)).all())
    assert raised_base(Rotary(1e4, 64, 4), 4.0) is None  # not even the first completed a turn
    with pytest.raises(ValueError, match="no larger base follows"):
        with_raised_base(Rotary(1e4, 64, 4), 4.0)


def test_a_model_without_rope_is_not_extended(tmp_path: Path, own_runs: Path) -> None:
    recipe = tiny(write_corpus(tmp_path / "corpus"), pe="alibi", steps=2, warmup_steps=1)
    run = pe.train(Run(own_runs / "local" / recipe.run_name(), recipe=recipe), quiet=True)
    with pytest.raises(ValueError, match="'abf' changes the frequencies of RoPE.*'alibi'"):
        extend(run, ["abf"], [2.0], quiet=True)
