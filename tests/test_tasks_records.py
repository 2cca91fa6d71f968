"""Experiments on tasks: records, what follows from them, the notebook, the study."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from notebook_tools import shown

import pe
from pe._errors import PositionError
from pe.figures import svg
from pe.figures import tasks as pictures
from pe.notebooks.parameters import configure_tasks
from pe.runs import RunError
from pe.runs.models import TaskAnswers, TaskRecord
from pe.tasks import study as studies
from pe.tasks.measure import summary
from pe.tasks.measure.experiment import Stream, measure
from pe.tasks.measure.many import Many, Member
from pe.tasks.measure.record import (
    Experiment,
    Settings,
    TaskRun,
    lengths_of,
    load,
    slug,
    split_of,
    task_run,
)  # fmt: skip
from pe.tasks.study.__main__ import main as command

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "tasks.ipynb"
SMALL: dict[str, Any] = {
    "layers": 1, "width": 8, "heads": 2, "feedforward": 8, "steps": 3, "batch_size": 4,
}  # fmt: skip
EXPERIMENT = Experiment(
    task="k_back", task_options={"items": 5, "train_lengths": (6, 8), "ood_lengths": (9, 12)},
    seeds=(0, 1), learning_rates=(1e-3, 1e-1), settings=Settings(**SMALL), examples=10,
    validation=8, each_length=4,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(own_runs: Path) -> None:
    pass


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[TaskRecord]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PE_RUNS", str(tmp_path_factory.mktemp("tasks")))
        run = task_run(EXPERIMENT)
        stream = Stream(EXPERIMENT.make_task())
        return [measure(run, name, stream=stream) for name in ("rope", "learned")]


def test_a_record_holds_every_seed_at_every_rate_and_the_best_is_that_of_validation(
    records: list[TaskRecord],
) -> None:
    record = records[0]
    pairs = [(m.seed, m.learning_rate) for m in record.models]
    assert pairs == [(0, 1e-3), (0, 1e-1), (1, 1e-3), (1, 1e-1)]

    def loss(rate: float) -> float:
        return sum(m.validation.loss or 9e9 for m in summary.at_rate(record, rate))

    assert loss(record.best_rate) == min(map(loss, record.learning_rates))
    assert [len(m.losses) for m in record.models] == [3] * 4
    assert record.chance == 1 / 5
    assert record.baselines["neighbour"].keys() == {"id", "ood"}
    assert sorted(map(int, record.lengths)) == lengths_of(EXPERIMENT.make_task())
    for places in record.positions.values():
        assert places is not None
        assert [share is None for share in places.shares[0][:3]] == [True] * 3, "nothing is asked"


def test_what_an_encoding_has_no_positions_for_is_left_open(records: list[TaskRecord]) -> None:
    learned = records[1]
    assert learned.models[0].splits["id"] is not None
    assert learned.models[0].splits["ood"] is None
    assert learned.lengths["12"] is None
    assert "no such positions" in summary.table(records)
    assert summary.solved(learned, "ood") is None


def test_scores_of_the_record_are_those_of_the_models(own_runs: Path) -> None:
    kept: list[Many] = []
    record = measure(task_run(EXPERIMENT), "rope", on_trained=kept.append)
    seen = kept[0].answers("ood", 10, 2**63 + 1)
    recorded = [m.splits["ood"] for m in record.models]
    assert [a and a.tokens_right for a in recorded] == [a.score.tokens_right for a in seen]
    for one in seen:
        assert (one.right.sum(), one.asked.sum()) == (one.score.tokens_right, one.score.tokens)
    (alone,) = kept[0].only([2]).answers("id", 5)
    assert alone.score == kept[0].answers("id", 5)[2].score


def test_groups_of_models_are_what_all_are_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> list[float]:
        members = [Member(0, 1e-2), Member(1, 1e-2), Member(2, 1e-2)]
        many = Many(EXPERIMENT.make_task(), "alibi", members, EXPERIMENT.settings)
        many.step()
        return [*many.step().tolist(), *(a.loss for a in many.answers("id", 6))]

    together = losses()
    monkeypatch.setattr("pe.tasks.measure.many.ATTENTION", 1)
    assert losses() == pytest.approx(together, rel=1e-5)


def test_a_stopped_training_is_recorded_as_such_and_made_once_more(own_runs: Path) -> None:
    run = task_run(EXPERIMENT)
    record = measure(run, "nope", on_step=lambda number, losses: number == 2)
    assert (record.status, record.steps) == ("stopped", [1, 2])
    assert measure(run, "nope").status == "complete"
    before = run.file("nope").read_bytes()
    assert measure(run, "nope", on_step=lambda number, losses: True).status == "complete"
    assert run.file("nope").read_bytes() == before
    assert run.busy() is None


def test_another_source_of_the_encoding_is_not_shown_as_this_one(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = task_run(EXPERIMENT)
    measure(run, "nope")
    monkeypatch.setattr(
        "pe.encodings.core.source.source_hashes", lambda name: {"pe.encodings.nope": "0" * 16}
    )
    with pytest.raises(RunError, match=r"another source of nope \(pe.encodings.nope changed"):
        measure(run, "nope")


def test_the_table_of_all_records_and_a_damaged_one(own_runs: Path) -> None:
    own_runs.mkdir()
    assert load()["task"].empty, "without records, too, every column is there"
    run = task_run(EXPERIMENT)
    measure(run, "nope")
    table = load()
    assert len(table) == 4
    assert {"id_token", "ood_exact", "best", "validation_loss"} <= set(table.columns)
    assert pe.tasks.load().equals(table)
    run.file("nope").write_text("{}")
    with pytest.raises(RunError, match="task-nope.json"):
        load()


def test_the_name_of_an_experiment_depends_on_all_but_the_encoding() -> None:
    name = EXPERIMENT.name()
    for change in (
        {"seeds": (0, 2)},
        {"examples": 11},
        {"settings": Settings(**SMALL | {"steps": 4})},
    ):
        assert Experiment(**(dict(EXPERIMENT) | change)).name() != name
    options = EXPERIMENT.task_options | {"k": 3, "read": "copy"}
    assert EXPERIMENT.model_copy(update={"task_options": options}).name() == name, "defaults"
    assert slug("rope+alibi") == "rope+alibi"
    assert len({slug(pe) for pe in ("rope, nope", "rope; nope", "rope nope")}) == 3


def test_every_task_has_examples_at_the_lengths_that_are_scored() -> None:
    """A length that a task refuses would end a measurement after the training."""
    pairs = {"train_lengths": (32, 64), "ood_lengths": (66, 130)}
    cases: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in pe.tasks.names()]
    for name, options in [*cases, ("associative_recall", pairs), ("flip_flop", pairs)]:
        task = pe.tasks.task(name, **options)
        assert len(lengths_of(task)) >= 9 or not options
        for length in lengths_of(task):
            task.example(0, 0, split_of(task, length), length)


def test_intervals_are_over_seeds_and_one_seed_has_none() -> None:
    def value(*values: float) -> str:
        return summary.share(summary.mean(values))

    assert value(0.5) == "50.0"
    assert value(0.9, 1.0) == "95.0 (31.5–100.0)", "a share ends at 100"
    assert summary.mean([0.5, None]) is None
    assert summary.nats(None) == "–"
    answers = TaskAnswers(tokens_right=3, tokens=4, examples_right=1, examples=2, loss=None)
    assert (summary.token(answers), summary.exact(answers)) == (0.75, 0.5)


def test_figures_say_what_is_chance_and_tell_encodings_apart(records: list[TaskRecord]) -> None:
    drawn = [pictures.learning_curves(records), pictures.accuracy_by_position(records)]
    for figure in (*drawn, pictures.accuracy_by_length(records)):
        text = svg(figure)
        for word in ("RoPE", "Learned", "uniform guessing"):
            assert word in text


GIVEN: dict[str, Any] = {
    "task": "k_back", "pe": "rope, alibi", "size": "small", "study": "mine", "steps": 2, "width": 8,
    "layers": 1, "heads": 2, "batch_size": 4, "seeds": "0,1", "learning_rates": 0.01,
    "task_options": {"k": 1, "train_lengths": [4, 4], "ood_lengths": [6, 6]},
    "overrides": {"examples": 4, "validation": 4, "each_length": 2},
}  # fmt: skip


def test_the_notebook_trains_shows_and_adds_encodings_to_the_same_folder(own_runs: Path) -> None:
    page = shown(NOTEBOOK, **GIVEN)
    (folder,) = (own_runs / "mine").iterdir()
    there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    figures = {"learning.svg", "lengths.svg", "positions.svg"}
    drawn = {"attention-rope.svg", "attention-alibi.svg"}
    assert there == {"task-rope.json", "task-alibi.json", *figures, *drawn}
    assert "| ALiBi " in page
    assert "| *neighbour* " in page
    record = (folder / "task-rope.json").read_bytes()
    run = configure_tasks(**GIVEN | {"pe": "rope;nope"})
    assert run.directory == folder
    measure(run, "rope")
    assert (folder / "task-rope.json").read_bytes() == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "kback"}, r"unknown task 'kback' \(did you mean 'k_back'\?\)"),
        ({"pe": "rope,alibo"}, r"unknown encoding 'alibo' \(did you mean 'alibi'\?\)"),
        ({"pe": " "}, "pe: expected names of encodings"),
        ({"pe": "rope,rope"}, "pe: expected each encoding once, got rope more than once"),
        ({"size": "huge"}, "unknown size 'huge'"),
        ({"width": 9}, "width: 9 does not divide into 2 heads"),
        ({"seeds": "one"}, "seeds: expected whole numbers with commas between, got 'one'"),
        ({"seeds": "1,1"}, "seeds: expected different values"),
        ({"seeds": ","}, "seeds: expected at least one value"),
        ({"seeds": str(2**63)}, r"^seeds\[0\]: expected less than [^;]*$"),
        ({"learning_rates": "inf"}, r"learning_rates\[0\]: expected a number, got inf"),
        ({"overrides": {"width": 16}}, "width is given twice: 8, and 16 in overrides"),
        ({"width": None, "overrides": {"width": "8"}}, "width: expected a whole number, got '8'"),
        ({"overrides": {"warmup_steps": 2}}, "warmup_steps: 2 of 2 steps"),
        ({"overrides": {"stop_loss": float("inf")}}, "stop_loss: expected a number"),
        ({"task_options": {"train_lengths": [64, 128]}}, "ood_lengths: the split 'ood'"),
        ({"learning_rates": "-1"}, "learning_rates.*more than 0"),
        ({"task_options": {"kk": 1}}, "unknown option of the task 'k_back' 'kk'"),
        ({"overrides": {"warmup": 1}}, "unknown override 'warmup'"),
        ({"clip": 2.0}, "unknown parameter 'clip': it is one of the overrides"),
        ({"hidden_size": 8}, "unknown parameter 'hidden_size'.*; choose from"),
    ],
)
def test_a_mistake_is_one_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure_tasks(**GIVEN | change)


def test_what_is_recorded_is_shown_where_there_is_no_memory_to_train_it(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe.devices.memory", lambda: 1e-9)
    with pytest.raises(ValueError, match="a step of . models needs about 0 GiB of memory"):
        configure_tasks(**GIVEN)
    monkeypatch.setattr("pe.tasks.measure.record.TaskRun.recorded", lambda run, pe: True)
    assert configure_tasks(**GIVEN).complete


def test_what_is_done_of_a_study_is_not_done_again_and_what_would_end_late_is_not_begun(
    own_runs: Path,
) -> None:
    study = studies.load_study("core")
    assert (len(study.encodings), len(study.seeds), len(study.learning_rates)) == (14, 8, 4)
    every = studies.jobs(study)
    whole = [run for run in {job.run.name for job in every} if names(every).count((run, "fox"))]
    assert len(whole) == 10, "ten tasks have all encodings"
    assert sorted(names(studies.jobs(study, first=3))) == sorted(names(every))
    assert studies.jobs(study, first=3)[0].experiment.task == study.tasks[3].task
    mini = studies.jobs(studies.load_study("core", mini=True))[:1]
    lines: list[str] = []
    assert list(studies.carry_out(mini, lines.append, until=0)) == []
    assert names(list(studies.carry_out(mini, lines.append))) == names(mini)
    assert list(studies.carry_out(mini, lines.append)) == []
    assert "skipped, it would not end within 0 s" in lines[0]
    assert lines[1].endswith("6 steps")
    assert len(lines) == 2
    with pytest.raises(ValueError, match=r"unknown study 'cor' \(did you mean"):
        studies.load_study("cor")


def test_after_a_sweep_all_seeds_learn_at_the_rate_that_its_seeds_have_chosen(
    own_runs: Path,
) -> None:
    swept = EXPERIMENT.model_copy(update={"sweep_seeds": 1, "sweep_steps": 2})
    assert swept.models() == 4
    record = measure(task_run(swept), "rope")
    assert record.sweep is not None
    assert (record.sweep.seeds, record.sweep.steps) == ([0], 2)
    losses = {rate: answers[0].loss or 9e9 for rate, answers in record.sweep.validation.items()}
    assert f"{record.best_rate:g}" == min(losses, key=lambda rate: losses[rate])
    assert [(m.seed, m.learning_rate) for m in record.models] == [
        (seed, record.best_rate) for seed in EXPERIMENT.seeds
    ]
    assert "0.001" in summary.rates([record])
    whole = measure(task_run(EXPERIMENT), "rope")
    alone = next(m for m in whole.models if m.learning_rate == record.best_rate)
    assert alone.losses == record.models[0].losses, "a seed is the same in either"
    with pytest.raises(ValueError, match="sweep_seeds: there are 2 seeds, got 3"):
        Experiment(**EXPERIMENT.model_dump() | {"sweep_seeds": 3})


def test_training_ends_once_every_model_has_solved_the_task(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe.tasks.measure.experiment.STOP_EVERY", 2)
    settings = EXPERIMENT.settings.model_copy(update={"steps": 7, "stop_loss": 100.0})
    record = measure(task_run(EXPERIMENT.model_copy(update={"settings": settings})), "nope")
    assert (record.status, record.solved_after, record.steps) == ("complete", 2, [1, 2])
    never = settings.model_copy(update={"stop_loss": 1e-9})
    record = measure(task_run(EXPERIMENT.model_copy(update={"settings": never})), "nope")
    assert (record.solved_after, record.steps[-1]) == (None, 7)


def names(todo: list[studies.Job]) -> list[tuple[str, str]]:
    return [(job.run.name, job.pe) for job in todo]


def test_attention_maps_are_causal_rows_that_sum_to_one() -> None:
    from pe.evaluation.attention import attention_maps, entropies

    many = Many(EXPERIMENT.make_task(), "rope", [Member(0, 1e-2)], EXPERIMENT.settings)
    weights = attention_maps(many.model(0), [1, 2, 3, 4])
    assert weights.shape == (1, 2, 4, 4)
    assert weights.sum(-1).flatten().tolist() == pytest.approx([1.0] * 8)
    assert weights.triu(1).abs().sum() == 0
    spread = entropies(weights)
    assert spread.shape == (1, 2, 4)
    assert spread[..., 0].abs().max() == 0, "the first query sees one key"
    assert spread.max() <= 1.3863 + 1e-4
    with pytest.raises(ValueError, match=r"expected one sequence"):
        attention_maps(many.model(0), [])
    learned = Many(EXPERIMENT.make_task(), "learned", [Member(0, 1e-2)], EXPERIMENT.settings)
    with pytest.raises(PositionError):
        attention_maps(learned.model(0), list(range(5)) * 3)


def test_recorded_experiments_keep_their_names_when_a_task_gets_an_option() -> None:
    core = studies.load_study("core")
    names = {core.experiment(one).name() for one in core.tasks}
    assert "copy-ce9e5004" in names
    marked = Experiment(task="copy", task_options={"marked": True})
    assert marked.name() != Experiment(task="copy").name()
    assert Experiment(task="copy", task_options={"marked": False}).name() == (
        Experiment(task="copy").name()
    )


def test_commas_in_parentheses_do_not_separate_encodings() -> None:
    run = configure_tasks(**GIVEN | {"pe": "rope(theta=5e5, layout=interleaved), alibi"})
    assert run.encodings == ["rope(theta=5e5, layout=interleaved)", "alibi"]


def test_examples_are_shared_whatever_the_size_of_the_vocabulary() -> None:
    task = pe.tasks.task("k_back", items=40_000, train_lengths=(8, 8), ood_lengths=(9, 9))
    for shared, drawn in zip(Stream(task)(0, 0, 4), task.batch(0, 0, 4), strict=True):
        assert (shared == drawn).all()


def test_an_unknown_study_of_tasks_is_an_error(own_runs: Path) -> None:
    (own_runs / "mine").mkdir(parents=True)
    with pytest.raises(RunError, match=r"unknown study 'min' \(did you mean 'mine'\?\)"):
        pe.tasks.load(study="min")
    assert pe.tasks.load(study="mine").empty


def test_a_mistake_in_the_file_of_a_study_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    fields = "title: t\nstudy: s\nencodings: [rope]\nseeds: [0]\nlearning_rates: [1.0e-3]\n"
    for tasks, message in (
        ("[copy]", "tasks[0]: expected a dictionary, got 'copy'"),
        ("[{tsk: copy}]", "tasks[0]: unknown key 'tsk'"),
        ("[{task: copy}, {task: copi}]", "tasks[1]: unknown task 'copi'"),
        ("[{task: copy}, {task: copy}]", "tasks[1]: copy is there twice with the same settings"),
        ("[{task: copy, encodings: []}]", "tasks[0].encodings: expected at least 1, got []"),
        ("[{task: copy, encodings: [t5, t5]}]", "tasks[0].encodings: 't5' is there twice"),
        ("[{task: copy, sweep_steps: 0}]", "tasks[0]: sweep_steps: expected 1 or more, got 0"),
        ("", "tasks: expected a list, got None"),
        ("[{task: copy}]\nmini: 3", "mini: expected a dictionary, got 3"),
        ("[{task: copy}]\nmini: {stdy: a}", "mini: unknown key 'stdy' (did you mean 'study'?)"),
        ("[{task: copy}]\n3: 4", "unknown key 3"),
    ):
        path.write_text(f"{fields}tasks: {tasks}\n")
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{re.escape(message)}"):
            studies.load_study(str(path))
    path.write_text(f"{fields}tasks: [{{task: copy}}]\n".replace("study: s", "study: ../s"))
    with pytest.raises(ValueError, match=r"mine.yaml: study: .*not '../s'"):
        studies.load_study(str(path))


def tiny_study(folder: Path, encodings: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(
        f"study: mine\nencodings: {encodings}\nseeds: [0]\nlearning_rates: [1.0e-3]\n"
        "settings: {steps: 2, width: 6, heads: 3, feedforward: 8, batch_size: 2}\n"
        "tasks: [{task: k_back}]\nexamples: 2\nvalidation: 2\neach_length: 2\n"
        "mini: {encodings: [nope]}\n"
    )
    return str(path)


def test_a_study_checks_every_encoding_before_the_first_and_in_a_dry_run(
    own_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt option was found when its turn came, after all that was trained before it."""
    path = tiny_study(tmp_path, "[nope, partial, rop, 'xpos(bogus=1)']")
    for more in ({"dry_run": True}, {}):
        with pytest.raises(typer.Exit) as end:
            command(path, **more)
        assert end.value.exit_code == 2
        lines = capsys.readouterr().err.splitlines()
        assert [line.split(": ")[1] for line in lines] == [
            "k_back, partial", "k_back, rop", "k_back, xpos(bogus=1)"
        ]  # fmt: skip
    assert not own_runs.exists()
    assert studies.load_study(path, mini=True).study == "mine-mini"


