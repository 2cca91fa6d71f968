"""Tables and figures by length hold rows against what costs nothing and what can be had."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import book_records
import book_site
import planned_records
import pytest
from matplotlib.figure import Figure
from study_rows import row

from pe.data.needles import NEEDLE_TASKS
from pe.figures import reach as figures_reach
from pe.figures import study as figures_study
from pe.results import intervals, markdown, quantities
from pe.results import rows as results
from pe.results.difference import difference
from pe.results.measure import cut, measure
from pe.runs import Run
from pe.study.plan import load_plan

ROOT = Path(__file__).resolve().parent.parent

pytest.importorskip("sphinx")

import book_dropping  # noqa: E402
import book_numbers  # noqa: E402
from book_studies import Studies  # noqa: E402
from book_tables import BeyondTable  # noqa: E402

FEW = ["rope", "nope", "pope", "rope@4096"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up records of all planned runs of two studies, and of the reference study."""
    folder = tmp_path_factory.mktemp("runs")
    for pe in ("nope", "rope"):
        book_records.write(folder, pe)
    for study in ("every", "dropping"):
        planned_records.carry_out(folder, study)
    return folder


@pytest.fixture(scope="module")
def studies(root: Path) -> Studies:
    return Studies.load(root, root, "demo")


def few(studies: Studies) -> list[results.Row]:
    return [studies.row("every", label) for label in FEW]


def answer(one: results.Row, length: int, prompts: str) -> results.Row:
    """The row with these hits at a length, and every prompt right at its training length."""
    evaluation = one.runs[0].evaluation()
    assert evaluation is not None
    cells = {
        str(n): {"prompts": hits, "numbers": 0.5, "digits": 0.5, "controls": None, "reason": None}
        for n, hits in ((256, "1" * len(prompts)), (length, prompts))
    }
    evaluation["needles"] = {
        "count": len(prompts), "seed": 1, "digits": 7, "tasks": {"multikey": cells},
    }  # fmt: skip
    run = one.runs[0]
    assert isinstance(run, Run)
    run.write_evaluation(evaluation)
    return one


def test_every_task_of_hidden_numbers_can_be_asked_for() -> None:
    assert set(NEEDLE_TASKS) <= set(quantities.TASKS)


def test_prompts_that_both_answered_are_compared_one_by_one(tmp_path: Path) -> None:
    first = answer(row(tmp_path, "rope"), 512, "1111111100")
    second = answer(row(tmp_path, "pope"), 512, "0000000111")
    gap = difference(first, second, "multikey@2x")
    assert gap.over == "prompts"
    assert gap.p == pytest.approx(intervals.mcnemar(7, 2))
    table = markdown.table([second], ["multikey@2x"], base=first)
    assert book_records.lines(table)[1][2] == "−50 points<br>p = 0.18"


def test_a_difference_to_a_row_without_a_value_is_a_dash(tmp_path: Path) -> None:
    runs = [book_records.write(tmp_path, pe, study="made-up") for pe in ("rope", "learned")]
    rope, learned = results.rows("no-such-study", runs)[::-1]
    assert learned.label == "learned"
    lines = book_records.lines(markdown.table([rope, learned], ["ppl"], base=rope))
    assert lines[1][2] != "–"
    assert lines[1][3:] == ["–", "–", "–"]


def test_a_share_is_held_against_the_same_model_reading_the_last_part_alone(
    tmp_path: Path,
) -> None:
    one = answer(row(tmp_path, "rope"), 1024, "1" * 10 + "0" * 90)
    depths = NEEDLE_TASKS["multikey"].earliest(1, 100)
    assert depths == [(i + 0.5) / 100 for i in range(100)], "one number is asked for"
    assert cut(one, "multikey@4x") == 0.25
    assert cut(one, "multikey@1x") == 1.0
    assert cut(one, "ppl@4x") == measure(one, "ppl@1x").value
    assert cut(one, "ppl@0.5x") is None
    assert cut(one, "multikey@8x") is None, "not evaluated"
    lines = book_records.lines(markdown.table([one], ["multikey@1x", "multikey@4x"]))
    assert lines[1][2:] == ["100%<br>(96–100)", "10%<br>(6–17)<br>cut: 25%"]


