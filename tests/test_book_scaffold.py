"""The pages of the scaffold study: numbers come from records, rows and figures name runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import book_site
import pytest
import yaml
from book_records import committed
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parent.parent
from book_explorer_data import Pages  # noqa: E402
from book_numbers import look_up  # noqa: E402
from book_pictures import record_figures  # noqa: E402
from book_plans import there  # noqa: E402
from book_record_pages import record_page  # noqa: E402

from pe.recipes.named import recipe as named_recipe  # noqa: E402
from pe.results import intervals  # noqa: E402
from pe.results import rows as results  # noqa: E402
from pe.results.beyond import beyond_table  # noqa: E402
from pe.results.difference import NO_DIFFERENCE, write_difference  # noqa: E402
from pe.results.measure import beside_cutting, cut, measure  # noqa: E402
from pe.results.quantities import windows  # noqa: E402
from pe.speed.record import Speed, find  # noqa: E402

PAGES = (
    "scaffold", "seeds", "paper", "extended", "finetuned", "every", "dropped", "rerun", "tasks",
)  # fmt: skip


def recorded(label: str) -> tuple[dict, dict]:
    """run.json and evaluation.json of a row, read without the code under test."""
    folder = ROOT / "runs" / "scaffold" / committed().rows("scaffold")[label].runs[0].name
    return (json.loads((folder / f"{name}.json").read_text()) for name in ("run", "evaluation"))  # type: ignore[return-value]


def test_numbers_of_a_study_are_asked_for_by_the_names_of_its_yaml() -> None:
    record, evaluation = recorded("rope-dropped-at-10")
    assert (record["pe"], record["parent"]["step"]) == ("nope", 5000)
    wanted = evaluation["perplexity"]["4096"]["value"]
    assert look_up(committed(), "scaffold/rope-dropped-at-10.ppl@4x") == f"{wanted:,.0f}"
    assert look_up(committed(), "scaffold/rope-dropped-at-10.recipe.start_step") == "5,000"
    assert look_up(committed(), "scaffold/rope-dropped-at-10.title") == "RoPE, dropped at 5,000"
    right = sum(evaluation["retrieval"]["tasks"]["needle"]["1024"]["exact"])
    text = look_up(committed(), "scaffold/rope-dropped-at-10.needle@1x")
    assert re.fullmatch(rf"{100 * right / 110:.0f}% \(\d+–\d+\)", text)
    assert look_up(committed(), "scaffold/rope-dropped-at-10.needle@1x:.0%") == f"{right / 110:.0%}"
    before = float(look_up(committed(), "scaffold/rope-dropped-at-10.before"))
    assert before > float(look_up(committed(), "scaffold/rope-dropped-at-10.validation_loss")) + 1
    fit = evaluation["tempered"]["fit"]["value"]
    assert look_up(committed(), "scaffold/rope-dropped-at-10.c") == f"{fit:.2f}"


def test_extensions_ratios_and_facts_of_the_study() -> None:
    cells = json.loads(
        next((ROOT / "runs" / "scaffold").glob("rope-*/extension.json")).read_text()
    )["cells"]
    value = cells["yarn@4"]["perplexity"]["4096"]["value"]
    assert look_up(committed(), "scaffold/rope.extension.yarn@4.ppl@4x:.3f") == f"{value:.3f}"
    ratio = look_up(committed(), "scaffold/rope.ppl@2x / scaffold/rope.ppl@1x:.2f")
    _, evaluation = recorded("rope")
    losses = evaluation["perplexity"]
    assert ratio == f"{losses['2048']['value'] / losses['1024']['value']:.2f}"
    assert look_up(committed(), "scaffold/study.runs") == "10"
    assert look_up(committed(), "scaffold/study.prompts") == "110"
    assert look_up(committed(), "scaffold/study.control_prompts") == f"{10 * 2 * 5 * 2 * 110:,}"
    assert look_up(committed(), "order.ppl@16x") == "PoPE ≈ RoPE ≈ NoPE < YaRN"
    with pytest.raises(ValueError, match="rows of one seed each are not ranked"):
        look_up(committed(), "scaffold/order.ppl@16x")
    with pytest.raises(ValueError, match="has no run of seed '7'"):
        look_up(committed(), "rope#7.ppl@1x")


def test_comparisons_are_words_and_never_call_overlap_a_difference() -> None:
    assert re.fullmatch(
        r"(lower|higher) by \d[\d.]*% \([\d.]+ to [\d.]+%\)",
        look_up(committed(), "scaffold/rope vs nope.ppl@1x"),
    )
    assert look_up(committed(), "scaffold/rope vs rope.ppl@1x") == "no difference shown"
    for key in re.findall(r"\{record\}`(scaffold/\S+ vs [^`]+)`", page("scaffold")):
        look_up(committed(), key)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("scaffold/rope-dropped-at-11.ppl@1x", "rope-dropped-at-1"),
        ("scaffold/rope.extension.yarn@5.ppl@4x", "yarn@"),
        ("scaffold/nope.extension.yarn@4.ppl@4x", r"extension\.json"),
        ("scaffold/rope.recipe.learning_rte", "learning_rate"),
        ("scaffold/rope vs rpoe.ppl@1x", "'rope'"),
        ("scaffold/rope.before", "first step"),
        ("scaffold/rope.title:.2f", "no number"),
    ],
)
def test_a_key_that_is_not_there_names_the_nearest(key: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        look_up(committed(), key)


def page(name: str) -> str:
    return (ROOT / "book" / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_no_result_is_typed_into_the_pages(name: str) -> None:
    """What is left when roles, code, formulas and multiples are taken out holds no measurement."""
    made = (
        "study-table|scaling|dropping-table|kept-and-dropped|missing-runs|extension|rerun|fine-tuned|"
        "settings|tasks"
    )
    text = re.sub(rf"```\{{({made})\}}.*?```", "", page(name), flags=re.S)
    text = re.sub(r"^(:(alt|name|class|columns):.*|```\{picture\} \S+)$", "", text, flags=re.M)
    text = re.sub(r"`{3,}", "", re.sub(r"```(bash|\{code-block\}).*?```", "", text, flags=re.S))
    text = re.sub(r"\{[a-z:-]+\}`[^`]*`|`[^`]*`|\$[^$]*\$|\(arXiv:[\d.]+\)", "", text)
    text = re.sub(r"\d+×|95%|\b100,000\b|factors? \d+|position 0|Llama 3|\bT5\b", "", text)
    left = re.findall(r"\d[\d.,]*", text)
    assert set(left) <= {"4"}, left  # the factor 4, explained as an example


def test_every_figure_of_the_study_is_drawn_from_its_runs() -> None:
    figures = record_figures(committed())
    shown = re.findall(r"```\{picture\} (scaffold-\S+)", page("scaffold") + page("extended"))
    assert len(shown) == 6
    for name in shown:
        runs, _ = figures[name]
        assert len(runs) == (1 if "extension" in name else 10)


def test_the_built_tables_hold_the_records(site: Path) -> None:
    soup = BeautifulSoup((site / "scaffold.html").read_text("utf-8"), "html.parser")
    tables = soup.select(".pe-results table")
    rows = committed().rows("scaffold")
    first = [
        [cell.get_text().strip() for cell in line.find_all(["td", "th"])]
        for line in tables[0].find_all("tr")
    ]
    assert [line[0] for line in first[1:-1]] == [row.title for row in rows.values()]
    for line, label in zip(first[1:-1], rows, strict=True):
        _, evaluation = recorded(label)
        wanted = [cell["value"] for cell in evaluation["perplexity"].values()]
        for text, value in zip(line[2:], wanted, strict=True):
            if value > 16384:
                assert text == "worse than guessing"
            else:
                assert float(text.replace(",", "")) == pytest.approx(value, rel=0.006)
    links = {a["href"] for a in tables[0].find_all("a")}
    assert links == {f"runs/scaffold/{row.runs[0].name}/train.html" for row in rows.values()}
    for figure in soup.select("article figure"):
        (caption,) = figure.select("figcaption")
        assert "Runs: scaffold/" in caption.get_text()


def test_every_row_can_be_run_again_from_its_page(site: Path) -> None:
    words = book_site.text(site / "rerun.html")
    for study in ("scaffold", "scaffold-seeds", "demo", "tiny"):
        for run in committed().runs[study]:
            record = run.read()
            assert " ".join(record["command"].split()) in words
            assert f"git checkout {record['code']['commit'][:12]}" in words
    extended = book_site.text(site / "extended.html")
    assert "YaRN + Resonance" in extended


def test_the_page_of_a_record_has_the_command_that_repeats_the_run() -> None:
    pages = Pages(ROOT / "book")
    for study in ("every", "rates"):
        run = committed().runs[study][0]
        soup = BeautifulSoup(record_page(run, pages), "html.parser")
        (lines,) = (pre.get_text() for pre in soup.find_all("pre"))
        commit, command = lines.split("\n")
        assert commit == f"git checkout {run.read()['code']['commit'][:12]}"
        assert command.startswith("papermill notebooks/train.ipynb -y ")
        values = yaml.safe_load(shlex.split(command)[3])
        assert values.pop("study") == study
        made = named_recipe(values.pop("recipe"), **values.pop("overrides"), **values)
        assert made.config_hash() == run.read()["config_hash"]


MEASURED = r"(?:cut\.)?(?:ppl|needle|passkey|multi\w+|validation_loss)\b"
RESULTS = sorted((ROOT / "book").rglob("*.md"), key=str)


def test_means_on_a_page_are_over_the_same_seeds() -> None:
    """A mean of two seeds beside one of three, or beside a single run, names its seeds."""
    for path in RESULTS:
        if "runs" in path.parts or "_build" in path.parts:
            continue
        keys = re.findall(
            rf"(?:^|[`\s])([\w-]+)/([\w@,.-]+?)\.{MEASURED}", path.read_text("utf-8"), flags=re.M
        )
        seeds: dict[str, set[tuple[int, ...]]] = {}
        for study, label in keys:
            if results.planned(study) and label in committed().rows(study):
                seeds.setdefault(study, set()).add(committed().rows(study)[label].seeds)
        assert all(len(of) == 1 for of in seeds.values()), (path.name, seeds)


def beside(study: str, label: str, kind: str, *multiples: int) -> set[str]:
    """The words of every recorded seed of a row at these lengths; none without a record."""
    rows = committed().rows(study)
    each = rows[label].each() if label in rows else []
    return {beside_cutting(row, f"{kind}@{m}x") for row in each for m in multiples}


def test_the_rates_of_every_are_the_best_that_were_tried_on_its_text() -> None:
    tried: dict[str, dict[float, float]] = {}
    for row in committed().rows("rates-packages").values():
        record = row.runs[0].record
        losses = tried.setdefault(record["recipe"]["pe"], {})
        losses[record["recipe"]["learning_rate"]] = record["training"]["validation_loss"]
    for name in ("nope", "rope", "alibi"):
        losses, run = tried[name], committed().rows("every")[name].runs[0]
        used = run.record["recipe"]["learning_rate"]
        assert min(losses, key=losses.__getitem__) == used
        assert min(losses) < used < max(losses)
    every = committed().rows("every")
    losses, run = tried["stickbreaking"], every["stickbreaking"].runs[0]
    used = run.record["recipe"]["learning_rate"]
    assert min(losses, key=losses.__getitem__) == pytest.approx(used / 3, rel=1e-3)
    short, long = every["stickbreaking@1e-3"].runs[0], run  # "the order is reversed"
    assert short.record["recipe"]["learning_rate"] == pytest.approx(used / 3, rel=1e-3)
    losses_of = [r.record["training"]["validation_loss"] for r in (long, short)]
    assert losses_of[0] < losses_of[1]
    assert every["lerope"].runs[0].record["recipe"]["learning_rate"] == pytest.approx(3e-3)
    assert tried["lerope"][0.003] < tried["lerope"][0.001]
    assert abs(tried["relative_content"][0.003] - tried["relative_content"][0.001]) < 0.002
    assert tried["head_scale"][0.001] < tried["head_scale"][0.003]
    assert every["head_scale"].runs[0].record["recipe"]["learning_rate"] == pytest.approx(1e-3)
    assert every["bam"].runs[0].record["recipe"]["learning_rate"] == pytest.approx(3e-3)
    assert 0 < tried["bam"][0.003] - tried["bam"][0.001] < 0.01  # "slightly better"
    dape = every["dape"].runs[0].record["recipe"]["learning_rate"]
    assert dape not in tried["dape"]  # "the two cannot be compared"


def test_what_every_says_of_dape_beside_all_other_rows() -> None:
    every = committed().rows("every")
    for m in (1, 2, 4, 8, 16):
        values = {label: measure(row.of([0]), f"ppl@{m}x").value for label, row in every.items()}
        assert min(values, key=lambda label: values[label] or 1e9) == "dape"
    losses = {
        label: [run.record["training"]["validation_loss"] for run in row.runs]
        for label, row in every.items()
    }
    assert min(min(values) for values in losses.values()) == losses["dape"][0]
    assert losses["rope"][0] - losses["dape"][0] > abs(losses["rope"][1] - losses["rope"][0])
    answered = {label for label, row in every.items()
                if measure(row, "multivalue@16x").value}  # fmt: skip
    assert answered == {"dape", "stickbreaking", "kerple_log"}
    (speed,) = (Speed(r.read()) for r in find(ROOT / "runs") if r.name == "h200-2")
    slower = speed.result("nope", "train", 1024)["tokens_per_second"]
    slower /= speed.result("dape", "train", 1024)["tokens_per_second"]
    assert 3.5 < slower < 4.5  # "about four times as long", in README and the ledger of claims


def test_what_pages_say_of_rope_at_the_training_length_holds_for_every_row_with_two_seeds() -> None:
    """choosing, every and README: no difference over seeds, and losses on one side of RoPE's."""
    every = committed().rows("every")
    several = [label for label, row in every.items() if len(row.seeds) > 1 and label != "rope"]
    assert several
    for label in several:
        assert write_difference(every[label], every["rope"], "ppl@1x") == NO_DIFFERENCE, label
    losses = {
        label: [run.record["training"]["validation_loss"] for run in row.runs]
        for label, row in every.items()
    }
    for label in ("stickbreaking", "t5", "kerple_log", "fox", "alibi"):
        assert all(a < b for a, b in zip(losses[label], losses["rope"], strict=True))
    first = {label: values[0] for label, values in losses.items()}
    between = ("stickbreaking", "kerple_log", "t5", "fox")
    assert all(first["fire"] < first[label] < first["alibi"] for label in between)


