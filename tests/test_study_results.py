"""A study's rows, its intervals and what its tables call a difference, from made-up records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import book_records
import pytest

from pe import runs
from pe.results import rows as results
from pe.results.intervals import mean_interval
from pe.study.plan import load_plan

ROOT = Path(__file__).resolve().parent.parent


def row(root: Path, pe: str, shift: float = 0.0, right: int = 5, seed: int = 0) -> results.Row:
    """One run whose windows lose 2, 3, 4 nats plus ``shift``, and find ``right`` of 10 needles."""
    run = book_records.write(root, pe, seed, study="made-up")
    evaluation = book_records.evaluation(pe)
    nll = [2 + shift, 3 + 1.01 * shift, 4 + 0.99 * shift]
    cell = {"value": math.exp(3 + shift), "nll": 3 + shift, "window_nll": nll, "reason": None}
    evaluation["perplexity"]["256"] = cell
    counts = {"exact": [right, right], "greedy": [0, 0], "digits": [50, 50], "reason": None,
              "controls": {k: {"exact": 0, "greedy": 0, "digits": 9} for k in
                           ("removed", "another")}}  # fmt: skip
    evaluation["retrieval"] = {
        "samples": 10, "depths": [0.0, 1.0], "digits": 5,
        "tasks": {"needle": {"256": counts}, "passkey": {"256": counts}},
    }  # fmt: skip
    run.write_evaluation(evaluation)
    return results.Row(pe, pe, pe, (run,))


def test_every_row_of_the_committed_study_is_found_by_its_label() -> None:
    found = results.rows("scaffold", runs.find(ROOT / "runs", "scaffold"))
    wanted = [planned.label for planned in load_plan("scaffold")]
    assert [r.label for r in found] == wanted
    titles = {r.label: r.title for r in found}
    assert titles["rope-dropped-at-10"] == "RoPE, dropped at 5,000"
    assert {r.label for r in found if r.converted} == {w for w in wanted if "dropped" in w}


def test_a_study_without_a_yaml_has_its_encodings_as_rows(tmp_path: Path) -> None:
    made = [book_records.write(tmp_path, pe, study="no-such-study") for pe in ("pope", "rope")]
    assert [r.label for r in results.rows("no-such-study", made)] == ["rope", "pope"]


def test_cells_show_shares_with_wilson_and_one_seed_without_an_interval(tmp_path: Path) -> None:
    one = row(tmp_path, "rope", right=7)
    assert results.write(results.measure(one, "needle@1x"), "needle@1x") == "70% (48–85)"
    assert results.measure(one, "ppl@1x").interval is None
    assert results.write(results.measure(one, "tempered.ppl@1x"), "tempered.ppl@1x") == "–"
    assert results.write(results.measure(one, "c"), "c") == "–"
    with pytest.raises(ValueError, match="validation_loss"):
        results.measure(one, "validation_los")


def test_seeds_are_pooled_for_counts_and_give_an_interval_for_means(tmp_path: Path) -> None:
    seeds = [row(tmp_path, "rope", 0.1 * s, right=5 + s, seed=s).runs[0] for s in range(3)]
    found = results.Row("rope", "RoPE", "rope", tuple(seeds))
    share = results.measure(found, "needle@1x").interval
    assert share is not None
    assert (share.value, share.n) == (0.6, 60)
    cell = results.measure(found, "validation_loss")
    assert cell.interval is not None
    assert cell.interval.n == 3
    assert results.write(cell, "validation_loss") == "3.500", "the same in all runs"
    apart = results.Cell(3.5, mean_interval([3.4, 3.5, 3.6]), None)
    assert results.write(apart, "validation_loss") == "3.500 ± 0.248"
    table = results.table([found], ["ppl@1x"], {})
    assert table.splitlines()[0] == "| run | n | 1× |"
    assert "| RoPE | 3 | 22.2 (17.3–28.5) |" in table  # e to the mean of 3, 3.1 and 3.2 nats


def test_a_small_shift_of_every_window_is_a_difference_and_overlap_is_none(tmp_path: Path) -> None:
    rope, pope = row(tmp_path, "rope"), row(tmp_path, "pope", 0.1, right=10)
    assert results.write_difference(rope, pope, "ppl@1x").startswith("lower by 9.5% (9.")
    assert results.write_difference(rope, rope, "ppl@1x") == "no difference shown"
    assert results.write_difference(pope, rope, "needle@1x") == "higher by 50 points"
    near = row(tmp_path, "yarn", right=7)
    assert results.write_difference(near, rope, "needle@1x") == "no difference shown"
    with pytest.raises(ValueError, match="at least two"):
        results.difference(rope, pope, "validation_loss")  # one seed each


def test_a_name_leads_to_the_page_of_its_run(tmp_path: Path) -> None:
    one = row(tmp_path, "rope")
    links: dict[str, Any] = {one.runs[0].name: "/page"}
    table = results.table([one], ["needle", "mfu"], links)
    assert table.splitlines()[0] == "| run | 1× | 2× | 4× | 8× | MFU |"
    assert "[rope](/page) | 50% (30–70) | – |" in table


def test_the_reach_of_a_model_ends_where_it_finds_less_than_half(tmp_path: Path) -> None:
    one = row(tmp_path, "rope")
    evaluation = one.runs[0].evaluation()
    assert evaluation is not None
    evaluation["retrieval"]["depths"] = [0.0, 0.5, 0.75, 1.0]
    for task, right in (("needle", [9, 5, 6, 10]), ("passkey", [9, 9, 9, 3])):
        cell = evaluation["retrieval"]["tasks"][task]["256"]
        for kind in ("exact", "greedy", "digits"):
            cell[kind] = right
    evaluation["retrieval"]["samples"] = 10
    book_records.Run(tmp_path / "made-up" / one.runs[0].name).write_evaluation(evaluation)
    assert results.measure(one, "needle_reach@1x").value == 64  # from depth 0.75 on
    assert results.measure(one, "passkey_reach@1x").value == 0  # not even the very end
    assert results.write(results.measure(one, "needle_reach@2x"), "needle_reach@2x") == "–"