def test_of_several_numbers_all_must_lie_in_the_last_part() -> None:
    for task in ("multivalue", "multiquery"):
        depths = NEEDLE_TASKS[task].earliest(1, 2000)
        share = sum(depth >= 0.5 for depth in depths) / len(depths)
        assert share == pytest.approx(0.5**4, abs=0.015)


def test_a_ceiling_is_known_by_its_windows_and_stands_at_the_same_tokens(studies: Studies) -> None:
    rows = few(studies)
    (ceiling,) = results.ceilings(rows)
    assert (ceiling.label, ceiling.title) == ("rope@4096", "RoPE, trained on 4,096 tokens")
    assert [r.title for r in rows][:3] == ["RoPE", "NoPE", "PoPE"], "nothing has to tell them apart"
    assert results.ceilings(rows[:3]) == []
    assert results.ceilings(rows[1:]) == [], "its twin is not there"
    heads, *lines = book_records.lines(markdown.table(rows, ["ppl"]))
    assert heads[2:] == ["1×", "2×", "4×", "8×", "16×"]
    assert [line[0] for line in lines[-2:]] == [
        "RoPE, cut to the training length", "RoPE, trained on 4,096 tokens",
    ]  # fmt: skip
    known = ceiling.runs[0].evaluation()
    assert known is not None
    assert float(lines[-1][4]) == pytest.approx(known["perplexity"]["4096"]["value"], rel=0.005)
    gap = difference(ceiling, rows[0], "ppl@4x")
    assert gap.value < 0
    assert gap.over == "windows"
    assert gap.interval is not None
    assert gap.interval.n == 8, "the windows of 4,096 tokens of both"


def labelled(figure: Figure) -> list[set[str]]:
    return [{str(line.get_label()) for line in axes.lines} for axes in figure.axes]


BASELINES = {"cut to the training length", "RoPE, trained on 4,096 tokens"}


def test_figures_by_length_have_their_baselines(studies: Studies) -> None:
    rows = few(studies)
    near = measure(rows[0], "ppl@1x").value
    for figure in (figures_study.perplexity(rows), figures_study.answered(rows, "multikey")):
        (found,) = labelled(figure)
        assert found >= BASELINES | {"RoPE", "NoPE", "PoPE"}
        texts = {text.get_text() for text in figure.legends[0].get_texts()}
        assert texts >= BASELINES
    lines = {str(line.get_label()): line for line in figures_study.perplexity(rows).axes[0].lines}
    assert set(lines["cut to the training length"].get_ydata()) == {near}
    figure = figures_study.by_position(rows)
    assert labelled(figure)[0] >= {"cut to the training length"}
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= BASELINES
    places = dict.fromkeys(FEW, "none")
    found, _ = labelled(figures_reach.reach(rows, places))
    assert found >= {"RoPE, cut to the training length", "RoPE, trained on 4,096 tokens"}


def test_guessing_is_drawn_where_a_row_gets_there_and_nowhere_else(tmp_path: Path) -> None:
    runs = [book_records.write(tmp_path, pe, study="made-up") for pe in ("pope", "rope")]
    pope = results.rows("no-such-study", runs[:1])
    for draw in (figures_study.perplexity, figures_study.by_position):
        assert "uniform guessing" not in labelled(draw(pope))[0]
        both = draw(results.rows("no-such-study", runs))
        assert "uniform guessing" in labelled(both)[0], "2,100 of a vocabulary of 512"


def test_many_rows_have_a_panel_each(studies: Studies) -> None:
    rows = list(studies.rows("every").values())
    figure = figures_study.perplexity(rows, tempered=False)
    assert [axes.get_title() for axes in figure.axes][:3] == ["RoPE", "NoPE", "PoPE"]
    assert len(figure.axes) == len(rows) - 1, "the ceiling is in all of them"
    assert all(found >= BASELINES for found in labelled(figure))


