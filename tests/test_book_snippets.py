"""The pages that show code to type: every block is run, and what they print is what is printed."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import test_encodings_registry as asked
import torch
from tiny_training import tiny, write_corpus

import pe
from pe import cli as command
from pe.conformance import check_laws
from pe.encodings.core import registry
from pe.notebooks.parameters import configure_tasks
from pe.recipes import named as recipes
from pe.study.plan import load_plan

BOOK = Path(__file__).parents[1] / "book"
FENCE = re.compile(
    r"^```(?:\{code-block\} )?(\w+)\n(?::caption: (\S+)\n\n)?(.*?)^```$", re.M | re.S
)


class Block(NamedTuple):
    language: str
    file: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall((BOOK / f"{page}.md").read_text("utf-8"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reader's folder, from which modules are imported, with a demo recipe of seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert pe.list_encodings()  # all of them are registered before the copy is made
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "runs"))
    demo = tiny(write_corpus(tmp_path / "corpus"), name="demo", steps=6, checkpoint_every=6)
    monkeypatch.setitem(recipes.RECIPES, "demo", demo)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def run_page(page: str, folder: Path) -> dict[str, Any]:
    """Write the files, run the Python, in the order of the page; the names that are left."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, f"{page}.md", "exec"), names)
    return names


def masked(text: str) -> list[str]:
    """Lines without their measured errors, which differ from machine to machine."""
    errors = r"\d\.\de[-+]\d\d of \de[-+]\d\d|off by \S+ allowed \S+"
    return [re.sub(errors, "#", line).rstrip() for line in text.splitlines()]


def commands(page: str) -> list[tuple[str, list[str]]]:
    """Each command of the page, with the lines of output that follow it."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(page):
        if block.language != "console":
            continue
        for line in block.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def test_adding_an_encoding_from_nothing(folder: Path) -> None:
    names = run_page("adding", folder)
    assert names["out"].shape == (1, 4, 12, 16)
    runs = names["runs"]
    assert sorted(run.read()["pe"] for run in runs) == ["root:Root", "rope"]
    assert all(run.read()["status"] == "complete" for run in runs)
    assert names["figure"].axes
    hooks = ("Sawtooth", "Clock", "Sharper", "Halve")  # Steep, too, by the commands of the page
    for spec in ("root:Root", *(f"hooks:{name}" for name in hooks)):
        assert check_laws(spec).ok, check_laws(spec)
    careless = check_laws("careless:Careless")
    assert [f.law.name for f in careless.findings if f.result == "FAILED"] == ["cast"]


def test_a_task_of_ones_own_is_named_by_its_class(folder: Path) -> None:
    (page,) = [block for block in blocks("tasks") if block.file]
    (folder / page.file).write_text(page.text)
    made = pe.tasks.task("last_bit:LastBit")
    example = made.example(0, 0, "id")
    assert example.targets[-1] == 4 - example.tokens[-2]
    assert pe.tasks.about("last_bit:LastBit").title == "LastBit"
    assert "last_bit:LastBit" not in pe.tasks.names()
    run = configure_tasks(task="last_bit:LastBit", pe="nope,rope", steps=1)
    assert run.name.startswith("last_bit_LastBit-")
    with pytest.raises(ValueError, match="option of the task 'last_bit:LastBit'"):
        pe.tasks.task("last_bit:LastBit", bits=3)
    for name, message in {
        "last_bit:Last": "cannot be imported: module 'last_bit' has no attribute 'Last'",
        "last_bit.py:LastBit": "write 'last_bit:LastBit'",
        "math:pi": "not a subclass of pe.tasks.Task",
    }.items():
        with pytest.raises(ValueError, match=message):
            pe.tasks.task(name)


def test_the_commands_of_adding_print_what_the_page_shows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in blocks("adding"):
        if block.file:
            (folder / block.file).write_text(block.text)
    checked = [(line, shown) for line, shown in commands("adding") if line.startswith("pe check")]
    assert len(checked) == 8
    for line, shown in checked:
        status = command.main(line.split()[1:])
        out = capsys.readouterr().out
        assert status == ("careless" in line), out
        assert masked("\n".join(shown)) == masked(out)[: len(shown)]
    others = [line for line, _ in commands("adding") if not line.startswith("pe check")]
    assert others == [
        "pytest --pe root:Root",  # tests/test_conformance.py
        "pe train root:Root --recipe demo",
        "pe study root.yaml --dry-run",
        "pe study root.yaml",
        "pytest tests/test_encodings_registry.py tests/test_encodings_laws.py "
        "tests/test_every_encoding.py",
    ]
    assert pe.configure(pe="root:Root", recipe="demo").name.startswith("root_Root-s0-")
    plan = load_plan("root.yaml")
    assert len(plan) == 9


def test_the_example_may_be_moved_into_the_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests ask of a file in pe/encodings, the guide's own example has."""
    (example,) = [block for block in blocks("adding") if block.file == "root.py"]
    package = folder / "package"
    package.mkdir()
    (package / "root.py").write_text(example.text)
    monkeypatch.setattr(registry, "_ABOUT", dict(registry._ABOUT))
    monkeypatch.setattr(pe.encodings, "__path__", [*pe.encodings.__path__, str(package)])
    monkeypatch.setitem(sys.modules, "pe.encodings.root", types.ModuleType("unused"))
    del sys.modules["pe.encodings.root"]
    importlib.import_module("pe.encodings.root")
    assert "root" in pe.list_encodings()
    asked.test_every_file_registers_what_it_defines_and_names_of_records_stay()
    asked.test_a_file_says_what_it_takes()
    asked.test_every_encoding_of_the_package_says_how_it_is_shown("root")


