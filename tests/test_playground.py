"""The playground's controls: a training, its stop, mistakes, and what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from notebook_tools import shown

from pe.notebooks.playground import Playground
from pe.tasks.measure.record import SIZES

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "playground.ipynb"


@pytest.fixture
def playground(own_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Playground:
    few = {"examples": 4, "validation": 4, "each_length": 2}
    monkeypatch.setitem(SIZES, "small", SIZES["small"] | few)
    made = Playground()
    values = {
        "pe": ("rope",), "steps": 2, "width": 8, "layers": 1, "heads": 2, "batch_size": 2,
        "seeds": 2,
    }  # fmt: skip
    for name, value in values.items():
        made.controls[name].value = value
    return made


def test_a_training_ends_in_tables_figures_attention_and_a_record(
    playground: Playground, own_runs: Path
) -> None:
    playground.controls["task"].value = "parity"  # short sequences
    playground.controls["others"].value = "rope+alibi"
    playground.start()
    assert playground.train.disabled
    playground.wait()
    assert "Done: 2 of 2 encodings are recorded" in playground.message.value
    assert (playground.train.disabled, playground.stop.disabled) == (False, True)
    assert "RoPE + ALiBi" in playground.table.value
    assert "chance" in playground.table.value
    assert "last bit: Yes if the last bit is 0" in playground.table.value
    for place in (playground.curves, playground.by_length, playground.by_position, playground.map):
        assert "<svg" in place.value
    first = playground.map.value
    playground.head.value = 1
    assert playground.map.value != first
    settings = json.loads(playground.configuration.value)
    assert (settings["encodings"], settings["seeds"]) == (["rope", "rope+alibi"], [0, 1])
    (folder,) = (own_runs / "local").iterdir()
    assert (folder / "task-rope+alibi.json").exists()

    playground.start()
    playground.wait()
    assert "2 of them were recorded before" in playground.message.value
    assert "train again" in playground.map.value, "weights are not kept"


def test_the_stop_button_ends_the_training(playground: Playground) -> None:
    playground.controls["steps"].value = 10**6
    playground.start()
    playground.stop.click()
    playground.wait()
    assert "Stopped" in playground.message.value
    assert all(record.status == "stopped" for record in playground.records)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", 9, "width: 9 does not divide into 2 heads"),
        ("k", 0, "k: expected 1 or more, got 0"),
        ("seeds", 0, "seeds: expected the number of models per encoding, 1 or more, got 0"),
        ("seeds", 10**9, "seeds: expected the number of models per encoding, 1,000 or fewer"),
        ("width", 2**20, "GiB of memory, and there are"),
        ("layers", 10**8, "GiB of memory, and there are"),
        ("batch_size", 10**9, "GiB of memory, and there are"),
        ("steps", 0, "steps: expected 1 or more, got 0"),
        ("others", "ropo", "unknown encoding"),
        ("learning_rates", "fast", "learning_rates: expected numbers"),
        ("pe", (), "encodings: choose at least one"),
        ("others", "rope", "pe: expected each encoding once, got rope more than once"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_nothing_starts(
    playground: Playground, own_runs: Path, name: str, value: object, message: str
) -> None:
    playground.controls[name].value = value
    playground.start()
    playground.wait()
    assert message in playground.message.value
    assert "Traceback" not in playground.message.value
    assert not (own_runs / "local").exists()


def test_a_step_that_would_take_too_long_is_refused_with_an_estimate(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe.devices.memory", lambda: 1e9)
    monkeypatch.setenv("PE_DEVICE", "cpu")
    playground.controls["width"].value = 2**16
    playground.start()
    assert "one step of 2 models would take about" in playground.message.value


def test_k_is_asked_for_where_the_task_has_it(playground: Playground) -> None:
    assert playground.controls["k"].layout.display is None
    playground.controls["task"].value = "copy"
    assert playground.controls["k"].layout.display == "none"
    assert "<b>Copy</b>: trained on lengths 2 to 20, chance" in playground.definition.value


def test_the_chosen_encodings_are_named(playground: Playground) -> None:
    playground.controls["pe"].value = ("rope", "alibi")
    assert "<b>RoPE, ALiBi</b>" in playground.chosen.value


def test_the_notebook_shows_the_controls(own_runs: Path) -> None:
    assert shown(NOTEBOOK) == "", "a widget, which has no text"
