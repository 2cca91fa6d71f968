"""The page of the study over tasks: cells are what the records say, and missing ones say so."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytest.importorskip("sphinx")

import book_records  # noqa: E402
import book_tasks  # noqa: E402

from pe.claims import Values  # noqa: E402
from pe.figures import svg  # noqa: E402
from pe.figures.tasks import by_encoding, solved  # noqa: E402
from pe.runs.models import TaskAnswers, TaskRecord  # noqa: E402
from pe.tasks.measure import summary  # noqa: E402
from pe.tasks.study import load_study, outcome  # noqa: E402
from pe.tasks.study.outcome import Outcome  # noqa: E402


@pytest.fixture(scope="module")
def core() -> dict[str, Outcome]:
    return {one.key: one for one in book_tasks.load(ROOT)}


@pytest.fixture(scope="module")
def copied(core: dict[str, Outcome]) -> Outcome:
    """The task copy with two records."""
    one = core["copy"]
    kept = {pe: one.records[pe] for pe in ("rope", "alibi")}
    return Outcome(one.run, one.task, ["nope", "rope", "alibi"], kept)


def test_tasks_are_named_by_the_options_that_are_not_defaults(core: dict[str, Outcome]) -> None:
    assert "copy@kind=repeat" in core
    assert core["copy@kind=repeat"].title == "Copy (kind: repeat)"
    assert core["counting"].title == "Counting", "three variables are the default"
    assert core["copy"].run.name != core["copy@kind=repeat"].run.name


def test_a_cell_counts_the_seeds_that_solve_a_task_and_links_to_its_record(
    copied: Outcome,
) -> None:
    record = copied.records["alibi"]
    right = [m.splits["ood"] for m in summary.at_rate(record)]
    counted = sum(1 for a in right if a and a.tokens_right / a.tokens >= 0.95)
    links = {("copy", "alibi"): book_tasks.link(copied, "alibi", "{}")}
    lines = {line[0]: line[1] for line in book_records.lines(outcome.matrix([copied], links))}
    assert lines["NoPE"] == "not run"
    assert lines["ALiBi"] == f'<a href="tasks/{record.run}/alibi.html">8 · {counted}</a>'
    assert outcome.progress([copied]).startswith("2 of the 3 planned pairs")
    assert "8 of 8" in outcome.table(copied, {})
    assert "some seeds" not in outcome.solvers(copied, "ood")
    assert "none with RoPE" in outcome.solvers(copied, "ood")
    assert outcome.unsolved([copied]) == ""


def test_a_task_that_no_seed_solves_is_named(core: dict[str, Outcome]) -> None:
    one = core["addition"]
    nope = Outcome(one.run, one.task, one.planned, {"nope": one.records["nope"]})
    assert "Addition." in outcome.unsolved([nope])


def test_a_page_of_a_record_has_its_seeds_and_its_file(copied: Outcome) -> None:
    text = book_tasks.record_page(copied, copied.records["rope"])
    assert f"runs/tasks/{copied.run.name}/task-rope.json" in text
    assert text.count('<th scope="row">') > 20
    assert "RoPE on Copy" in text
    assert f"rm runs/tasks/{copied.run.name}/task-rope.json\npython -m pe.tasks.study core" in text


def test_pages_of_records_that_are_gone_are_removed(copied: Outcome, tmp_path: Path) -> None:
    old = tmp_path / "tasks" / "copy-00000000" / "rope.html"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    book_tasks.write_pages([copied], tmp_path)
    assert {path.name for path in tmp_path.rglob("*.html")} == {"rope.html", "alibi.html"}
    assert not old.exists()


def _changed(record: TaskRecord, **values: object) -> TaskRecord:
    return record.model_copy(update=values)


def test_doubts_are_found_in_the_records(copied: Outcome) -> None:
    record = copied.records["rope"]
    assert record.sweep is not None
    assert summary.edge(record) == ""
    assert not outcome.blind(record)
    assert summary.edge(_changed(record, best_rate=0.01)) == "highest"
    assert summary.edge(_changed(record, best_rate=3e-4)) == "lowest"
    nothing = TaskAnswers(tokens_right=1, tokens=100, examples_right=0, examples=10, loss=4.63)
    learned = {rate: [nothing, nothing] for rate in record.sweep.validation}
    unlearned = _changed(record, sweep=record.sweep.model_copy(update={"validation": learned}))
    assert outcome.blind(unlearned)
    one = Outcome(copied.run, copied.task, ["rope"], {"rope": unlearned})
    assert "No model of the sweep did better than uniform guessing" in outcome.doubts([one])
    assert "(1): Copy: RoPE." in outcome.doubts([one])


def test_the_figure_has_a_line_for_each_encoding_and_names_missing_ones(copied: Outcome) -> None:
    text = svg(by_encoding({pe: copied.records.get(pe) for pe in copied.planned}))
    lines = ("best trivial strategy, tokens", "right tokens")
    for word in ("NoPE", "RoPE", "ALiBi", "not run", *lines):
        assert f">{word}<" in text
    assert ">nothing is on record yet<" in svg(by_encoding({"nope": None}))


def test_numbers_in_prose_are_those_of_records_or_say_that_there_are_none(copied: Outcome) -> None:
    values = Values(ROOT / "runs")
    record = copied.records["alibi"]
    mean = summary.mean(summary.by_seed(record, "ood", summary.exact))
    assert mean is not None
    text = book_tasks.written("copy/alibi.ood-exact", values)
    assert text == f"{100 * mean.value:.3g}%"
    assert book_tasks.written("copy/alibi.id-solved", values) == "8 of 8"
    assert book_tasks.written("copy@items=7/alibi.id-token", values) == "(not run)"
    with pytest.raises(ValueError, match="expected TASK/ENCODING"):
        book_tasks.written("copy", values)


def test_prose_and_tables_have_the_models_of_one_study(core: dict[str, Outcome]) -> None:
    """Another study trained copying longer, and not with all encodings."""
    assert load_study(str(ROOT / book_tasks.PLAN)).study == book_tasks.STUDY
    values = Values(ROOT / "runs", book_tasks.STUDY)
    record = core["copy"].records["rope"]
    mean = summary.mean(summary.by_seed(record, "ood", summary.exact))
    assert mean is not None
    assert book_tasks.written("copy/rope.ood-exact", values) == f"{100 * mean.value:.3g}%"
    assert Values(ROOT / "runs")("tasks:copy/rope.ood-exact").where.startswith("tasks-longer/")


def test_every_task_of_the_study_is_on_the_page(core: dict[str, Outcome]) -> None:
    page = (ROOT / "book" / "tasks.md").read_text("utf-8")
    for key, one in core.items():
        assert f"```{{tasks}} {key}\n" in page
        assert f"```{{picture}} {book_tasks.picture(one)}\n" in page


def test_what_the_page_says_of_how_many_seeds_solve_a_task_is_what_the_records_show() -> None:
    values = Values(ROOT / "runs", book_tasks.STUDY)

    def solved_by(task: str, pe: str, split: str) -> int:
        text = book_tasks.written(f"{task}/{pe}.{split}-solved", values)
        count, of = text.split(" of ")
        assert of == "8"
        return int(count)

    for pe in ("alibi", "sandwich", "kerple_log", "fox"):
        assert solved_by("match", pe, "id") == 0, "do not learn this with any seed"
    for pe in ("sinusoidal", "pope"):
        assert solved_by("match", pe, "id") <= 1, "hardly learn it"
    for pe in ("rope", "nope"):
        assert solved_by("match", pe, "id") == 8, "learn it with all seeds"
    for pe in ("fire", "cope", "t5"):
        assert solved_by("match", pe, "ood") > 4, "with most seeds"
    for pe in ("t5", "kerple_log", "sandwich", "fire", "cope", "fox"):
        assert solved_by("associative_recall", pe, "ood") == 8, "all seeds look up by content"
    for pe in ("pope", "nope"):
        assert solved_by("associative_recall", pe, "id") <= 1, "hardly learn the task at all"


def test_a_method_page_has_its_tasks_beside_no_encoding_and_rope(
    core: dict[str, Outcome],
) -> None:
    text = outcome.of_encodings(list(core.values()), ["alibi"], book_tasks.BESIDE)
    heads, *lines = book_records.lines(text)
    assert heads[1:4:2] == ["ALiBi: whole answers in → out, %", "NoPE: whole answers in → out, %"]
    assert {"Copy", "Long-range match"} <= {line[0] for line in lines}
    assert outcome.of_encodings([], ["alibi"], book_tasks.BESIDE) == ""


def test_the_figure_of_all_tasks_orders_encodings_by_what_they_solve_out_of_distribution(
    core: dict[str, Outcome],
) -> None:
    some = [core["copy"], core["copy@kind=repeat"]]
    table = {pe: [one.records.get(pe) for one in some] for pe in ("fox", "rope", "alibi")}
    panels = solved([one.title for one in some], table).axes
    names = [text.get_text() for text in panels[0].get_yticklabels()]
    assert names == ["ALiBi", "FoX", "RoPE"], "of the task that all three have; ties keep the order"
    shown = [[text.get_text() for text in axes.texts] for axes in panels]
    assert shown == [["1", "–"], ["6", "–"]], "FoX has one task; all seeds and none are colours"