def untrained_yarn(study: str, method: str, parent: str, seed: int) -> bool:
    """Whether YaRN at 4x is shown to predict better than the unchanged model with its text cut."""
    longer, cut = (committed().rows(study)[label].of([seed]).runs[0] for label in (method, parent))
    both = intervals.paired(windows(longer, "ppl@4x"), windows(cut, "ppl@1x"))
    return intervals.mean_interval(both).high < 0


def untrained_yarn_is_worse(study: str) -> bool:
    """Whether YaRN at 4x, put on RoPE of English books, predicts worse than RoPE with cut text."""
    run = committed().rows(study)["rope"].of([0]).runs[0]
    cells = json.loads((run.directory / "extension.json").read_text())["cells"]
    longer = cells["yarn@4"]["perplexity"]["4096"]["window_nll"]
    both = intervals.paired(longer, windows(run, "ppl@1x"))
    return intervals.mean_interval(both).low > 0


def test_what_pages_say_beside_the_cut_text_holds_for_every_recorded_seed() -> None:
    """choosing, every, windows, the front page and README; whoever adds a seed reads them again."""
    for label in ("kerple_log", "fox", "bam"):
        assert beside("every", label, "ppl", 2, 4, 8, 16) == {"better"}
    for label in ("kerple_log", "t5"):
        assert beside("every", label, "multikey", 2, 4, 8, 16) == {"better"}
    assert beside("every", "t5", "ppl", 8, 16) == {"worse"}
    for label in ("stickbreaking", "stickbreaking@1e-3", "dape"):
        for quantity in ("ppl", "multikey"):
            assert beside("every", label, quantity, 2, 4, 8, 16) == {"better"}
    assert beside("every", "path", "ppl", 2, 4, 8) == {"better"}
    assert beside("every", "path", "ppl", 16) == {"undecided"}
    assert beside("every", "path", "multikey", 2, 4, 8, 16) == {"better"}
    assert beside("every", "relative_content", "ppl", 2, 4, 8, 16) == {"worse"}
    assert beside("every", "relative_content", "multikey", 2) == {"worse"}
    assert "better" not in beside("every", "relative_content", "multikey", 4, 8, 16)
    assert beside("every", "relative_content", "passkey", 2, 4, 8, 16) == {"better"}
    assert beside("every", "fire", "multikey", 2, 4, 8) == {"better"}
    assert beside("every", "fire", "ppl", 8, 16) == {"worse"}
    for label in ("rope", "nope", "fire", "alibi", "pope"):
        assert beside("every", label, "ppl", 16) == {"worse"}
        assert "better" not in beside("every", label, "multikey", 16)
    for label in ("alibi", "pope"):
        assert beside("every", label, "ppl", 2, 4, 8, 16) == {"worse"}
        assert beside("every", label, "multikey", 2, 4) == {"worse"}
        assert "better" not in beside("every", label, "multikey", 8)
    for label in ("fox", "bam"):
        assert beside("every", label, "multikey", 2, 4, 8, 16) == {"better"}
    assert beside("every", "lerope", "multikey", 2) == {"better"}
    assert beside("every", "sandwich", "ppl", 2) == {"undecided"}
    assert beside("every", "sandwich", "ppl", 4, 8, 16) == {"better"}
    assert beside("every", "sandwich", "multikey", 2, 4, 8, 16) == {"better"}
    every = committed().rows("every")
    assert beyond_table([every["learned"]]).count("no value") == 2, "nothing beyond its table"
    short = [one for label, row in every.items() if label != "rope@4096" for one in row.each()]
    worst = max(short, key=lambda one: measure(one, "ppl@1x").value or 0.0)
    assert worst.label == "randomized"  # "more than with any other encoding"
    for one in short:  # "nearly all passkey prompts ..., and at least nine multikey prompts of ten"
        if one.label != "randomized":
            assert (measure(one, "passkey@1x").value or 0.0) > 0.95, one.label
            assert (measure(one, "multikey@1x").value or 0.0) >= 0.9, one.label
    for label in ("ssmax", "nope"):  # "At eight times both are worse than guessing"
        assert (measure(every[label].of([0]), "ppl@8x").value or 0.0) > 16_384
    assert beside("every", "randomized", "ppl", 2) == {"undecided"}
    assert beside("every", "randomized", "ppl", 4, 8, 16) == {"worse"}
    for label in ("irope", "yarn", "sinusoidal", "partial", "p_rope", "ssmax"):
        for quantity in ("ppl", "multikey"):
            assert beside("every", label, quantity, 2, 4, 8, 16) == {"worse"}
    for label, wanted in {
        "kerple_log": [0.9, 0.5],
        "t5": [0.93, 0.91],
        "sandwich": [0.6],
    }.items():  # README: "nine of ten ... and half with another", "more than half"
        found = [measure(row, "multikey@16x").value for row in every[label].each()]
        assert found == pytest.approx(wanted, abs=0.03), label
    for label in ("lerope", "head_scale"):
        assert beside("every", label, "ppl", 4, 8, 16) == {"worse"}
        assert beside("every", label, "multikey", 4, 8, 16) == {"worse"}
    assert "better" not in beside("every", "xpos", "multikey", 2, 4, 8, 16)
    for label in ("nope-512", "nope-256", "nope-128", "nope-64"):
        assert beside("windows", label, "multikey", 2, 4, 8, 16) == {"better"}
        assert beside("windows", label, "ppl", 16) == {"worse"}
    for label in ("nope-256", "nope-128", "nope-64"):
        assert "worse" not in beside("windows", label, "ppl", 2, 4)
    for label in ("rope-1024", "rope-512", "rope-256", "rope-128", "rope-64"):
        assert "better" not in beside("windows", label, "multikey", 4, 8, 16)
        assert beside("windows", label, "ppl", 16) == {"worse"}
    for label in ("rope-512", "rope-256", "rope-128", "rope-64"):
        assert beside("windows", label, "multikey", 8, 16) == {"worse"}
    assert "better" not in beside("windows", "nope-1024", "multikey", 4, 8, 16)
    assert beside("windows", "nope-1024", "ppl", 16) == {"worse"}
    for label in ("command_a", "llama4", "gpt_oss"):
        assert beside("presets", label, "multikey", 2, 4, 8, 16) == {"better"}
    for label in ("smollm3", "ministral3", "qwen3_next"):
        assert beside("presets", label, "ppl", 2, 4, 8, 16) == {"worse"}
        assert beside("presets", label, "multikey", 2, 4, 8, 16) == {"worse"}
    assert "worse" not in beside("presets", "llama4", "ppl", 2, 4, 8, 16)
    assert beside("presets", "gpt_oss", "ppl", 4, 16) == {"worse"}
    assert beside("windows", "nope-full", "ppl", 2) == {"worse"}
    assert [
        untrained_yarn(study, method, parent, seed)
        for study, method, parent, seed in (
            ("dropping", "yarn-4x", "kept@3e-3", 0),
            ("extending", "yarn-0", "as-it-was", 0),
            ("extending", "yarn-0", "as-it-was", 1),
            ("presets", "yarn-4x", "rope", 0),
        )
    ] == [True, True, False, False]
    presets = committed().rows("presets")
    found = {
        m: {label: measure(row, f"multikey@{m}x").value for label, row in presets.items()}
        for m in (4, 16)
    }
    assert [max(found[m], key=lambda label: found[m][label] or 0.0) for m in (4, 16)] == [
        "yarn-4x", "yarn-16x",
    ]  # fmt: skip
    assert all(untrained_yarn_is_worse(study) for study in ("scaffold", "scaffold-seeds"))
    fox = committed().rows("every")["fox"].of([0]).runs[0]
    steps = [
        intervals.mean_interval(intervals.paired(*(windows(fox, f"ppl@{m}x") for m in pair)))
        for pair in ((2, 1), (4, 2), (8, 4), (16, 8))
    ]
    assert [step.high < 0 for step in steps] == [True, True, True, False]
    assert look_up(committed(), "every/t5#0.beside.ppl@16x") == "worse"
    with pytest.raises(ValueError, match="cannot be held against the cut text"):
        look_up(committed(), "every/t5#0.beside.ppl@1x")


