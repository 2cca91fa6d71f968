"""The chapters on invention, relative terms, models, practice, temperature and dimensions: their
code runs, their numbers come out, and the table of models is what transformers has."""

from __future__ import annotations

import functools
import itertools
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pe
from pe.encodings.core.extension import Rotary, raised_base
from pe.encodings.core.presets import PRESETS

ROOT = Path(__file__).parents[1]
import book_models  # noqa: E402
from pictures import invent, practice, temperature, who  # noqa: E402

CHAPTERS = ("invent", "relative", "who", "practice", "temperature", "dimensions")
CODE = re.compile(r"^( *)```python\n(.*?)^\1```$", re.M | re.S)


def page(name: str) -> str:
    return (ROOT / "book" / f"{name}.md").read_text("utf-8")


def run_code(name: str) -> dict[str, Any]:
    """Run all Python of a page in its order, solutions included; the names that are left."""
    names: dict[str, Any] = {}
    for indent, text in CODE.findall(page(name)):
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        exec(compile("\n".join(lines), f"{name}.md", "exec"), names)
    return names


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_code_of_a_chapter_runs_and_its_solutions_hold(name: str) -> None:
    run_code(name)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_has_two_exercises_each_with_a_folded_solution(name: str) -> None:
    exercises = page(name).split("## Exercises\n")[1]
    assert re.findall(r"^(\d)\. |^:::\{dropdown\} (\w+)$", exercises, re.M) == [
        ("1", ""), ("", "Solution"), ("2", ""), ("", "Solution")
    ]  # fmt: skip
    assert "assert" in exercises


# ---------------------------------------------------------------- how you would invent it


def test_a_position_added_as_a_number_drowns_the_word() -> None:
    assert float(invent.word_left(torch.tensor(500))) == pytest.approx(0.016, abs=5e-5)


def test_seven_is_closer_to_fifteen_than_to_eight_in_bits() -> None:
    bits = invent.bits(16, 4)
    assert [int((bits[7] != bits[p]).sum()) for p in (8, 15)] == [4, 1]


def test_the_code_of_a_clock_knows_the_difference_and_the_sum_does_not() -> None:
    speeds = torch.tensor([1, 0.1], dtype=torch.float64)

    def code(p: int) -> torch.Tensor:
        return torch.stack([(p * speeds).cos(), (p * speeds).sin()], dim=-1).flatten()

    assert code(3).tolist() == pytest.approx([-0.990, 0.141, 0.955, 0.296], abs=5e-4)
    assert code(5).tolist() == pytest.approx([0.284, -0.959, 0.878, 0.479], abs=5e-4)
    assert float(code(3) @ code(5)) == pytest.approx(0.564, abs=5e-4)
    torch.testing.assert_close(code(103) @ code(105), code(3) @ code(5))
    logits = invent.added_logit(torch.tensor([1.0, 4.0], dtype=torch.float64)).tolist()
    assert logits == pytest.approx([3.081, -0.103], abs=6e-4)


def test_a_slow_hand_meets_angles_that_training_never_showed() -> None:
    assert math.cos(0.1 * (invent.TRAINED - 1)) == pytest.approx(0.071, abs=5e-4)
    assert math.cos(0.1 * invent.FAR) == pytest.approx(-0.654, abs=5e-4)


# ---------------------------------------------------------------- relative terms