def test_a_study_does_not_take_records_of_another_source_for_its_own(
    own_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = studies.load_study(tiny_study(tmp_path, "[nope]"))
    assert len(list(studies.carry_out(studies.jobs(study, check=True), str))) == 1
    assert studies.jobs(study, check=True)[0].done()
    changed = {"pe.encodings.nope": "0" * 16}
    monkeypatch.setattr("pe.encodings.core.source.source_hashes", lambda name: changed)
    with pytest.raises(ValueError, match=r"k_back, nope: .*another source of nope"):
        studies.jobs(study, check=True)


def test_a_study_whose_jobs_fail_goes_on_and_ends_with_status_1(
    own_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with 2, the status of wrong input."""
    path, begun = tiny_study(tmp_path, "[nope, alibi]"), []

    def measure(run: TaskRun, pe: str, **more: object) -> None:
        begun.append(pe)
        raise RuntimeError("out of memory")

    monkeypatch.setattr("pe.tasks.measure.experiment.measure", measure)
    with pytest.raises(typer.Exit) as end:
        command(path)
    assert (end.value.exit_code, begun) == (1, ["nope", "alibi"])


def test_processes_of_a_study_end_with_the_command_that_started_them(
    own_runs: Path, tmp_path: Path
) -> None:
    """They trained on after the command was killed, and nothing showed them."""
    path = Path(tiny_study(tmp_path, "[nope, alibi]"))
    path.write_text(path.read_text().replace("steps: 2", "steps: 1000000"))
    lines = ["import subprocess, sys, time", "from pe.tasks.study import spread"]
    lines += ["Popen = subprocess.Popen", "def started(*a, **k):", "    one = Popen(*a, **k)"]
    # A CUDA build of torch starts other programs when it is imported.
    lines += ["    if a[0][0] == sys.executable:", "        print(one.pid, flush=True)"]
    lines += ["    return one", "subprocess.Popen = started"]
    lines += [f"spread([{str(path)!r}], 1, 1)"]
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        while "begins at" not in parent.stdout.readline():
            assert child.is_running()
        parent.kill()
        child.wait(timeout=60)
