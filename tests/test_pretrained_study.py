"""Studies of a pretrained model: which trial begins when, on which GPU, with how many steps."""

from __future__ import annotations

import functools
import math
import shlex
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from transformers import LlamaConfig

from pe.pretrained import study as studies


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a model that has no weights: nothing here reads any."""
    LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128,
    ).save_pretrained(tmp_path / "tiny")  # fmt: skip
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "runs"))
    return str(tmp_path / "tiny")


class Starts:
    """Begins trials that end at once without a record, and notes their numbers and steps."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []

    def __call__(self, number: int, steps: int, gpu: str | None) -> Any:
        self.begun.append((number, steps))
        return self

    def wait(self) -> int:
        return 1


def test_trainings_get_a_card_each_and_what_would_end_too_late_is_not_begun(tiny: str) -> None:
    study = studies.load_study("smollm2", mini=True)
    assert studies.steps_in_time(study, 1.0, 8.5, cards=1) == 4
    assert studies.steps_in_time(study, 1.0, 8.5, cards=2) == 4
    assert studies.steps_in_time(study, 1.0, 7.0, cards=1) == 2
    assert studies.steps_in_time(study, 1.0, 1.0, cards=1) == 2, "the least there is"
    start, lines = Starts(), []
    few = study.model_copy(update={"runs": study.runs[:3]})
    failed = studies.carry_out(
        few,
        tiny,
        start,
        gpus=["0", "1"],
        until=1e3,
        step_seconds=1.0,
        log=lines.append,
    )
    assert sorted(start.begun) == [(0, 4), (1, 4), (2, 4)]
    assert failed == 3
    assert lines[-1].endswith("the end")
    late = Starts()
    studies.carry_out(few, tiny, late, until=1e3, step_seconds=1e4, log=lines.append)
    assert [number for number, _ in late.begun] == [2], "two steps do not fit"


def test_trials_that_train_have_a_card_each_and_others_share_one(tiny: str) -> None:
    study = studies.load_study("smollm2", mini=True)
    few = study.model_copy(update={"runs": study.runs[:5]})
    at_work: dict[str, int] = {}
    most: dict[bool, int] = {}
    lock = threading.Lock()

    def start(number: int, steps: int, gpu: str | None) -> Any:
        assert gpu is not None
        with lock:
            at_work[gpu] = at_work.get(gpu, 0) + 1
            trained = study.runs[number].trained
            most[trained] = max(most.get(trained, 0), at_work[gpu])

        class Process:
            def wait(self) -> int:
                time.sleep(0.05)
                with lock:
                    at_work[gpu] -= 1
                return 1

        return Process()

    studies.carry_out(few, tiny, start, gpus=["0", "1"], places=2, log=lambda text: None)
    assert most == {True: 1, False: 2}


def test_a_gpu_without_a_training_carries_out_other_trials_meanwhile(tiny: str) -> None:
    study = studies.load_study("smollm2", mini=True)
    few = study.model_copy(update={"runs": study.runs[1:4]})
    others = threading.Semaphore(0)

    def start(number: int, steps: int, gpu: str | None) -> Any:
        class Process:
            def wait(self) -> int:
                if few.runs[number].trained:
                    assert all(others.acquire(timeout=5) for _ in few.runs[1:])
                else:
                    others.release()
                return 1

        return Process()

    lines: list[str] = []
    failed = studies.carry_out(few, tiny, start, gpus=["0", "1"], places=1, log=lines.append)
    assert failed == 3
    cards = [line[-1] for line in lines if "begin" in line]
    assert sorted(map(cards.count, "01")) == [1, 2]


def test_nothing_begins_after_an_interruption(tiny: str) -> None:
    study = studies.load_study("smollm2", mini=True)
    begun = []

    def start(number: int, steps: int, gpu: str | None) -> Any:
        begun.append(number)
        raise KeyboardInterrupt

    few = study.model_copy(update={"runs": study.runs[2:6]})
    with pytest.raises(KeyboardInterrupt):
        studies.carry_out(few, tiny, start, places=2, log=lambda text: None)
    assert len(begun) <= 2, "one in each place"


def test_steps_that_are_asked_for_are_those_of_every_training_whatever_is_on_record(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = studies.load_study("smollm2", mini=True)
    study = study.model_copy(update={"runs": study.runs[:2]})
    start = Starts()
    recorded = {
        studies.configured(study, study.runs[0], tiny, 2).directory,
        studies.configured(study, study.runs[1], tiny, 7).directory,
    }
    monkeypatch.setattr(
        "pe.pretrained.record.PretrainedRun.read",
        lambda run: {"status": "complete"} if run.directory in recorded else None,
    )
    for steps in (4, 7, 0):
        studies.carry_out(study, tiny, start, steps=steps, log=lambda text: None)
    assert start.begun == [(0, 4), (1, 4), (0, 7), (1, 2)]


def test_the_command_line_decides_on_model_and_steps_and_its_mistakes_are_one_sentence(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main: Any = functools.partial(studies.main, compile="auto", places=2, until=math.inf)
    main("smollm2", tiny, mini=True, dry_run=True, only=None, steps=3)
    first = shlex.split(capsys.readouterr().out.splitlines()[0])
    values = yaml.safe_load(first[-1])
    assert (values["model"], values["steps"]) == (tiny, 3)
    with pytest.raises(typer.Exit):
        main("smollm2", "", mini=True, dry_run=False, only=99, steps=0)
    assert "--only: expected 0 to 13, got 99" in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        main("smollm2", f"{tiny}-nowhere", mini=True)
    assert "-nowhere: no such file or folder" in capsys.readouterr().err
