"""What the pages on dropping and extending show, run; what they state in numbers, computed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from model_tools import LENGTH, small

import pe
from pe.encodings import FrequencyTransform, list_encodings, lookup
from pe.notebooks.parameters import parameters
from pe.recipes.named import recipe

ROOT = Path(__file__).parents[1]
from pictures import dropping, extension  # noqa: E402

PAGES = {name: (ROOT / "book" / f"{name}.md").read_text() for name in ("dropping", "extension")}
RUN = "rope-s0-507d441e"


def run_snippets(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run all Python of a page in order, in a folder with a trained run as the page names it."""
    monkeypatch.chdir(tmp_path)
    small("rope").save_pretrained(tmp_path / "runs" / "local" / RUN / "checkpoint")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGES[page], re.M | re.S):
        exec(block, names)
    return names


def test_the_snippets_on_dropping_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_snippets("dropping", tmp_path, monkeypatch)
    assert names["dropped"].config.pe == "nope"
    assert names["model"].config.pe == "rope"
    assert names["variant"].config.joint_norm == "qk"
    assert names["variant"].model.layers[0].attention.scale == 0.125


def test_the_snippets_on_extending_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_snippets("extension", tmp_path, monkeypatch)
    for name, model in names["extended"].items():
        assert model.config.pe == name
        assert model.model.encodings[0].transforms
    assert "'yarn' changes the frequencies of 'rope'" in capsys.readouterr().out


def test_every_frequency_transform_is_named() -> None:
    for name in list_encodings():
        if issubclass(lookup(name), FrequencyTransform):
            assert re.search(rf"`{name}[`+ <]", PAGES["extension"]), name


@pytest.mark.parametrize("page", PAGES)
def test_commands_name_parameters_that_exist(page: str) -> None:
    commands = re.findall(
        r"papermill notebooks/(\w+)\.ipynb(.*?)(?:\n(?! {4})|#|`)", PAGES[page], re.S
    )
    assert commands
    for kind, words in commands:
        for name in re.findall(r"-p (\w+)", words):
            assert name in parameters(kind), (kind, name)
        for name in re.findall(r'-y "(\w+):', words):
            assert name in parameters(kind), (kind, name)


def test_the_demo_run_is_called_as_the_pages_call_it() -> None:
    assert recipe("demo", pe="rope", keep_steps=[300]).run_name() == RUN
    paper = recipe("paper")
    assert (paper.steps, paper.learning_rate) == (16000, 3e-4)
    assert (paper.batch_size, paper.context_length) == (64, 1024)


def test_a_dropped_logit_is_flat_and_rope_leaves_what_it_knew() -> None:
    flat = dropping.logits_after("nope", 1024)
    torch.testing.assert_close(flat, flat[:1].expand_as(flat))
    rope = dropping.logits_after("rope", 1024)
    wider = dropping.logits_after("yarn", 1024, factor=1.0)
    torch.testing.assert_close(rope, wider)
    assert float(rope[0]) == pytest.approx(float(flat[0]))  # no turn between equal positions


def test_the_temperature_keeps_the_weight_as_the_formula_says() -> None:
    lengths = dropping.TRAINED * 2 ** torch.arange(5)
    c = dropping.best_weight(dropping.WANTED, dropping.SPREAD)
    assert c == 1 / 8
    none, fitted, double = (dropping.wanted_weight(lengths, x) for x in (0.0, c, 2 * c))
    assert none[0] == fitted[0] == double[0]
    assert [round(float(none[i]), 2) for i in (0, 4)] == [0.95, 0.55]
    assert (fitted - fitted[0]).abs().max() < 0.005
    assert (double.diff() > 0).all()
    odds = torch.exp(torch.tensor(dropping.WANTED - dropping.SPREAD**2 / 2)) / lengths
    torch.testing.assert_close(none.float(), (odds / (1 + odds)).float(), atol=5e-3, rtol=0)


def test_the_models_temperature_is_that_factor() -> None:
    warm = pe.convert(small("nope"), "nope", length_temperature=0.125)
    seen = torch.tensor([1, LENGTH, 2 * LENGTH, 16 * LENGTH])
    found = warm.model._temperature(seen)
    assert found is not None
    expected = [1, 1, 1 + 0.125 * torch.tensor(2.0).log(), 1 + 0.125 * torch.tensor(16.0).log()]
    torch.testing.assert_close(found.flatten(), torch.tensor(expected))


def test_the_picture_of_reach_shows_what_the_page_says() -> None:
    reach = {name: extension.reach(name) for name in extension.SHOWN}
    assert torch.all(reach["rope"] == 4)
    torch.testing.assert_close(reach["pi"], torch.ones(64, dtype=torch.float64))
    for name in ("ntk", "yarn", "llama3"):
        assert reach[name][0] == 4
        assert float(reach[name][-1]) == pytest.approx(1)
    slow = extension.turns_in_training() < 1
    assert int(slow.nonzero()[0]) == 46
    for name in ("yarn", "llama3"):
        torch.testing.assert_close(reach[name][slow], reach["pi"][slow])
    assert reach["dynamic_ntk"][-1] == pytest.approx(4 / 13)


def test_the_factor_of_dynamic_ntk_is_a_slope() -> None:
    enc = pe.encoding("dynamic_ntk", head_dim=64, num_heads=1, original_length=256, factor=1.0)
    (transform,) = enc.transforms  # type: ignore[misc]
    assert float(transform.alpha(torch.tensor(1024))) == 4
    enc = pe.encoding("dynamic_ntk", head_dim=64, num_heads=1, original_length=256, factor=4.0)
    (transform,) = enc.transforms  # type: ignore[misc]
    assert float(transform.alpha(torch.tensor(1024))) == 13