def test_what_practice_says_of_yarn_holds_for_every_recorded_seed() -> None:
    """The list below the table of practice.md, and the sentences of README about the same study."""
    rows = committed().rows("extending")
    assert rows["yarn-0"].seeds == rows["yarn"].seeds == (0, 1), "read the page again"

    def value(label: str, quantity: str, seed: int) -> float:
        number = measure(rows[label].of([seed]), quantity).value
        assert number is not None
        return number

    for seed in (0, 1):
        share = measure(rows["yarn-0"].of([seed]), "multikey@4x")
        without = cut(rows["as-it-was"].of([seed]), "multikey@4x")
        assert without is not None
        assert share.interval is not None
        assert share.interval.low > 2 * without, "far more than cutting"
        assert value("yarn-0", "multikey@4x", seed) > value("abf-0", "multikey@4x", seed)
        assert value("yarn-0", "ppl@4x", seed) < value("abf-0", "ppl@4x", seed)
        trained = value("yarn", "multikey@1x", seed)
        assert abs(trained - value("yarn-0", "multikey@4x", seed)) < 0.05, "nearly as many"
        assert value("rope", "multikey@1x", seed) < trained / 2, "the same steps without a method"
        ends = value("yarn-0", "ppl@4x", seed), value("yarn", "ppl@1x", seed)
        after = value("yarn-100", "ppl@1x", seed)
        assert (ends[0] - after) / (ends[0] - ends[1]) == pytest.approx(0.5, abs=0.12)
        for label in ("pi", "ntk"):  # fail without training, at a factor that equals the length
            assert value(f"{label}-0", "multikey@4x", seed) < 0.01
        assert value("yarn", "ppl@2x", seed) > 5 * value("dynamic_yarn", "ppl@2x", seed)


def test_a_part_of_a_page_may_wait_for_a_seed() -> None:
    assert [run.read()["seed"] for run in there(committed(), "every/rope#1")] == [1]
    assert len(there(committed(), "every/rope")) == 2
    assert there(committed(), "every/rope#7") == []
