"""The page of several seeds holds for the runs that are there, and for those still to come."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from pe.study.plan import load_plan, load_plans
from pe.study.planned import Planned

ROOT = Path(__file__).resolve().parent.parent
import book_plans  # noqa: E402
import book_records  # noqa: E402
import book_tables  # noqa: E402
from book_numbers import look_up  # noqa: E402
from book_studies import Studies  # noqa: E402

PAGE = (ROOT / "book" / "seeds.md").read_text("utf-8")
PLAN = load_plan("scaffold-seeds")


def complete(runs: Path) -> None:
    """Write a made-up record of every planned run that is not there, from one of its like."""
    folder = runs / "scaffold-seeds"
    there = {p.label: p for p in PLAN if (folder / p.name).is_dir()}
    for planned in PLAN:
        if not (folder / planned.name).is_dir():
            like = there.get(planned.label) or there["yarn-dropped-at-10"]
            _imitate(folder, like, planned)


def _imitate(folder: Path, like: Planned, planned: Planned) -> None:
    target = folder / planned.name
    shutil.copytree(folder / like.name, target)
    record = json.loads((target / "run.json").read_text())
    record |= {
        "run": planned.name, "seed": planned.recipe.seed, "recipe": planned.recipe.to_dict(),
        "config_hash": planned.recipe.config_hash(),
    }  # fmt: skip
    if planned.parent:
        again = {"finished": None, "commit": None, "hardware": "x", "validation_loss": 3.4}
        record["parent"] |= {"run": Path(planned.parent).name, "retrained": again}
    (target / "run.json").write_text(json.dumps(record))


@pytest.fixture(scope="module", params=["as recorded", "all there"])
def studies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Studies:
    runs = tmp_path_factory.mktemp("records")
    for study in ("demo", "scaffold", "scaffold-seeds"):
        shutil.copytree(
            ROOT / "runs" / study, runs / study,
            ignore=shutil.ignore_patterns("checkpoint*", "*.svg", "*.ipynb", ".*"),
        )  # fmt: skip
    if request.param == "all there":
        complete(runs)
    return Studies.load(runs, runs, "demo")


def directives(name: str) -> list[tuple[str, dict[str, str]]]:
    found = re.findall(rf"```\{{{name}\}} (.+)\n((?::.*\n)*)```", PAGE)
    return [(words, dict(re.findall(r":(\S+): ?(.*)", options))) for words, options in found]


def table(studies: Studies, options: dict[str, str]) -> str:
    return book_tables.study_table(
        studies.rows("scaffold-seeds"), book_tables.titles("scaffold-seeds"),
        options["columns"].split(", "), [], {},
        against=options.get("against"), each="each" in options,
    )  # fmt: skip


def test_every_number_and_table_of_the_page_can_be_made(studies: Studies) -> None:
    for key in re.findall(r"\{record\}`([^`]+)`", PAGE):
        assert look_up(studies, key)
    tables = directives("study-table")
    assert len(tables) >= 7
    for words, options in tables:
        assert words == "scaffold-seeds"
        assert "RoPE" in table(studies, options) or options.get("against") == "rope"


def test_what_is_missing_is_said_and_nothing_once_all_is_there(studies: Studies) -> None:
    rows = studies.rows("scaffold-seeds")
    text = book_plans.missing_runs("scaffold-seeds", PLAN, rows)
    count = len(studies.runs["scaffold-seeds"])
    shown = table(studies, {"columns": "ppl"})
    if count == len(PLAN):
        assert text.startswith("All 30 runs of the study are recorded.")
        assert "trained again from its recipe" in text
        assert "No run yet" not in shown
        assert shown.count("| 0, 1, 2 ") == 10 + 1
    else:
        assert text.startswith(f"Of 30 planned runs {count} are recorded.")
        assert "Missing are:" in text
        named = re.findall(r"^- .*: seeds? (.*)$", text, flags=re.M)
        assert sum(len(seeds.split(", ")) for seeds in named) == 30 - count
        assert "pe study scaffold-seeds" in text


def test_the_command_for_what_is_missing_names_these_runs_and_no_other(studies: Studies) -> None:
    rows = dict(studies.rows("scaffold-seeds"))
    lost = [rows.pop("rope"), rows["pope"]]
    rows["pope"] = rows["pope"].of([0])
    text = book_plans.missing_runs("scaffold-seeds", PLAN, rows)
    (command,) = re.findall(r"```bash\n(.*?)\n```", text, flags=re.S)
    program, verb, *words = shlex.split(command.replace("\\\n", " "))
    assert (program, verb) == ("pe", "study")
    wanted = [run.name for run in lost[0].runs] + [run.name for run in lost[1].runs[1:]]
    assert sorted(planned.name for planned in load_plans(words)) == sorted(wanted)


def test_cells_are_the_records_own_numbers(studies: Studies) -> None:
    rows = studies.rows("scaffold-seeds")
    values: list[float] = []
    for run in rows["pope"].runs:
        evaluated: dict[str, Any] = json.loads((run.directory / "evaluation.json").read_text())
        values.append(evaluated["perplexity"]["16384"]["value"])
    each = table(studies, {"columns": "ppl@16x", "each": ""})
    shown = [line[2] for line in book_records.lines(each) if line[0].startswith("PoPE, seed")]
    assert [float(text) for text in shown] == pytest.approx(values, rel=0.005)
    mean = 1.0
    for value in values:
        mean *= value ** (1 / len(values))
    first = re.search(r"^\| PoPE .* ([\d.]+)<br>", table(studies, {"columns": "ppl@16x"}), re.M)
    assert first
    assert float(first[1]) == pytest.approx(mean, rel=0.005)


def test_an_unknown_row_names_the_nearest(studies: Studies) -> None:
    rows = studies.rows("scaffold-seeds")
    with pytest.raises(ValueError, match=r"unknown row 'rpoe' \(did you mean 'rope'\?\)"):
        book_tables.study_table(rows, {}, ["ppl"], ["rpoe"], {})
