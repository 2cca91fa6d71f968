"""The laws themselves: each catches an encoding that breaks it, and lets the right ones through."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import broken_encodings
import pytest
import torch

from pe import cli as command
from pe.attention import BACKENDS
from pe.attention.dense import dense_attention
from pe.conformance import LAWS, check_laws
from pe.encodings import list_encodings

HERE = Path(__file__).parent


def results(spec: str, *only: str, **options: Any) -> dict[str, str]:
    report = check_laws(spec, options, only)
    return {finding.law.name: finding.result for finding in report.findings}


@pytest.mark.parametrize("name", ["Slope", "Turn"])
def test_what_is_right_breaks_no_law(name: str) -> None:
    report = check_laws(f"broken_encodings:{name}")
    assert report.ok, report


BREAKS = {
    "contract": "Contract", "shift": "Shift", "change": "Change", "heads": "Heads",
    "time": "Time", "rows": "Rows", "future": "Future", "decode": "Decode", "cache": "Cache",
    "padding": "Padding", "holes": "Holes", "documents": "Documents", "blind": "Blind",
    "unseen": "Unseen",
    "memory": "Memory", "precision": "Precision", "autocast": "Autocast",
    "cast": "Cast", "meta": "Meta", "saving": "Saving", "limit": "Limit", "base": "Base",
    "gradients": "Gradients", "form": "Form", "formula": "Formula", "composition": "Composition",
}  # fmt: skip


@pytest.mark.parametrize(("law", "name"), BREAKS.items())
def test_each_law_catches_what_breaks_it(law: str, name: str) -> None:
    assert results(f"broken_encodings:{name}", law) == {law: "FAILED"}


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("HalfBias", "contract"),
        ("Embeds", "contract"),
        ("Unused", "gradients"),
        ("SinglePrecision", "shift"),
    ],
)
def test_other_ways_to_break_a_law(name: str, law: str) -> None:
    assert results(f"broken_encodings:{name}", law) == {law: "FAILED"}


def test_a_learned_frequency_beside_a_float32_bias_obeys_the_formula() -> None:
    """The one shows its slope over a narrow step only, the other over a wide step only."""
    assert results("broken_encodings:Mixed", "formula") == {"formula": "ok"}


def test_a_product_under_autocast_is_told_how_to_stay_float32() -> None:
    (finding,) = check_laws("broken_encodings:Autocast", only=["autocast"]).findings
    assert "torch.autocast(q.device.type, enabled=False)" in finding.reason


def test_the_law_of_backends_catches_one_that_drops_the_bias(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dao-AILab/flash-attention#858: the fallback path ignored ALiBi."""

    def forgetful(*args: Any, bias: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        return dense_attention(*args, **more)

    monkeypatch.setitem(BACKENDS, "forgetful", forgetful)
    assert results("broken_encodings:Slope", "backends") == {"backends": "FAILED"}
    assert results("broken_encodings:Turn", "backends") == {"backends": "ok"}


def test_every_law_has_an_encoding_that_breaks_it() -> None:
    assert set(BREAKS) | {"backends"} == set(LAWS)
    for law in LAWS.values():
        assert law.test.__doc__ == law.sentence, law.name


def test_an_encoding_that_crashes_is_reported_with_the_place() -> None:
    (finding,) = check_laws("broken_encodings:Crash", only=["decode"]).findings
    assert finding.result == "FAILED"
    assert finding.reason.startswith("KeyError at broken_encodings.py:")


def test_the_command_reports_and_exits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert command.main(["check", "yarn", "-o", "factor=8", "-l", "base", "-l", "change"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("yarn factor=8\n")
    assert "base    ok" in out
    assert "change  not applicable                    relative" in out
    assert "1 ok, 0 FAILED, 1 not applicable" in out
    assert command.main(["check", "broken_encodings:Shift", "-l", "shift"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "shifted by 1: off by" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rpoe"], "unknown encoding 'rpoe' (did you mean 'rope'?)"),
        (["no_such:Thing"], "'no_such:Thing' cannot be imported"),
        (["yarn", "-o", "fcator=2"], "no option 'fcator' (did you mean 'factor'?)"),
        (["rope+pope"], "rope and pope both rotate"),
        (
            ["rope", "-o", "head_dim=8"],
            "head_dim 8: the laws use fixed sizes, and head_dim is",
        ),
        (["rope", "-l", "shfit"], "unknown law 'shfit' (did you mean 'shift'?)"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert command.main(["check", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.startswith("pe check: ")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=1e4", 1e4), ("a=true", True), ("a=half", "half"), ("a=[1, 2]", [1, 2]),
     ("a=", ""), ("=1", None), ("a", None)],
)  # fmt: skip
def test_options_are_python_values_or_words(text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(ValueError, match="expected KEY=VALUE"):
            command.option_value(text)
    else:
        assert command.option_value(text) == ("a", value)


def test_the_plug_in_runs_laws_as_tests(pytester: pytest.Pytester) -> None:
    """From a folder that holds the encoding and tests that were not asked for.

    As a command, from an installed package: tests/test_packaging.py.
    """
    pytester.makepyfile(mine=(HERE / "helpers" / "broken_encodings.py").read_text())
    pytester.makepyfile(test_other="def test_other(): raise SystemExit\n")

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess("-p", "pe.pytest_plugin", "-ra", *arguments)

    done = run("--pe", "mine:HalfBias", "-k", "contract or change or rows")
    assert done.ret == 1
    shown = done.stdout.str()
    assert "FAILED mine:HalfBias::contract" in shown
    assert "bias gives torch.bfloat16 for torch.bfloat16, not torch.float32" in shown
    done.assert_outcomes(failed=1, passed=1, skipped=1)
    assert "not applicable: relative" in shown
    good = run("--pe", "yarn", "--pe-option", "factor=8.0", "-k", "base")
    assert good.ret == 0
    good.assert_outcomes(passed=1)
    wrong = run("--pe", "nothing:Here")
    assert wrong.ret == 4
    assert "ERROR: --pe nothing:Here: encoding 'nothing:Here' cannot be imported" in (
        wrong.stderr.str() + wrong.stdout.str()
    )


def test_the_modules_of_this_test_are_not_registered() -> None:
    assert not [name for name in list_encodings() if ":" in name]
    assert broken_encodings.Slope.__name__.lower() not in list_encodings()