def test_debertas_logits_are_those_of_its_code() -> None:
    """And the third term goes by i - j there, where the paper has j - i."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    config = transformers.DebertaV2Config(
        hidden_size=8, num_attention_heads=1, relative_attention=True, pos_att_type=["c2p", "p2c"],
        max_relative_positions=4, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    module = DisentangledSelfAttention(config).eval()
    x, vectors = torch.randn(1, 6, 8), torch.randn(8, 8)
    whole = torch.ones(1, 1, 6, 6)
    with torch.no_grad():
        _, weights = module(x, whole, output_attentions=True, rel_embeddings=vectors)
        q, k = module.query_proj(x[0]), module.key_proj(x[0])
        distance = torch.arange(6)[:, None] - torch.arange(6)
        keys, queries = module.pos_key_proj(vectors), module.pos_query_proj(vectors)

        def logits(third: torch.Tensor) -> torch.Tensor:
            content = torch.einsum("id,ijd->ij", q, keys[(distance + 4).clamp(0, 7)])
            place = torch.einsum("jd,ijd->ij", k, queries[(third + 4).clamp(0, 7)])
            return (q @ k.T + content + place) / math.sqrt(3 * 8)

        torch.testing.assert_close(weights.view(6, 6), logits(distance).softmax(-1))
        assert not torch.allclose(weights.view(6, 6), logits(-distance).softmax(-1), atol=1e-3)


def test_transformer_xl_and_shaw_are_the_selections_that_the_page_writes() -> None:
    names = run_code("relative")
    q, k, r = (torch.randn(5, 3, dtype=torch.float64) for _ in range(3))
    u, v = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    found = names["transformer_xl"](q, k, r, u, v)
    for i in range(5):
        for j in range(i + 1):
            terms = q[i] @ k[j] + q[i] @ r[i - j] + u @ k[j] + v @ r[i - j]
            torch.testing.assert_close(found[i, j], terms)


# ---------------------------------------------------------------- who uses what


@functools.cache
def defaults(name: str) -> Any:
    return getattr(transformers, name)()


def looked_up(config: Any, path: str) -> Any:
    for part in path.split("."):
        if part.isdigit():
            config = config[int(part)]
        else:
            config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


CELLS = [
    pytest.param(model, entry, id=f"{model['name']}-{column}-{number}")
    for model in book_models.ledger()["models"]
    for column in book_models.COLUMNS
    for number, entry in enumerate(book_models.entries(model, column))
]
MODELS = Path(transformers.__file__).parent / "models"


@pytest.mark.parametrize(("model", "cell"), CELLS)
def test_a_cell_of_the_table_of_models_is_what_its_source_has(
    model: dict[str, Any], cell: dict[str, Any]
) -> None:
    book_models.source(cell)
    if "config" in cell:
        assert looked_up(defaults(model["class"]), cell["config"]) == cell["equals"]
    elif "preset" in cell:
        assert cell["has"] in PRESETS[cell["preset"]].spec
    elif "code" in cell:
        text = (MODELS / cell["code"]).read_text("utf-8")
        assert cell["has"] in text if "has" in cell else cell["lacks"] not in text
    else:
        assert re.fullmatch(r"\d{4}\.\d{5}", cell["paper"])


def test_numbers_that_a_cell_says_are_those_that_are_compared() -> None:
    for _, cell in (param.values for param in CELLS):
        if isinstance(cell.get("equals"), int | float) and re.match(r"[\d,]+\b", cell["says"]):
            said = float(re.match(r"[\d,]+", cell["says"])[0].replace(",", ""))  # type: ignore[index]
            assert said == cell["equals"], cell


def test_years_without_a_paper_are_those_of_transformers_files() -> None:
    # a report without arXiv id; the preset's name; pages of transformers' documentation
    told_elsewhere = {"GPT-2", "Command A", "MiMo-V2-Flash", "Qwen3.5"}
    for model in book_models.ledger()["models"]:
        if "year" in model and model["name"] not in told_elsewhere:
            file = Path(sys.modules[type(defaults(model["class"])).__module__].__file__ or "")
            assert f"Copyright {model['year']}" in file.read_text("utf-8"), model["name"]
    assert "03-2025" in PRESETS["command_a"].model


def test_a_cell_without_a_source_or_with_two_is_refused() -> None:
    for cell in ({"says": "RoPE"}, {"says": "RoPE", "paper": "2104.09864", "config": "x"}):
        with pytest.raises(ValueError, match="one of config, code, preset or paper"):
            book_models.source(cell)


def test_the_table_has_every_model_once_and_oldest_first() -> None:
    lines = book_models.table().splitlines()[2:]
    assert len(lines) == len(book_models.ledger()["models"])
    years = [int(line.split("|")[2]) for line in lines]
    assert years == sorted(years)


def test_names_on_the_timeline_do_not_touch_and_lead_to_pages() -> None:
    for methods in book_models.ledger()["methods"].values():
        places = who.placed([book_models.when(one) for one in methods])
        assert all(b - a >= who.APART - 1e-9 for a, b in itertools.pairwise(places))
        assert places[-1] <= who.YEARS[1] + 0.3
        for one in methods:
            assert (ROOT / "book" / f"{one['page']}.md").exists()


# ---------------------------------------------------------------- practice


def test_the_base_that_the_page_computes_is_the_one_that_runs_have() -> None:
    turns = [2 * math.pi * 1e4 ** (2 * i / 64) for i in (17, 18)]
    assert [round(tokens) for tokens in turns] == [838, 1117]
    base = raised_base(Rotary(1e4, 64, 1024), 4.0)
    assert base == pytest.approx(117_600, abs=50)


def test_the_least_base_of_the_fit_as_both_pages_state_it() -> None:
    found = practice.least_base(torch.tensor([2048.0, 4096, 8192, 32768, 131072]).double())
    stated = [10_400, 32_200, 99_600, 951_700, 9.1e6]
    assert found.tolist() == pytest.approx(stated, rel=5e-3)


def test_a_window_s_share_of_the_cache_and_a_silent_head() -> None:
    assert pytest.approx(0.27, abs=5e-3) == (3 * 4096 + 131072) / (4 * 131072)
    sink = pe.encoding("nope+sink", head_dim=4, num_heads=1, sink_init=3.0)
    zeros = torch.zeros(1, 1, 3, 4)
    out = pe.attend(sink, zeros, zeros, torch.ones(1, 1, 3, 4))
    assert float(out[0, 0, -1, 0].detach()) == pytest.approx(3 * 0.043, abs=2e-3)


# ---------------------------------------------------------------- temperature


def test_the_factors_of_the_table_at_16_times_the_length() -> None:
    ratio = torch.tensor([16.0], dtype=torch.float64)
    stated = {"none": 1, "1 + ln r / 8": 1.35, "YaRN": 1.63, "LongRoPE": 1.33, "Llama 4": 1.28}
    assert stated.keys() == temperature.RULES.keys()
    for name, (_, _, rule) in temperature.RULES.items():
        assert float(rule(ratio)) == pytest.approx(stated[name], abs=5e-3), name
    assert 1 + 0.412 * math.log(16) == pytest.approx(2.14, abs=5e-3)
    assert 1 + 0.103 * math.log(16) == pytest.approx(1.29, abs=5e-3)
    assert math.log(16 * 1024) / math.log(1024) == pytest.approx(1.40, abs=5e-3)


def test_the_lead_beside_a_factor_is_the_one_that_it_keeps_at_16_times_the_length() -> None:
    rows = re.findall(r"\| (\d\.\d\d) \| (\d+\.\d) \|$", page("temperature"), re.M)
    assert len(rows) == 7
    for factor, lead in rows:
        assert math.log(16) / (float(factor) - 1) == pytest.approx(float(lead), rel=0.02), factor


def test_the_factors_are_those_of_the_encodings() -> None:
    rules = temperature.RULES
    yarn = pe.encoding("yarn", head_dim=8, num_heads=1, factor=16.0, original_length=4096)
    longrope = pe.encoding("longrope", head_dim=8, num_heads=1, factor=16.0, original_length=4096)
    for name, enc in (("YaRN", yarn), ("LongRoPE", longrope)):
        vector = torch.ones(1, 1, 1, 8)
        q, k = enc.rotate(vector, vector, torch.zeros(1).long(), torch.zeros(1).long())
        gained = float((q * k).sum()) / 8
        wanted = float(rules[name][2](torch.tensor([16.0], dtype=torch.float64)))
        assert gained == pytest.approx(wanted, rel=1e-5), name


def test_no_temperature_keeps_a_key_that_is_no_longer_the_best() -> None:
    factors = torch.linspace(0.5, 8, 2000, dtype=torch.float64)
    most = float((factors * 8 - factors**2 * 4 / 2).max())
    assert math.exp(most) == pytest.approx(2981, rel=1e-3)
    assert 2 * math.sqrt(2 * math.log(2981)) == pytest.approx(8, abs=1e-3)


# ---------------------------------------------------------------- dimensions


def test_angles_of_images_and_text_are_those_of_two_released_models() -> None:
    from transformers.models.qwen2_vl import modeling_qwen2_vl as two
    from transformers.models.qwen3_vl import modeling_qwen3_vl as three

    names = run_code("dimensions")
    positions = torch.cat([torch.arange(3).expand(3, 3), names["image"]], dim=1)
    sizes = {"hidden_size": 256, "num_attention_heads": 2}
    rope = {"rope_type": "default", "rope_theta": 1e6}
    for module, config, sections, interleaved in (
        (two.Qwen2VLRotaryEmbedding, transformers.Qwen2VLTextConfig, (16, 24, 24), False),
        (three.Qwen3VLTextRotaryEmbedding, transformers.Qwen3VLTextConfig, (24, 20, 20), True),
    ):
        rotary = module(config(**sizes, head_dim=128, rope_parameters=dict(rope)))
        cos, _ = rotary(torch.zeros(1, dtype=torch.float32), positions[:, None])
        mine = names["angles"](positions, 1e6, sections, interleaved).cos()
        torch.testing.assert_close(cos[0, :, :64].double(), mine, atol=1e-5, rtol=0)


def test_axial_rotation_knows_two_differences_and_no_place() -> None:
    speeds = torch.tensor([1, 0.1], dtype=torch.float64)
    for query, key in (((2, 1), (0, 4)), ((7, 6), (5, 9))):
        down, right = query[0] - key[0], query[1] - key[1]
        logit = float((down * speeds).cos().sum() + (right * speeds).cos().sum())
        assert logit == pytest.approx(0.529, abs=1e-3)
    fastest = [32 * 1e6 ** (-i / 64) for i in (0, 16, 40)]
    assert fastest == pytest.approx([32, 1.01, 0.0057], abs=3e-3)
    kernels = practice.kernels()
    middle = practice.SIDE // 2
    below, beside = kernels["axial"][middle + 1, middle], kernels["axial"][middle, middle + 1]
    torch.testing.assert_close(below, beside)
    assert kernels["row by row"][middle + 1, middle] < kernels["row by row"][middle, middle + 1]
