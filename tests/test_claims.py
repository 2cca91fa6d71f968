"""The ledger: verdicts follow from records, and none is given without one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pe import runs
from pe.claims import Claim, Condition, Judged, Values, Verdict, judge, load
from pe.claims.values import Value
from pe.runs.models import NumericsRecord
from pe.tasks.measure.record import TaskRun

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "book" / "tables" / "claims.yaml"
A, B = "tasks:copy/a.id-token", "tasks:copy/b.id-token"


def claim(*conditions: dict[str, Any]) -> Claim:
    return Claim.model_validate(
        {"id": "x", "paper": None, "where": "", "claim": "", "theirs": "", "setup": "",
         "read": "paper", "test": list(conditions)}
    )  # fmt: skip


def verdict(one: Claim, where: str = "here", **values: dict[int, float]) -> Judged:
    names = {"a": A, "b": B}
    known = {names[name]: Value(by_seed, "here") for name, by_seed in values.items()}
    known |= {A: known[A]._replace(where=where)}
    return judge(one, known.get)  # type: ignore[arg-type]


ABOVE = {"say": "a above b", "value": A, "above": B}
LOW = {0: 0.1, 1: 0.12, 2: 0.11}
HIGH = {0: 0.9, 1: 0.91, 2: 0.93}


def test_a_difference_over_seeds_decides_and_one_that_could_be_chance_does_not() -> None:
    one = claim(ABOVE)
    assert verdict(one, a=HIGH, b=LOW).verdict == Verdict.HOLDS
    assert verdict(one, a=LOW, b=HIGH).verdict == Verdict.FAILS
    assert verdict(one, a={0: 0.1, 1: 0.9}, b={0: 0.2, 1: 0.7}).verdict == Verdict.UNDECIDED
    assert verdict(one, a={0: 0.9}, b={0: 0.1}).verdict == Verdict.UNDECIDED, "one seed"


def test_perplexities_are_compared_in_nats() -> None:
    """Twice as high in every seed: the gaps are equal in nats, and 100 times apart otherwise."""
    low, high = {0: 10.0, 1: 1000.0}, {0: 20.0, 1: 2000.1}
    one = claim(ABOVE)
    assert verdict(one, a=high, b=low).verdict == Verdict.UNDECIDED
    values = {A: Value(high, "", geometric=True), B: Value(low, "", geometric=True)}
    assert judge(one, values.get).verdict == Verdict.HOLDS  # type: ignore[arg-type]


def test_small_models_of_different_experiments_are_not_compared() -> None:
    judged = verdict(claim(ABOVE), where="longer", a=HIGH, b=LOW)
    assert judged.verdict == Verdict.UNDECIDED
    assert judged.numbers.endswith("of different experiments")
    assert judged.records == ["longer", "here"]


def test_without_a_record_nothing_is_said() -> None:
    judged = verdict(claim(ABOVE), a=HIGH)
    assert (judged.verdict, judged.records, judged.numbers) == (Verdict.NOT_MEASURED, [], "")
    assert B in judged.why


def test_bounds_that_are_met_in_part_are_named() -> None:
    half = {"say": "a is half", "value": A, "at_least": 0.5}
    ratio = {"say": "a is twice b", "value": A, "over": B, "at_least": 20}
    judged = verdict(claim(half, ratio), a={0: 0.9}, b={0: 0.1})
    assert judged.verdict == Verdict.DEPENDS
    assert judged.why == "met: a is half. Not met: a is twice b"
    assert "0.9 / 0.1 = 9" in judged.numbers
    assert judged.numbers.endswith("(one seed)")
    assert judged.records == ["here"]


def test_a_ratio_is_of_the_seeds_that_both_have() -> None:
    judged = verdict(claim({"say": "r", "value": A, "over": B, "at_most": 1}), a={0: 1.0, 1: 9.0},
                     b={0: 2.0})  # fmt: skip
    assert judged.verdict == Verdict.HOLDS
    assert "1 / 2 = 0.5 (one seed)" in judged.numbers


def test_what_a_test_takes_for_granted_decides_whether_it_says_anything() -> None:
    learned = {"say": "b is learned", "value": B, "at_least": 0.5}
    one = claim(ABOVE).model_copy(update={"given": [Condition.model_validate(learned)]})
    assert verdict(one, a=HIGH, b=LOW).verdict == Verdict.UNDECIDED
    assert "b is learned" in verdict(one, a=HIGH, b=LOW).why
    assert verdict(one, a=LOW, b=HIGH).verdict == Verdict.FAILS


def test_a_claim_is_about_the_encodings_whose_values_come_first() -> None:
    run = {"say": "d", "value": "runs:dropping/nope-s0-00e94ec8.ppl@1x", "at_most": 1}
    assert claim(ABOVE, run).encodings == ["a", "nope"]


@pytest.fixture(scope="module")
def ledger() -> list[Judged]:
    values = Values(ROOT / "runs")
    return [judge(one, values) for one in load(LEDGER)]


def test_every_verdict_of_the_ledger_has_a_record_or_a_reason(ledger: list[Judged]) -> None:
    assert len(ledger) >= 40
    for judged in ledger:
        if judged.verdict in (Verdict.HOLDS, Verdict.FAILS, Verdict.DEPENDS, Verdict.UNDECIDED):
            assert judged.records, judged.claim.id
            assert judged.numbers
        else:
            assert judged.why, judged.claim.id


def test_what_an_entry_says_of_seeds_is_what_its_rows_have() -> None:
    values = Values(ROOT / "runs")
    numbers = {"one": 1, "two": 2, "three": 3}
    said = 0
    for one in load(LEDGER):
        words = re.findall(
            r"(one|two|three) seeds? each at (?:its|their) own", f"{one.ours} {one.note}"
        )
        named = re.findall(r"runs:every/[\w.@]+", yaml.safe_dump(one.model_dump(mode="json")))
        for word in words:
            for key in named:
                value = values(key)
                assert value is not None
                assert len(value.by_seed) == numbers[word], (one.id, key)
                said += 1
    assert said


def test_no_record_means_no_verdict_of_the_whole_ledger(tmp_path: Path) -> None:
    kinds = {judge(one, Values(tmp_path)).verdict for one in load(LEDGER)}
    assert kinds == {Verdict.NOT_MEASURED, Verdict.NOT_TESTABLE}


def test_language_models_are_addressed_by_encoding_or_by_run(tmp_path: Path) -> None:
    for name in ("rope-s0-507d441e", "rope-s1-45798220", "nope-s0-f341ed51"):
        shutil.copytree(ROOT / "runs" / "demo" / name, tmp_path / "demo" / name)
    values = Values(tmp_path)
    both, one = values("runs:demo/rope.ppl@2x"), values("runs:demo/rope-s1-45798220.ppl@2x")
    assert both is not None
    assert one is not None
    assert sorted(both.by_seed) == [0, 1]
    assert one.by_seed == {1: both.by_seed[1]}
    assert both.mean == pytest.approx((both.by_seed[0] * both.by_seed[1]) ** 0.5), "in nats"
    assert values("runs:demo/alibi.ppl@2x") is None
    assert values("runs:domo/rope.ppl@2x") is None
    evaluation = tmp_path / "demo" / "rope-s1-45798220" / "evaluation.json"
    record = json.loads(evaluation.read_text())
    record["perplexity"]["512"] |= {"value": None, "reason": "no value: the loss is not finite"}
    evaluation.write_text(json.dumps(record))
    assert Values(tmp_path)("runs:demo/rope.ppl@2x") is None, "a seed of two is no mean of both"


def test_small_models_are_addressed_by_task_options_and_positions() -> None:
    values = Values(ROOT / "runs")
    whole = values("tasks:k_back@items=16/binary.id-token")
    some = values("tasks:k_back@items=16/binary.id-token@9+16-18")
    assert whole is not None
    assert some is not None
    assert sorted(some.by_seed) == sorted(whole.by_seed) == list(range(8))
    assert some.mean > whole.mean
    plain = values("tasks:k_back/rope.id-token")
    assert plain is not None
    assert plain.where != whole.where
    record = TaskRun(ROOT / "runs" / plain.where).record("rope")
    assert record is not None
    assert record.task_options["items"] == 50, "the default, where nothing is said"
    assert len(plain.by_seed) == 8, "of several experiments the one with most seeds"
    assert values("tasks:k_back@items=17/binary.id-token") is None
    for address, message in [
        ("tasks:k_back@item=16/binary.id-token", "unknown option of the task 'k_back' 'item'"),
        ("tasks:k_back@items=16/binary.id-token@40", r"positions \[40\] are not recorded"),
        ("tasks:k_back@items=16/binary.id-loss@3", "SPLIT-token@POSITIONS"),
        ("tasks:k_back@items=16/binary.id-token@three", "SPLIT-token@POSITIONS"),
        ("tasks:k_back@items/binary.id-token", "TASK@OPTION=VALUE"),
        ("tasks:copy/rope.odd-token", "unknown split 'odd'"),
        ("tasks:copy/rpoe.id-token", "did you mean 'rope'"),
    ]:
        with pytest.raises(ValueError, match=message):
            values(address)


def test_the_record_of_numerics_is_valid_and_decides_a_claim() -> None:
    part = runs.Folder(ROOT / "runs" / "numerics" / "inversion").part("numerics")
    record = NumericsRecord.model_validate(part)
    value = Values(ROOT / "runs")("numerics:inversion/nope.position-aliasing@128")
    assert value is not None
    assert value.by_seed == {0: record.values["nope"]["position-aliasing@128"]}
    assert value.mean == 1.0, "without positions every distance has the same logit"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": [{"say": "s", "value": "runs:every"}]}, "test"),
        ({"test": [{"say": "s", "value": A}]}, "exactly one of at_least, at_most and above"),
        ({"paper": "alibi"}, "paper"),
        ({"verdict": "holds"}, "unknown field 'verdict'"),
    ],
)
def test_a_mistake_in_the_ledger_names_the_claim(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    entry = yaml.safe_load(LEDGER.read_text())[0] | change
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([entry]))
    with pytest.raises(ValueError, match=f"claim {entry['id']}: .*{message}"):
        load(path)


def test_the_page_shows_the_verdicts_and_no_number_from_memory(ledger: list[Judged]) -> None:
    pytest.importorskip("sphinx")
    import book_claims

    assert f"| *all*             |       {len(ledger)} |" in book_claims.tally(ledger)
    (one,) = (judged for judged in ledger if judged.claim.id == "rope-breaks")
    assert "Records: `every/rope-s0-62968d12, every/" in book_claims.entry(one)
    (recalled,) = (judged for judged in ledger if judged.claim.id == "cope-flip-flop")
    assert recalled.claim.theirs not in book_claims.entry(recalled)


def test_a_table_sets_chosen_claims_beside_what_we_found(ledger: list[Judged]) -> None:
    pytest.importorskip("sphinx")
    import book_claims

    chosen = book_claims.selected(ledger, ["rope-breaks", "cope-flip-flop"])
    heads, _, first, second = book_claims.beside(chosen).splitlines()
    assert heads.replace("|", " ").split() == ["claim", "verdict", "theirs", "ours"]
    assert chosen[0].numbers in first
    assert chosen[0].verdict.value in first
    assert "not checked against the paper" in second
    assert chosen[1].claim.theirs not in second
    with pytest.raises(ValueError, match="rope-breaks"):
        book_claims.selected(ledger, ["rope-brakes"])


def test_a_page_shows_the_claims_about_its_own_encodings() -> None:
    pytest.importorskip("sphinx")
    import book_claims

    book, claims = ROOT / "book", load(LEDGER)
    assert "binary-carries" in book_claims.about_page(book, "binary", claims)
    assert "kerple-log" in book_claims.about_page(book, "kerple", claims)
    assert "rope-breaks" in book_claims.about_page(book, "rope", claims)
    assert "rope-breaks" not in book_claims.about_page(book, "multiscale_rope", claims)
    for page in (book / "methods").glob("*.md"):
        if "```{claim-table}\n" in page.read_text():
            assert book_claims.about_page(book, page.stem, claims), page.name
