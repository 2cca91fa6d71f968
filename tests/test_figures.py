"""Tables and figures from made-up records: grouping, seeds, missing values, colours, bytes."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from pathlib import Path
from xml.etree import ElementTree

import book_records
import numpy as np
import pytest

from pe import figures, runs
from pe.encodings import extension_methods, list_encodings
from pe.results import quantities
from pe.results.markdown import pipe, table
from pe.results.measure import measure
from pe.results.rows import grouped, titled


@pytest.fixture
def study(tmp_path: Path) -> list[runs.Run]:
    return [book_records.write(tmp_path, pe) for pe in ("pope", "rope", "nope", "yarn", "learned")]


def test_rows_come_in_the_order_of_the_registry_and_not_of_the_folders(
    study: list[runs.Run],
) -> None:
    titles = [row.title for row in grouped(study)]
    assert titles == ["NoPE", "Learned", "PoPE", "RoPE", "YaRN"]


def test_seeds_become_a_mean_of_losses_with_its_interval(tmp_path: Path) -> None:
    seeds = [book_records.write(tmp_path, "rope", seed, scale=1 + seed / 10) for seed in range(3)]
    (row,) = grouped(seeds)
    cell = measure(row, "ppl@4x")
    nats = [math.log(value) for value in (400.0, 440.0, 480.0)]
    half = 4.302653 * statistics.stdev(nats) / math.sqrt(3)  # Student's t for three values
    assert cell.interval is not None
    assert math.log(cell.value or 0) == pytest.approx(statistics.fmean(nats))
    assert math.log(cell.interval.high) == pytest.approx(statistics.fmean(nats) + half)
    line = book_records.lines(table([row], ["ppl@2x"]))[1]
    assert line == ["RoPE", "0, 1, 2", "87.8<br>(70.0–110)"]


def test_runs_of_other_settings_are_never_averaged(tmp_path: Path) -> None:
    short = book_records.write(tmp_path, "rope")
    recipe = book_records.recipe("rope", 0, steps=500)
    long = book_records.write(tmp_path, "rope", run="rope-s0-0000beef", recipe=recipe)
    titles = [row.title for row in grouped([short, long])]
    assert titles == ["RoPE (steps 100)", "RoPE (steps 500)"]


def test_titles_leave_out_what_follows_from_another_field(tmp_path: Path) -> None:
    """A warm-up and a lowest rate are shares of the steps and of the peak rate."""
    recipes = [
        book_records.recipe("yarn", 0, steps=steps, warmup_steps=steps // 10, pe_options=options)
        for steps, options in (
            (100, {"factor": 4.0}),
            (100, {"dynamic": True}),
            (500, {"factor": 4.0}),
        )
    ]
    assert titled(recipes) == [
        "YaRN (steps 100, factor 4)",
        "YaRN (steps 100, dynamic True)",
        "YaRN (steps 500, factor 4)",
    ]


def test_how_often_a_run_was_judged_or_saved_does_not_split_a_group(tmp_path: Path) -> None:
    first = book_records.write(tmp_path, "rope")
    recipe = book_records.recipe("rope", 1, checkpoint_every=7, log_every=1)
    second = book_records.write(tmp_path, "rope", 1, recipe=recipe)
    assert len(grouped([first, second])) == 1


def test_records_from_before_a_field_existed_stay_in_their_group(tmp_path: Path) -> None:
    first = book_records.write(tmp_path, "rope")
    later = book_records.recipe("rope", 1, joint_norm="", start_from="", keep_steps=[3])
    second = book_records.write(tmp_path, "rope", 1, recipe=later)
    assert len(grouped([first, second])) == 1


def test_runs_that_started_from_another_say_so_and_seeds_of_them_are_one_group(
    tmp_path: Path,
) -> None:
    made = [book_records.write(tmp_path, "nope")]
    for seed in (0, 1):
        for step in (62500, 93750):
            start = {"start_from": f"other/rope-s{seed}-0000beef", "start_step": step}
            recipe = book_records.recipe("nope", seed, **start)
            name = f"nope-s{seed}-{step:08x}"
            made.append(book_records.write(tmp_path, "nope", seed, run=name, recipe=recipe))
    titles = {row.title: len(row.runs) for row in grouped(made)}
    assert titles == {
        "NoPE": 1, "RoPE, dropped at 62,500": 2, "RoPE, dropped at 93,750": 2,
    }  # fmt: skip


def test_a_length_an_encoding_cannot_reach_shows_why(study: list[runs.Run]) -> None:
    heads, *lines = book_records.lines(table(grouped(study)))
    row = dict(zip(heads, lines[1], strict=True))
    assert row["run"] == "Learned"
    assert row["perplexity at 1×"] == "43.0"
    assert row["8×"] == "no value: longest position 256"
    assert "peak memory, GiB" not in heads  # recorded by no run
    assert book_records.lines(table(grouped(study), ["peak_memory"]))[1][2] == "–"


def test_a_mean_over_some_of_the_seeds_is_refused(tmp_path: Path) -> None:
    whole = book_records.write(tmp_path, "rope", 0)
    partial = book_records.write(tmp_path, "rope", 1)
    (partial.directory / "evaluation.json").unlink()
    (row,) = grouped([whole, partial])
    cell = measure(row, "ppl@1x")
    assert (cell.value, cell.reason) == (None, "not evaluated")


def test_unknown_quantities_name_the_nearest(study: list[runs.Run]) -> None:
    row = grouped(study)[0]
    with pytest.raises(ValueError, match="tokens_per_second"):
        measure(row, "tokens_per_secnd")
    with pytest.raises(ValueError, match="ppl@4x"):
        measure(row, "ppl@fourx")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (0.01234, "0.0123"), (9.996, "10.0"), (41.26, "41.3"), (999.0, "999"),
     (12345.6, "12,346"), (float("inf"), "inf")],
)  # fmt: skip
def test_numbers_are_written_without_exponents(value: float, text: str) -> None:
    assert quantities.significant(value) == text


def test_durations_read_like_a_clock() -> None:
    times = [quantities.duration(s) for s in (5.4, 125, 7265)]
    assert times == ["5 s", "2 min 05 s", "2 h 01 min"]


def test_markdown_keeps_its_columns_when_a_cell_holds_a_bar() -> None:
    lines = pipe(["run", "value"], [["a|b", "1"], ["c", "2"]]).splitlines()
    assert len(lines) == 4
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {4}


def test_links_lead_from_seeds_to_pages(study: list[runs.Run]) -> None:
    lines = book_records.lines(table(grouped(study), links={study[0].name: "/page"}))
    assert ["PoPE", "[0](/page)"] in [line[:2] for line in lines]


FIGURES = [figures.perplexity_by_length, figures.loss_curves, figures.loss_by_position]


@pytest.mark.parametrize("figure", FIGURES)
def test_equal_records_give_equal_bytes_and_text_stays_text(figure, study: list[runs.Run]) -> None:
    first, second = figures.svg(figure(study)), figures.svg(figure(study))
    assert first == second
    tree = ElementTree.fromstring(first)
    texts = {"".join(e.itertext()).strip() for e in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {"NoPE", "RoPE", "YaRN", "PoPE"} <= texts
    assert not re.search(r"<dc:date|Matplotlib v", first)


@pytest.mark.parametrize("figure", FIGURES)
def test_nothing_dark_is_left_on_a_dark_page(figure, study: list[runs.Run]) -> None:
    dark = figures.darken(figures.svg(figure(study)))
    colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", re.sub(r'(href|url|id)[=(]"?#?\w+', "", dark)))
    lines = colours - {"#3a424c"}  # the grid is meant to stay behind
    assert lines
    for found in lines:
        assert contrast(found, "#121212") >= 3, found


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_encoding_colour_reads_on_white_and_on_dark() -> None:
    for pe in (*list_encodings(), "rope+alibi", "module:Class"):
        assert contrast(figures.colour(pe), "#ffffff") >= 3, pe
        assert contrast(figures.colour(pe), "#121212") >= 3, pe


# What a deuteranope and a protanope see of linear RGB (Machado et al. 2009, severity 1).
BLIND = {
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}


def lab(colour: str, seen: str) -> np.ndarray:
    """CIELAB of a colour as it is seen."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.412, 0.358, 0.180], [0.213, 0.715, 0.072], [0.019, 0.119, 0.950]])
    x, y, z = np.cbrt(to_xyz @ (np.array(BLIND[seen]) @ linear).clip(0, 1) / (0.9505, 1, 1.089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen", BLIND)
def test_colour_blind_readers_tell_the_four_main_methods_apart(seen: str) -> None:
    four = ("nope", "rope", "yarn", "pope")
    for one, other in itertools.combinations(four, 2):
        gap = np.linalg.norm(lab(figures.colour(one), seen) - lab(figures.colour(other), seen))
        assert gap > 15, (one, other)
        assert figures.marker(one) != figures.marker(other)


def test_methods_that_extend_rope_have_a_colour_each() -> None:
    single = [name for name in extension_methods() if name in list_encodings()]
    assert len({figures.colour(name) for name in ("rope", *single)}) == 1 + len(single)


def test_no_two_encodings_look_the_same() -> None:
    looks = {name: (figures.colour(name), figures.marker(name)) for name in list_encodings()}
    same = [(a, b) for a, b in itertools.combinations(looks, 2) if looks[a] == looks[b]]
    assert not same, f"search for other seeds in pe/figures/style.py: {same}"


def test_a_highlighted_encoding_is_the_only_one_in_colour(study: list[runs.Run]) -> None:
    figure = figures.perplexity_by_length(study, highlight="rope")
    coloured = {
        line.get_label()
        for line in figure.axes[0].lines
        if line.get_color() == figures.colour("rope")
    }
    assert coloured == {"RoPE"}


def test_lines_end_where_an_encoding_cannot_go(study: list[runs.Run]) -> None:
    axes = figures.perplexity_by_length(study).axes[0]
    line = next(line for line in axes.lines if line.get_label() == "Learned")
    y = [float(value) for value in line.get_ydata()]
    assert y[0] == pytest.approx(43.0)
    assert all(value != value for value in y[1:])


def test_figures_of_a_run_that_has_just_begun_are_empty_and_not_an_error(tmp_path: Path) -> None:
    run = book_records.write(tmp_path, "rope", status="running", finished=None, training=None)
    (run.directory / "metrics.jsonl").unlink()
    for figure in FIGURES:
        figures.svg(figure([run]))


@pytest.mark.parametrize("figure", ["perplexity_by_length", "loss_curves", "loss_by_position"])
def test_a_figure_of_no_runs_says_so(figure: str) -> None:
    with pytest.raises(ValueError, match="there are no runs to draw; pe.runs.find"):
        getattr(figures, figure)([])


def test_a_figure_of_something_else_than_runs_says_so(study: list[runs.Run]) -> None:
    for given in ("demo", study[0], ["demo"]):
        with pytest.raises(TypeError, match="a list of runs, as pe.runs.find.. makes one, got"):
            figures.loss_curves(given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_layers: expected .* at least 1, got 0"):
        figures.schedule("rope, nope", 0)


def test_no_svg_is_written_under_the_name_of_another_format(
    tmp_path: Path, study: list[runs.Run]
) -> None:
    with pytest.raises(ValueError, match=r"loss.png: figures are written as SVG; give a name"):
        figures.save(figures.loss_curves(study), tmp_path / "loss.png")
    assert not list(tmp_path.glob("*.png"))


def test_captions_name_every_run(study: list[runs.Run]) -> None:
    shown = figures.caption(study)
    assert all(run.name in shown for run in study)
    assert shown.startswith("Runs: demo/")
    assert shown.count("demo/") == 1, "a study is named once"


def test_captions_of_many_runs_count_them(tmp_path: Path) -> None:
    most = figures.MAX_RUNS_IN_CAPTION
    found = [book_records.write(tmp_path, "rope", seed) for seed in range(most)]
    assert all(run.name in figures.caption(found) for run in found)
    found.append(book_records.write(tmp_path, "yarn", study="other"))
    assert figures.caption(found) == f"Runs: {most} of demo, 1 of other"


def test_saving_the_same_figure_again_leaves_the_file_alone(
    tmp_path: Path, study: list[runs.Run]
) -> None:
    path = figures.save(figures.loss_curves(study), tmp_path / "loss.svg")
    before = path.stat().st_mtime_ns
    figures.save(figures.loss_curves(study), path)
    assert path.stat().st_mtime_ns == before


def test_a_legend_is_never_wider_than_its_figure() -> None:
    from matplotlib.figure import Figure

    from pe.figures.axes import legend

    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.add_subplot()
    lines = [axes.plot([0, 1], label=f"cut to the training length {n}")[0] for n in range(4)]
    legend(figure, lines)
    (box,) = figure.legends
    assert box.get_window_extent().width <= figure.bbox.width


def test_positions_of_windows_of_different_lengths_are_not_averaged(tmp_path: Path) -> None:
    """A seed whose loss is no number at the longest length has positions of a shorter one."""
    seeds = [book_records.write(tmp_path, "rope", seed) for seed in range(2)]
    (whole,) = figures.loss_by_position(seeds).axes
    assert [patch.get_label() for patch in whole.patches] == ["RoPE"]
    evaluation = seeds[1].evaluation() or {}
    evaluation["loss_by_position"] = {"length": 4, "edges": [0, 1, 2, 3, 4], "nll": [9.0] * 4}
    seeds[1].write_evaluation(evaluation)
    (none,) = figures.loss_by_position(seeds).axes
    assert not none.patches