def test_bring_your_own_model(folder: Path) -> None:
    names = run_page("pretrained", folder)
    settings = names["longer"].config.rope_parameters
    assert (settings["rope_type"], settings["factor"]) == ("yarn", 4.0)
    for saved, kind in (("longer", "llama"), ("dropped", "pe-adapted")):
        assert json.loads((folder / saved / "config.json").read_text())["model_type"] == kind


def test_yarn_and_alibi_in_a_bare_attention_function(folder: Path) -> None:
    names = run_page("elsewhere", folder)
    attention, q, k, v = (names[n] for n in ("attention", "q", "k", "v"))
    positions = names["positions"]
    alibi, yarn, both = (names[n] for n in ("alibi", "yarn", "both"))
    want = pe.attend(alibi, q, k, v, positions, positions, backend="dense")
    bias = alibi.bias(q, k, positions, positions)
    torch.testing.assert_close(attention(q, k, v, bias), want)
    # ALiBi by hand: head h of 8 has the slope 2^-h.
    distance = (positions[:, None] - positions).clamp(min=0)
    slopes = 2.0 ** -torch.arange(1, 9)
    torch.testing.assert_close(bias[0], -slopes[:, None, None] * distance)
    both_ways = (positions[:, None] - positions).abs()
    torch.testing.assert_close(names["symmetric"][0], -slopes[:, None, None] * both_ways)
    want = pe.attend(yarn, q, k, v, positions, positions, backend="dense")
    torch.testing.assert_close(names["rotated"], want)
    torch.testing.assert_close(names["step"], want[:, :, -1:])  # from cached keys
    for a, b in zip(names["same"].rotate(q, k, positions, positions),
                    yarn.rotate(q, k, positions, positions), strict=True):  # fmt: skip
        assert torch.equal(a, b)
    rotated = yarn.rotate(q, k, positions, positions)
    torch.testing.assert_close(names["out"], attention(*rotated, v, bias), atol=1e-5, rtol=1e-5)
    assert not yarn.raw_keys
    assert both.rotates


def test_no_page_has_a_block_of_another_kind() -> None:
    known = {"python", "console", "yaml"}
    for page in ("adding", "elsewhere"):
        text = (BOOK / f"{page}.md").read_text("utf-8")
        opened = re.findall(r"^```(\S.*)$", text, re.M)
        kinds = [o for o in opened if not o.startswith(("{literalinclude}", "{laws}"))]
        assert len(kinds) == len(blocks(page))
        assert {block.language for block in blocks(page)} <= known
