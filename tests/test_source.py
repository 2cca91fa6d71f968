"""A run belongs to the source of its encoding: an edited one never shows the old result."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import study_tools
from tiny_training import killed_after, tiny, train_tiny

import pe
from pe.encodings import list_encodings
from pe.encodings.core.source import source_hashes
from pe.evaluation.load import load_model
from pe.recipes.recipe import Recipe
from pe.runs import Run, RunError
from pe.study.plan import load_part
from pe.study.planned import complete
from pe.training.start import start_of
from pe.training.train import train

HELPER = """\
def slope(strength):
    return strength * 0.5

def unused():
    return 1
"""
MINE = """\
from pe.encodings.core.distance import DistanceBias
from my_helper import slope

SCALE = 1.0


class Mine(DistanceBias):
    def distance_bias(self, distance):
        if distance.dim() < 1:
            raise ValueError("one text")
        return -SCALE * slope(1.0) * distance.float().expand(2, *distance.shape)


def other():
    return 2
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write the encoding and its helper, with changes, and load them as a new process would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(*changes: tuple[str, str]) -> str:
        for name, text in (("my_helper", HELPER), ("mine", MINE)):
            for old, new in changes:
                text = text.replace(old, new)
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return "mine:Mine"

    yield written
    for name in ("mine", "my_helper"):
        sys.modules.pop(name, None)


EDIT = ("SCALE = 1.0", "SCALE = 3.0")


def test_what_does_not_decide_the_result_does_not_change_the_hash(write: Write) -> None:
    first = source_hashes(write())
    core = {f"pe.encodings.core.{name}" for name in ("base", "distance", "forms")}
    assert set(first) == {"mine", "my_helper"} | core
    for change in (
        ("class Mine(DistanceBias):\n", 'class Mine(DistanceBias):\n    """Says so."""\n\n'),
        ("SCALE = 1.0", "SCALE = (  # why\n    1.0\n)"),
        ("(self, distance):", "(self, distance: 'Tensor') -> 'Tensor':"),
        ("one text", "another text"),
        ("return 2", "return 3"),
        ("return 1\n", "return 10\n"),
        ("class Mine", "from pe.encodings.core.registry import register\n\n\n"
         "@register('mine_here', title='Mine')\nclass Mine"),
    ):  # fmt: skip
        assert source_hashes(write(change)) == first, change
        pe.encodings.core.registry._REGISTRY.pop("mine_here", None)


def test_what_decides_the_result_changes_the_hash_of_its_module(write: Write) -> None:
    first = source_hashes(write())
    for module, change in (
        ("mine", EDIT),
        ("mine", ("-SCALE", "SCALE")),
        ("mine", ("dim() < 1", "dim() < 0")),
        ("mine", ("    def distance", "    per_layer = True\n\n    def distance")),
        ("my_helper", ("* 0.5", "* 0.25")),
    ):
        second = source_hashes(write(change))
        assert {name for name in first if first[name] != second[name]} == {module}, change


def test_an_encoding_in_a_package_is_followed_through_its_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {
        "__init__": "",
        "slopes": "import math\n\n\ndef steep(x):\n    return math.sqrt(x)\n",
        "own": "from pe.encodings.core import distance\nfrom . import slopes\n\n\n"
        "class Own(distance.DistanceBias):\n    def distance_bias(self, d):\n"
        "        return d * slopes.steep(2.0)\n",
    }
    (tmp_path / "package_of_own").mkdir()
    for name, text in files.items():
        (tmp_path / "package_of_own" / f"{name}.py").write_text(text)
    hashes = source_hashes("package_of_own.own:Own")
    assert {"package_of_own.own", "package_of_own.slopes", "pe.encodings.core.base"} <= set(hashes)


def test_every_encoding_has_a_hash_and_a_sum_has_those_of_its_parts() -> None:
    for name in list_encodings():
        assert "pe.encodings.core.base" in source_hashes(name), name
        assert len(source_hashes(name)) >= 3, name
    both = source_hashes("rope+alibi")
    assert {"pe.encodings.rope", "pe.encodings.alibi", "pe.encodings.core.composite"} <= set(both)
    assert "pe.encodings.rope" in source_hashes("yarn"), "it is put on RoPE"


def test_a_file_that_is_edited_after_it_was_loaded_is_not_what_runs(
    write: Write, tmp_path: Path
) -> None:
    first = source_hashes(write())
    (tmp_path / "mine.py").write_text(MINE.replace(*EDIT))
    assert source_hashes("mine:Mine") == first
    assert source_hashes(write(EDIT)) != first


