"""Studies of a pretrained model: which trial begins when, on which GPU, with how many steps."""

from __future__ import annotations

import functools
import math
import re
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
from pe.runs import RunBusy


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
    main: Any = functools.partial(studies.main, places=2, until=math.inf)
    main("smollm2", tiny, mini=True, dry_run=True, only=None, steps=3)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# nope, learning_rate 0.0003, trained: not done"
    values = yaml.safe_load(shlex.split(lines[1])[-1])
    assert (values["model"], values["steps"]) == (tiny, 3)
    assert lines[-1] == "# 0 of 14 trials done"
    with pytest.raises(typer.Exit):
        main("smollm2", tiny, mini=True, compile="onn")
    assert "unknown --compile 'onn' (did you mean 'on'?)" in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        main("smollm2", f"{tiny}-nowhere", mini=True)
    assert "-nowhere: no such file or folder" in capsys.readouterr().err


STUDY = """
study: s
model: m
parameters: {corpus: stdlib, lengths: "64,128", target_tokens: 32}
training: {context_length: 64}
steps: [4, 2]
runs: [{pe: yarn, factor: 2}, {pe: nope, trained: true}]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("factor: 2", "factr: 2", r"runs[0]: unknown key 'factr' (did you mean 'factor'?)"),
        ("factor: 2", "model: m", "runs[0]: unknown key 'model'"),
        ("factor: 2", "study: t", "runs[0]: unknown key 'study'"),
        ("factor: 2", "steps: 7", "runs[0]: unknown key 'steps'"),
        ("corpus: stdlib", "steps: 7", "parameters: unknown parameter 'steps'"),
        ("corpus: stdlib", "pe: t5", "parameters: unknown parameter 'pe'"),
        ("context_length: 64", "steps: 7", "training: unknown parameter 'steps'"),
        ("[4, 2]", "[0]", "steps[0]: expected more than 0, got 0"),
        ("[4, 2]", "['4']", "steps[0]: expected a whole number, got '4'"),
        ("true", "'yes'", "runs[1].trained: expected True or False, got 'yes'"),
        ("study: s", "study: ../s", "study: study names a folder"),
        ("factor: 2", "factor: two", "runs[0], yarn: factor: expected a number, got 'two'"),
        ("factor: 2}", "factor: 2}, {pe: yarn, factor: 2.0}", "runs[1], yarn: an earlier run has"),
        ("pe: yarn", "pe: yrn", "runs[0], yrn: unknown encoding 'yrn' (did you mean 'yarn'?)"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_before_anything_begins(
    tiny: str, tmp_path: Path, old: str, new: str, message: str
) -> None:
    """`model` in a run ended in a TypeError; `steps` trained a run that shared its GPU."""
    path = tmp_path / "mine.yaml"
    path.write_text(STUDY.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        studies.planned(studies.load_study(str(path)), tiny, 2)
    assert "\n" not in str(error.value)


def test_a_trial_that_another_process_carries_out_is_skipped_and_has_not_failed(tiny: str) -> None:
    study = studies.load_study("smollm2", mini=True)
    few = study.model_copy(update={"runs": study.runs[2:4]})
    busy, lines = [RunBusy.EXIT_CODE, 1], []

    class Process:
        def wait(self) -> int:
            return busy.pop(0)

    start: Any = lambda number, steps, gpu: Process()  # noqa: E731
    assert studies.carry_out(few, tiny, start, places=1, log=lines.append) == 1
    assert "skipped yarn, factor 8, another process carries it out" in lines[2]
