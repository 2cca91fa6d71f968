"""``papermill notebooks/speed.ipynb``: measures what is missing, shows it, refuses mistakes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import papermill
import pytest
import yaml
from notebook_tools import shown
from speed_records import squeezed

from pe.notebooks.papermill.engine import Refused
from pe.notebooks.parameters import configure_speed
from pe.speed import rig
from pe.speed.record import TIME_UP, SpeedRun

SPEED = Path(__file__).resolve().parents[1] / "notebooks" / "speed.ipynb"
GIVEN: dict[str, Any] = {
    "name": "mine", "recipe": "demo", "encodings": "rope,alibi", "lengths": "16, 32",
    "modes": "train", "peers": "none", "tokens": 32, "repeats": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


def test_the_notebook_measures_what_is_missing_and_shows_it(
    own_runs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = configure_speed(**GIVEN)
    monkeypatch.setattr(rig("measure"), "command", lambda: None)  # as in a kernel without papermill
    begun = rig("measure").measure(run, run.settings, minutes=1e-9)
    assert {r["reason"] for r in begun["cells"]} == {TIME_UP}
    words = squeezed(shown(SPEED, **GIVEN))
    folder = own_runs / "speed" / "mine"
    assert {p.name for p in folder.iterdir()} == {"speed.json", "speed.svg"}
    record = SpeedRun(folder).read()
    assert (record["status"], len(record["sessions"])) == ("complete", 2)
    *words_of_it, line = shlex.split(record["sessions"][-1]["command"])
    assert words_of_it == ["papermill", "notebooks/speed.ipynb", "-y"]
    repeated = configure_speed(**yaml.safe_load(line))
    assert (repeated.directory, repeated.settings) == (run.directory, run.settings)
    assert not any(r["reason"] for r in record["cells"])
    assert {r["system"] for r in record["cells"]} == {"nope", "rope", "alibi"}
    assert "| cells | 6 |" in words
    assert "CPU, small: no speeds to compare with a GPU's." in words
    assert "| encoding | 16 tokens | 32 tokens |" in words
    assert "| ALiBi | " in words
    assert "No other library was measured." in words
    assert capfd.readouterr().err.splitlines()[-1].startswith("6/6 train")


def test_a_mistake_stops_the_notebook_before_a_kernel_starts(own_runs: Path) -> None:
    """In a command the engine's `Refused` is one line and exit code 2 (test_papermill_command)."""
    with pytest.raises(Refused, match=r"^unknown mode 'trian' \(did you mean 'train'\?\)"):
        papermill.execute_notebook(SPEED, None, {"modes": "trian"}, progress_bar=False)
    assert not own_runs.exists()


def test_parameters_that_fit_nothing_are_refused(own_runs: Path) -> None:
    for given, message in (
        ({"encodings": "rpoe"}, "unknown encoding 'rpoe' \\(did you mean 'rope'"),
        ({"lengths": "1k"}, "lengths: expected whole numbers with commas between, got '1k'"),
        ({"lengths": "100", "tokens": 256}, "256 tokens do not divide into windows of 100"),
        ({"name": "a/b"}, "name names a folder"),
        ({"peers": "vllm"}, "unknown peer 'vllm'"),
        ({"minutes": -1.0}, "minutes: expected more than 0, got -1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            configure_speed(**given)  # type: ignore[arg-type]
    run = configure_speed(recipe="demo", peers="none", encodings="rope")
    assert run.directory == own_runs / "speed" / "cpu-demo"
    assert run.settings is not None
    assert run.settings.systems == ["nope", "rope"]
