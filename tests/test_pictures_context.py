"""What the pages on FIRE, CoPE and FoX state in numbers, and their pictures' curves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pe.encodings import encoding
from pe.encodings.cope import CoPE

ROOT = Path(__file__).parents[1]
from pictures import cope, fire, fox  # noqa: E402

# ---------------------------------------------------------------- FIRE


def psi(x: float, c: float = 0.1) -> float:
    return math.log1p(c * x)


def test_a_query_past_the_threshold_sees_its_text_as_one_of_the_threshold() -> None:
    power = psi(256) / psi(4096)
    assert power == pytest.approx(0.545, abs=5e-4)
    within, beyond = fire.share_numbers(256), fire.share_numbers(4096)
    for distance, stated in ((1, 0.53), (100, 27.0), (4096, 256.0)):
        seen = ((1 + 0.1 * distance) ** power - 1) / 0.1
        assert seen == pytest.approx(stated, rel=0.01)
        assert float(beyond[distance]) == pytest.approx(psi(seen) / psi(256), abs=1e-6)
    assert float(within[-1]) == pytest.approx(1, abs=1e-6)
    short = fire.share_numbers(64)
    torch.testing.assert_close(short, within[:65])
    assert float(short[-1]) == pytest.approx(0.61, abs=5e-3)


def test_the_first_step_loses_a_factor_of_2_7_where_plain_shares_lose_256() -> None:
    near, far = float(fire.share_numbers(256)[1]), float(fire.share_numbers(65_536)[1])
    assert near == pytest.approx(0.029, abs=5e-4)
    assert far == pytest.approx(0.011, abs=5e-4)
    assert near / far == pytest.approx(2.7, abs=0.05)


def test_a_threshold_above_the_training_length_leaves_shares_untrained() -> None:
    last = torch.tensor([255, 100_000])
    for threshold, stated in ((64, 1.0), (512, 0.83), (1024, 0.71)):
        trained, longer = fire.largest_numbers(last, threshold).tolist()
        assert trained == pytest.approx(stated, abs=5e-3)
        assert longer == pytest.approx(1, abs=1e-5)


def test_fire_has_as_many_numbers_as_its_page_says() -> None:
    enc = encoding("fire", head_dim=64, num_heads=8)
    assert sum(p.numel() for p in enc.parameters()) == 330


# ---------------------------------------------------------------- CoPE


@pytest.mark.parametrize(("name", "back"), [("short sentences", 7), ("long sentences", 15)])
def test_a_count_finds_the_second_last_mark(name: str, back: int) -> None:
    found = cope.counting_numbers(cope.TEXTS[name])
    last = len(found["counts"]) - 1
    assert int(found["marks"][-2]) == last - back
    assert int(found["weights"].argmax()) == last - back
    assert float(found["weights"].max()) > 0.99
    counts = found["counts"][found["marks"]].round().tolist()
    assert counts == [4, 3, 2, 1]


@pytest.mark.parametrize(("logit", "tokens"), [(8, 1500), (10, 11_000)])
def test_gates_of_that_logit_count_over_so_many_tokens(logit: float, tokens: int) -> None:
    shut = torch.full((1, 1, 1, 20_000), -float(logit)).sigmoid()
    wrong = CoPE(4, npos=64).counts(shut)[0, 0, 0].flip(0)
    assert int((wrong < 0.5).sum()) == pytest.approx(tokens, rel=0.02)


# ---------------------------------------------------------------- FoX


def test_a_start_at_0_remembers_next_to_nothing() -> None:
    shares = fox.reach_numbers(0.0)
    assert float(shares[0]) == pytest.approx(0.5, abs=1e-6)
    assert float(shares[9]) == pytest.approx(0.999, abs=5e-5)
    for gate_bias, stated in ((2.0, 5.5), (5.0, 103.0)):
        half = math.log(2) / math.log1p(math.exp(-gate_bias))
        assert half == pytest.approx(stated, rel=0.01)
        keys = int((fox.reach_numbers(gate_bias) < 0.5).sum()) + 1
        assert half <= keys < half + 1.1


def test_a_token_that_forgets_damps_what_is_older_than_itself_by_one_factor() -> None:
    numbers = fox.forgetting_numbers()
    drop = numbers["cuts"] - numbers["alike"]
    each = math.log(fox.CUT / fox.GATE)
    for (first, last), stated in zip(((0, 40), (41, 90), (91, 127)), (0, each, 2 * each),
                                     strict=True):  # fmt: skip
        assert drop[first : last + 1].tolist() == pytest.approx(
            [stated] * (last - first + 1), abs=1e-5
        )


def test_sums_at_100_000_tokens_are_as_coarse_as_the_page_says() -> None:
    total = torch.tensor(-math.log(2) * 100_000, dtype=torch.float64)
    assert float(total) == pytest.approx(-69_315, abs=0.5)
    for dtype, stated in ((torch.float32, 0.0078), (torch.bfloat16, 512)):
        bits = torch.finfo(dtype).eps
        step = bits * 2.0 ** math.floor(math.log2(-float(total)))
        assert step == pytest.approx(stated, rel=0.01)
