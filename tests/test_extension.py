"""Zero-shot extension: each cell is the converted model, and nothing is measured twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_training import tiny, write_corpus

import pe
from pe.evaluation.evaluate import evaluate
from pe.evaluation.extension import extend
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
    with pytest.raises(RunError, match="of other lengths or targets"):
        extend(run, ["pi"], [2.0], quiet=True)