def test_what_is_found_stands_beside_what_is_read_and_what_cutting_would_find(
    studies: Studies,
) -> None:
    rows = few(studies)
    figure = figures_reach.reach(rows, dict.fromkeys([row.label for row in rows], "logits"))
    read, found = figure.axes
    assert "perplexity" in read.get_xlabel()
    names = [label.get_text() for label in read.get_yticklabels()]
    assert names[-1] == "RoPE, cut"
    assert sorted(names) == ["NoPE", "PoPE", "RoPE", "RoPE, cut"]
    cells = [text.get_text() for text in found.texts]
    assert len(cells) == len(names) * 5, "five lengths"
    place = names.index("RoPE")
    for own, shown in ((place, "multikey"), (len(names) - 1, "cut.multikey")):
        value = book_numbers.look_up(studies, f"every/rope.{shown}@4x : .0%")
        assert f"{cells[own * 5 + 2]}%" == value


def test_dropped_models_stand_beside_kept_ones_in_one_picture(studies: Studies) -> None:
    ((runs, draw),) = book_dropping.figures_of(studies).values()
    assert len(runs) == len(studies.rows("dropping"))
    *names, cut = [label.get_text() for label in draw().axes[0].get_yticklabels()]
    assert cut == "kept, 0.003, cut"
    assert len(set(names)) == len(runs)
    assert {"kept, 0.003", "dropped, 0.01, norm, θ = 1 M", "kept, then YaRN × 4"} <= set(names)


def test_dropped_kept_and_scaled_models_are_told_by_their_recipes(studies: Studies) -> None:
    rows = list(studies.rows("dropping").values())
    known = {f"{run.study}/{run.name}": run for run in studies.complete()}
    found = {one.row.label: one for one in book_dropping.treated(rows, known)}
    assert (found["dropped@3e-3"].kind, found["dropped@3e-3"].theta) == ("dropped", 10_000)
    assert (found["1e6-kept@1e-3"].kind, found["1e6-kept@1e-3"].theta) == ("kept", 1e6)
    assert found["1e6-dropped@1e-2,norm"].theta == 1e6, "the base of the run that it began with"
    assert found["yarn-4x"].title == "kept, then YaRN × 4"
    assert found["nope"].title == "NoPE from the first step"
    assert found["nope"].theta is None
    best = found["1e6-dropped@3e-3"].control
    assert best is not None
    assert best.label == "1e6-kept@3e-3", "the lower loss of two rates"
    titles = [one.row.title for one in found.values()]
    assert len(set(titles)) == len(titles)


def test_the_table_of_dropping_has_ratios_and_the_fitted_temperature(studies: Studies) -> None:
    rows = list(studies.rows("dropping").values())
    known = {f"{run.study}/{run.name}": run for run in studies.complete()}
    text = book_dropping.table(book_dropping.treated(rows, known))
    heads, *lines = book_records.lines(text)
    assert len(lines) == len(rows) + 2, "each base has a line that reads the last part alone"
    found = [dict(zip(heads, line, strict=True)) for line in lines]
    kept = [one for one in found if one["model"] == "kept" and one["θ"] == "10,000"]
    assert [one["against kept"] == "1" for one in kept].count(True) == 1
    scaled = next(one for one in found if one["model"] == "kept, then YaRN × 2")
    assert scaled["peak rate"] == "–"
    assert re.fullmatch(r"[\d.]+<br>fitted: [\d.]+", scaled["perplexity 2×"])
    normed = next(one for one in found if one["norm"] == "qk")
    assert re.fullmatch(r"1\.\d{3}<br>\(1\.\d{3}–1\.\d{3}\)", normed["against kept"])
    last = lines[-2]
    assert last[0] == "kept, cut to the training length"
    assert last[heads.index("perplexity 2×")] == last[heads.index("perplexity 1×")]
    with pytest.raises(ValueError, match="which is not recorded"):
        book_dropping.treated(rows, {})