def test_a_trained_run_is_refused_under_another_source_and_trained_beside_in_another_study(
    write: Write, shared: Path, alone: None, tmp_path: Path
) -> None:
    run = train_tiny(tmp_path / "local", shared, pe=write())
    evaluation = pe.evaluate(run, quiet=True)
    assert run.record.sources == source_hashes("mine:Mine")
    write(("class Mine", "# a remark\nclass Mine"))
    assert train(run, quiet=True) is run
    assert complete(run)

    write(EDIT)
    before = {p: p.read_bytes() for p in run.directory.rglob("*") if p.is_file()}
    says = r"another source of mine:Mine \(mine changed since\); train .* study, such as 'local-2'"
    for refused in (
        lambda: train(run, quiet=True),
        lambda: pe.evaluate(run, quiet=True),
        lambda: load_model(run),
    ):
        with pytest.raises(RunError, match=says):
            refused()
    assert not complete(run), "a study does not pass over it"
    assert {p: p.read_bytes() for p in run.directory.rglob("*") if p.is_file()} == before
    beside = train_tiny(tmp_path / "local-2", shared, pe="mine:Mine")
    assert pe.evaluate(beside, quiet=True)["perplexity"] != evaluation["perplexity"]

    old = run.read()  # as before records had these hashes
    del old["sources"]
    run.write(old)
    assert train(run, quiet=True) is run
    assert pe.evaluate(run, quiet=True) == evaluation


def test_a_study_says_so_before_its_first_run(
    write: Write, alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr("pe.study.queue.connect", None)  # no worker is started
    plan = pe.load_plan(
        study_tools.write(tmp_path, {"rope": {"pe": "rope"}, "own": {"pe": write()}})
    )
    run = plan[1].run()
    run.start()
    run.update(status="complete", sources=source_hashes("mine:Mine"))
    write(EDIT)
    with pytest.raises(RunError, match="another source of mine:Mine .* such as 'small-2'"):
        pe.run_study(plan)
    assert not plan[0].run().exists()


def test_a_record_of_another_source_does_not_stop_other_runs_of_its_study(
    write: Write, alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "runs"))
    study = study_tools.write(tmp_path, {"rope": {"pe": "rope"}, "own": {"pe": write()}})
    run = pe.load_plan(study)[1].run()
    run.start()
    run.update(status="complete", sources=source_hashes("mine:Mine"))
    write(EDIT)
    (other,) = load_part(f"{study}/rope:0", check=True)
    assert other.label == "rope"
    for word in (f"{study}/own", f"{study}/*", study):
        with pytest.raises(ValueError, match="runs.own: .*another source of mine:Mine"):
            load_part(word, check=True)


def test_a_run_that_stopped_goes_on_with_its_own_source_alone(
    write: Write, shared: Path, alone: None, tmp_path: Path
) -> None:
    recipe = tiny(shared / "corpus", pe=write(), keep_states=[5], schedule="wsd", decay_steps=4)
    run = Run(tmp_path / "local" / recipe.run_name(), recipe)
    killed_after(run, 3)  # before its first checkpoint: it begins anew
    write(EDIT)
    killed_after(run, 7)
    assert run.record.sources == source_hashes("mine:Mine")
    write()
    with pytest.raises(RunError, match="another source of mine:Mine"):
        train(run, quiet=True)
    assert run.record.status == "failed"
    branch = Recipe.from_dict(
        recipe.to_dict()
        | {"start_from": run.name, "start_step": 5, "start_state": "all", "keep_states": [],
           "steps": 10}
    )  # fmt: skip
    with pytest.raises(RunError, match="another source of mine:Mine"):
        start_of(branch, tmp_path / "local")
    write(EDIT)
    assert train(run, quiet=True).record.status == "complete"


def test_the_notebooks_refuse_before_they_write(
    write: Write, shared: Path, alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "runs"))
    run = pe.configure(pe=write(), recipe="demo")
    run.start()
    run.update(status="complete", sources=source_hashes("mine:Mine"))
    assert pe.configure(pe="mine:Mine", recipe="demo").directory == run.directory
    write(EDIT)
    with pytest.raises(RunError, match="another source of mine:Mine"):
        pe.configure(pe="mine:Mine", recipe="demo")
    assert not pe.configure(pe="mine:Mine", recipe="demo", study="local-2").exists()
