"""A study's rows, its intervals and what its tables call a difference, from made-up records."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import book_records
import pytest
from study_rows import row

from pe import runs
from pe.results import intervals, markdown, quantities
from pe.results import rows as results
from pe.results.difference import difference, write_difference
from pe.results.intervals import mean_interval
from pe.results.measure import Cell, measure, predicted, write
from pe.study.plan import load_plan

ROOT = Path(__file__).resolve().parent.parent


def test_every_row_of_the_committed_study_is_found_by_its_label() -> None:
    found = results.rows("scaffold", runs.find(ROOT / "runs", "scaffold"))
    wanted = [planned.label for planned in load_plan("scaffold")]
    assert [r.label for r in found] == wanted
    titles = {r.label: r.title for r in found}
    assert titles["rope-dropped-at-10"] == "RoPE, dropped at 5,000"
    assert {r.label for r in found if r.converted} == {w for w in wanted if "dropped" in w}


def test_a_study_without_a_yaml_has_its_encodings_as_rows(tmp_path: Path) -> None:
    made = [book_records.write(tmp_path, pe, study="no-such-study") for pe in ("pope", "rope")]
    assert [r.label for r in results.rows("no-such-study", made)] == ["pope", "rope"]


def test_cells_show_shares_with_wilson_and_one_seed_without_an_interval(tmp_path: Path) -> None:
    one = row(tmp_path, "rope", right=7)
    assert write(measure(one, "needle@1x"), "needle@1x") == "70% (48–85)"
    assert measure(one, "ppl@1x").interval is None
    assert write(measure(one, "tempered.ppl@1x"), "tempered.ppl@1x") == "–"
    assert write(measure(one, "c"), "c") == "–"
    with pytest.raises(ValueError, match="validation_loss"):
        measure(one, "validation_los")


def test_seeds_are_pooled_for_counts_and_give_an_interval_for_means(tmp_path: Path) -> None:
    seeds = [row(tmp_path, "rope", 0.1 * s, right=5 + s, seed=s).runs[0] for s in range(3)]
    found = results.Row("rope", "RoPE", "rope", tuple(seeds))
    share = measure(found, "needle@1x").interval
    assert share is not None
    pooled = intervals.wilson(36, 60)
    assert share.value == pytest.approx(0.6)
    assert share.low <= pooled.low < pooled.high <= share.high
    cell = measure(found, "validation_loss")
    assert cell.interval is None
    assert write(cell, "validation_loss") == "3.500", "the same in all runs"
    apart = Cell(3.5, mean_interval([3.4, 3.5, 3.6]), None)
    assert write(apart, "validation_loss") == "3.500 (3.252–3.748)"
    lines = book_records.lines(markdown.table([found], ["ppl@1x"]))
    assert lines[0] == ["run", "seeds", "1×"]
    assert lines[1] == ["RoPE", "0, 1, 2", "22.2<br>(17.3–28.5)"]  # e to 3, 3.1 and 3.2 on average


def test_no_interval_of_a_speed_or_a_time_reaches_below_zero(tmp_path: Path) -> None:
    speeds = {0: 1_000.0, 1: 40_000.0}
    seeds = []
    for seed, speed in speeds.items():
        run = row(tmp_path, "rope", seed=seed).runs[0]
        record = json.loads((run.directory / "run.json").read_text())
        record["training"]["tokens_per_second"] = speed
        (run.directory / "run.json").write_text(json.dumps(record))
        seeds.append(runs.Run(run.directory))
    cell = measure(results.Row("rope", "RoPE", "rope", tuple(seeds)), "tokens_per_second")
    assert cell.interval is not None
    assert mean_interval(list(speeds.values())).low < 0 == cell.interval.low
    assert write(cell, "tokens_per_second").startswith("20,500 (0–")


def test_a_small_shift_of_every_window_is_a_difference_and_overlap_is_none(tmp_path: Path) -> None:
    rope, pope = row(tmp_path, "rope"), row(tmp_path, "pope", 0.1, right=10)
    assert write_difference(rope, pope, "ppl@1x").startswith("lower by 9.5% (9.")
    assert write_difference(rope, rope, "ppl@1x") == "no difference shown"
    words = write_difference(pope, rope, "needle@1x")
    assert words == "higher by 50 points (paired prompts, p = 0.002)"
    near = row(tmp_path, "yarn", right=7)
    assert write_difference(near, rope, "needle@1x") == "no difference shown"
    with pytest.raises(ValueError, match="one seed of rope says nothing"):
        write_difference(rope, pope, "validation_loss")


def test_seeds_that_agree_do_not_show_a_difference_that_few_windows_carry(tmp_path: Path) -> None:
    rows = []
    for pe, spread in (("rope", 0.0), ("pope", 1.0), ("yarn", 0.01)):
        runs = []
        for seed in (0, 1):
            run = row(tmp_path, pe, 0.1 if spread else 0.0, seed=seed).runs[0]
            evaluation = run.evaluation()
            assert evaluation is not None
            cell = evaluation["perplexity"]["256"]
            cell["window_nll"] = [cell["window_nll"][0] + spread, *cell["window_nll"][1:]]
            runs.append(run)
            run.write_evaluation(evaluation)
        rows.append(results.Row(pe, pe, pe, tuple(runs)))
    rope, pope, yarn = rows
    assert difference(pope, rope, "ppl@1x").verdict == "no difference shown"
    gap = difference(yarn, rope, "ppl@1x")
    assert (gap.verdict, gap.over) == ("higher", "seeds")
    assert gap.interval is not None
    assert gap.interval.high - gap.interval.low > 0.02, "as wide as over the windows"


def test_a_name_leads_to_the_page_of_its_run(tmp_path: Path) -> None:
    one = row(tmp_path, "rope")
    links: dict[str, Any] = {one.runs[0].name: "/page"}
    lines = book_records.lines(markdown.table([one], ["needle", "mfu"], links))
    assert lines[0] == ["run", "seeds", "1×", "2×", "4×", "8×", "MFU"]
    assert lines[1][:4] == ["rope", "[0](/page)", "50%<br>(30–70)", "–"]


def test_a_mean_stands_beside_means_of_the_same_seeds_only(tmp_path: Path) -> None:
    seeds = [row(tmp_path, "rope", 0.1 * s, seed=s).runs[0] for s in range(3)]
    rope = results.Row("rope", "RoPE", "rope", tuple(seeds))
    alone = row(tmp_path, "alibi", 0.05)
    lines = book_records.lines(markdown.table([rope, alone], ["ppl@1x"]))[1:]
    assert [line[:2] for line in lines] == [
        ["RoPE", "0"], ["alibi", "0"], ["*RoPE, mean of 3 seeds*", "0, 1, 2"],
    ]  # fmt: skip
    assert lines[0][2] == "20.1"  # e to 3 nats, of seed 0
    assert lines[2][2] == "22.2<br>(17.3–28.5)"
    other = row(tmp_path, "t5", seed=7)
    lines = book_records.lines(markdown.table([rope, other], ["ppl@1x"]))[1:]
    assert [line[1] for line in lines] == ["0", "1", "2", "7"], "no mean where no seed is shared"


def test_a_new_seed_is_held_against_a_prediction_and_not_the_interval_of_a_mean(
    tmp_path: Path,
) -> None:
    seeds = [row(tmp_path, "rope", 0.1 * s, seed=s).runs[0] for s in range(3)]
    rope = results.Row("rope", "RoPE", "rope", tuple(seeds))
    mean, new = measure(rope, "ppl@1x").interval, predicted(rope, "ppl@1x")
    assert mean is not None
    ratio = math.log(new.high / new.low) / math.log(mean.high / mean.low)
    assert ratio == pytest.approx(math.sqrt(1 + 1 / 3) / math.sqrt(1 / 3))


def test_prompts_are_paired_where_counts_say_which_and_else_taken_for_unrelated(
    tmp_path: Path,
) -> None:
    assert intervals.discordant([10] * 11, [10] * 9 + [3, 10], 10) == (7, 0)
    assert intervals.mcnemar(7, 0) == pytest.approx(2 * 0.5**7)  # 110 of 110 against 103
    assert intervals.discordant([9, 5], [10, 5], 10) is None  # 5 and 5 may be any prompts
    near, far = row(tmp_path, "yarn", right=3), row(tmp_path, "rope", right=7)
    gap = difference(far, near, "needle@1x")
    assert (gap.over, gap.verdict) == ("", "higher")
    assert gap.p == pytest.approx(intervals.fisher((14, 20), (6, 20)))
    assert "paired" not in write_difference(far, near, "needle@1x")


def test_a_perplexity_above_the_vocabulary_is_written_in_words(tmp_path: Path) -> None:
    lost = row(tmp_path, "nope", 5.0)  # e to 8 of a vocabulary of 512
    base = row(tmp_path, "rope")
    lines = book_records.lines(markdown.table([lost, base], ["ppl@1x"]))
    assert lines[1][2] == "worse than guessing"
    assert book_records.lines(markdown.table([lost], ["ppl@1x"], base=base))[1][2] == lines[1][2]
    with pytest.raises(ValueError, match="worse than guessing"):
        write_difference(lost, base, "ppl@1x")
    runs = (*lost.runs, row(tmp_path, "nope", 1, seed=1).runs[0])
    near = results.Row("nope", "NoPE", "nope", runs)
    assert write(measure(near, "ppl@1x"), "ppl@1x") == "403 (1–>512)"


def test_a_difference_over_one_window_knows_that_a_perplexity_is_worse_than_guessing(
    tmp_path: Path,
) -> None:
    lost, base = row(tmp_path, "nope", 5.0), row(tmp_path, "rope")
    for one in (lost, base):
        evaluation = one.runs[0].evaluation()
        assert evaluation is not None
        cell = evaluation["perplexity"]["256"]
        cell["window_nll"] = cell["window_nll"][:1]
        one.runs[0].write_evaluation(evaluation)  # type: ignore[attr-defined]
    assert difference(lost, base, "ppl@1x").guessing


def test_a_temperature_at_its_bound_is_no_fit(tmp_path: Path) -> None:
    from pe.evaluation.temperature import BOUNDS

    assert quantities.TEMPERATURES == BOUNDS
    one = row(tmp_path, "nope")
    evaluation = one.runs[0].evaluation()
    assert evaluation is not None
    fit = {"nll": 6.58, "nll_without": 7.0, "lengths": [512], "windows": 2, "trials": []}
    for value, text in ((1.481925, "at its bound"), (0.75, "0.75"), (-0.49, "at its bound")):
        evaluation["tempered"] = {"fit": fit | {"value": value}, "perplexity": {}}
        made = Made(one.runs[0], evaluation)
        assert write(measure(replace(one, runs=(made,)), "c"), "c") == text


class Made:
    """A run with another evaluation."""

    def __init__(self, run: Any, evaluation: dict[str, Any]) -> None:
        self.run, self.found = run, evaluation
        self.name, self.study = run.name, run.study

    def read(self) -> dict[str, Any]:
        record: dict[str, Any] = self.run.read()
        return record

    def evaluation(self) -> dict[str, Any]:
        return self.found

    def metrics(self) -> Any:
        return self.run.metrics()


def test_a_table_by_length_says_what_reading_only_the_last_tokens_gives(tmp_path: Path) -> None:
    one, other = (book_records.write(tmp_path, pe, study="made-up") for pe in ("rope", "pope"))
    found = results.rows("made-up", [one, other])
    lines = book_records.lines(markdown.table(found, ["ppl", "mfu"]))
    assert lines[-1] == ["RoPE, cut to the training length", "0", *["40.0"] * 4, "–"]
    assert len(book_records.lines(markdown.table(found, ["ppl@1x", "mfu"]))) == 3


def test_differences_are_bold_only_if_they_hold_together(tmp_path: Path) -> None:
    assert intervals.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_rows_of_one_encoding_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    made = [
        book_records.write(
            tmp_path, "rope", run=f"rope-s0-0000000{i}",
            recipe=book_records.recipe("rope", 0, learning_rate=rate),
        )
        for i, rate in enumerate((0.001, 0.003))
    ]  # fmt: skip
    titles = [r.title for r in results.rows("no-such-study", made)]
    assert titles == ["RoPE (learning rate 0.001)", "RoPE (learning rate 0.003)"]


def test_rows_of_longer_windows_are_compared_at_the_same_tokens() -> None:
    """A column is a multiple of the shortest training length, whatever two rows were trained on."""
    found = {r.label: r for r in results.rows("extending", runs.find(ROOT / "runs", "extending"))}
    short, base, other = (found[label] for label in ("as-it-was", "rope", "yarn"))
    table = markdown.table([short, base, other], ["multikey@4x"], base=base)
    lines = book_records.lines(table)[1:]
    own = difference(other, base, "multikey@1x")  # 4,096 tokens are once their windows
    assert [line[-1].partition(" points")[0].strip("*") for line in lines] == [
        quantities.signed(100 * gap.value, 0)
        for gap in (difference(short, base, "multikey@4x"), own)
    ]