def test_a_dropped_run_stands_below_the_kept_run_of_the_same_restart(tmp_path: Path) -> None:
    labels = ["rope", "rope-kept-at-14", "rope-dropped-at-14", "rope-dropped-at-14@5e-4", "nope"]
    planned_records.carry_out(tmp_path, "paper", labels)
    studies = Studies.load(tmp_path, tmp_path, "paper")
    known = {f"{run.study}/{run.name}": run for run in studies.complete()}
    text = book_dropping.pairs(list(studies.rows("paper").values()), known)
    heads, *lines = book_records.lines(text)
    found = [dict(zip(heads, line, strict=True)) for line in lines]
    assert [one["model"] for one in found] == ["RoPE, kept", "RoPE, dropped", "RoPE, dropped"]
    assert [one["after step"] for one in found] == ["14,000"] * 3
    assert [one["peak rate"] for one in found] == ["0.0015", "0.0015", "0.0005"]
    kept, dropped, without_control = (one["against kept"] for one in found)
    assert (kept, without_control) == ("1", "–")
    assert re.fullmatch(r"1\.\d{3}<br>\(1\.\d{3}–1\.\d{3}\)", dropped)
    assert book_dropping.pairs([], {}) == "No restarted run is recorded yet."


def test_rows_of_two_studies_stand_in_the_table_beside_cut_texts(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = object.__new__(BeyondTable)
    book = SimpleNamespace(studies=studies, pages=lambda rows: {})
    monkeypatch.setattr(BeyondTable, "book", book)
    block.arguments = ["dropping"]
    block.options = {"beside": "every", "rows": "kept@3e-3, pope"}
    found = book_records.lines(block.text())[1:]
    titles = {studies.row(*names).title for names in (("dropping", "kept@3e-3"), ("every", "pope"))}
    assert {line[0] for line in found} == titles
    block.options["rows"] = "popee"
    with pytest.raises(ValueError, match="did you mean 'pope'"):
        block.text()


def test_perplexities_of_other_windows_are_not_compared(studies: Studies) -> None:
    kept, scaled = (studies.row("dropping", label) for label in ("kept@3e-3", "yarn-2x"))
    longer = studies.row("every", "rope")  # its longest length is another one
    with pytest.raises(ValueError, match="rope and kept@3e-3 have other windows"):
        difference(longer, kept, "ppl@1x")
    assert book_records.lines(markdown.table([longer], ["ppl@1x"], base=kept))[1][2] == "–"
    assert difference(scaled, kept, "multikey@2x").over == "prompts"
    lines = book_records.lines(markdown.table([scaled], ["ppl@1x", "multikey@1x"], base=kept))
    assert "points" in lines[1][3]


def test_controls_of_all_tasks_are_counted(studies: Studies) -> None:
    plan = [p for p in load_plan("every") if p.recipe.seed == 0]
    asked = plan[0].recipe.retrieval_samples * 11
    prompts = len(plan) * 4 * 5 * 2 * asked // 5  # tasks, lengths, controls of a fifth
    assert book_numbers.look_up(studies, "every/study.prompts") == f"{asked}"
    assert book_numbers.look_up(studies, "every/study.control_hits") == "0"
    assert book_numbers.look_up(studies, "every/study.control_prompts") == f"{prompts:,}"


def test_prose_can_name_what_a_cut_text_would_give(studies: Studies) -> None:
    assert book_numbers.look_up(studies, "every/rope.cut.multikey@2x").endswith("%")
    near = book_numbers.look_up(studies, "every/rope.ppl@1x")
    assert book_numbers.look_up(studies, "every/rope.cut.ppl@16x") == near
    with pytest.raises(ValueError, match=r"rope.cut.ppl@0.5x has no value"):
        book_numbers.look_up(studies, "every/rope.cut.ppl@0.5x")


@pytest.mark.parametrize("recorded", [False, True])
def test_the_pages_build_before_and_after_the_runs(recorded: bool, tmp_path: Path) -> None:
    tree = book_site.small_tree(tmp_path)
    (tree / "book" / "measured.md").unlink()
    stubs = ["choosing", "data", "dropping", "extended", "layers", "measurements", "paper",
             "practice", "rates", "reproduce", "rerun", "scaffold", "speed", "studies"]  # fmt: skip
    pages = ["every", "dropped", "windows"]
    labels = {
        "choosing": ["choosing-far"], "dropping": ["dropping-differences"],
        "layers": ["which-keys", "layers-presets"], "speed": ["speed-windows"],
    }  # fmt: skip
    for name in stubs:
        above = "".join(f"({label})=\n" for label in labels.get(name, []))
        (tree / "book" / f"{name}.md").write_text(f"{above}# {name}\n")
    page = (ROOT / "book" / "every.md").read_text()
    shown = sorted(set(re.findall(r"every/([\w@-]+)[.# ]", page)) - {"study"})
    said = [(ROOT / "book" / f"{name}.md").read_text() for name in pages]
    for name, text in zip(pages, said, strict=True):
        cited = re.sub(r"\{cite:t\}`[^`]*`", "the paper", text)
        (tree / "book" / f"{name}.md").write_text(cited)
    for study in ("every", "dropping", "windows", "presets", "rates"):
        (tree / "studies" / f"{study}.yaml").write_bytes(
            (ROOT / "studies" / f"{study}.yaml").read_bytes()
        )
    (tree / "book" / "index.md").write_text("# A small book\n")
    chapters = "".join(f"  - file: {name}\n" for name in [*stubs, *pages])
    (tree / "_toc.yml").write_text(f"format: jb-book\nroot: index\nchapters:\n{chapters}")
    book_records.write(tree / "runs", "rope")
    named = {name for text in said for name in re.findall(r"every/(\w+)#1[. ]", text)}
    second_seeds = [p for p in load_plan("every") if p.label in named and p.recipe.seed == 1]
    if recorded:
        planned_records.carry_out(tree / "runs", "every", shown)
        planned_records.carry_out(tree / "runs", "dropping")
        planned_records.carry_out(tree / "runs", "presets", ["rope", "gpt_oss", "smollm3"])
        few = ["nope-256", "rope-256", "nope-full", "nope-64", "nope-128", "rope-512"]
        planned_records.carry_out(tree / "runs", "windows", few)
        second = next(p for p in load_plan("windows") if (p.label, p.recipe.seed) == (few[0], 1))
        planned_records.write(tree / "runs", "windows", second)
        shutil.copytree(ROOT / "runs" / "repeated", tree / "runs" / "repeated")
        planned_records.carry_out(tree / "runs", "rates", ["alibi@6e-3", "pope@6e-3"])
        for other in second_seeds:
            planned_records.write(tree / "runs", "every", other)
    done = book_site.build_small(tree)
    assert done.returncode == 0, done.stdout[-3000:]
    words = {name: book_site.text(tree / "_build" / "html" / f"{name}.html") for name in pages}
    if recorded:
        assert "RoPE, trained on 4,096 tokens" in words["every"]
        assert "kept, then YaRN × 4" in words["dropped"]
        shown_page = (tree / "_build" / "html" / "every.html").read_text("utf-8")
        addresses = re.findall(r'href="(runs/every/[^"]+/record.html)"', shown_page)
        done_runs = len(shown) + len(second_seeds)
        assert len(set(addresses)) == done_runs, "a seed leads to the record of its run"
        for address in addresses:
            assert "Repeat it" in (tree / "_build" / "html" / address).read_text("utf-8")
        count = len(load_plan("every"))
        assert f"Of {count} planned runs {done_runs} are recorded." in words["every"]
        assert "gpt_oss" in words["windows"], "a schedule too long for a line has its short name"
        assert "No run of the study presets is recorded yet." not in words["windows"]
        assert "With another seed the results are close to these." in words["windows"]
        assert "With windows of 64, NoPE and this seed" not in words["windows"]
        assert "3 × (RoPE + window 256), NoPE, mean of 2 seeds" in words["windows"]
    else:
        assert "No run of the study every is recorded yet." in words["every"]
        assert "planned runs is recorded yet" in words["dropped"]
        assert "No run of the study presets is recorded yet." in words["windows"]
        assert "3 × (RoPE + window 1024), NoPE 8 × 8 × 64 140 512 27%" in words["windows"]
