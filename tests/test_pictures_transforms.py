"""The numbers behind the pictures of frequency transforms, and what their pages state in words."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import pe

ROOT = Path(__file__).parents[1]
from pictures import (  # noqa: E402
    common,
    comparison_frequencies,
    dynamic_ntk,
    llama3,
    ntk,
    pi,
    resonance,
)

# ---------------------------------------------------------------- PI


def test_pi_reaches_the_angles_of_training_and_no_others() -> None:
    turns = pi.turns_reached(64, 2048, 8.0)
    torch.testing.assert_close(turns["PI"], turns["trained"])
    torch.testing.assert_close(turns["RoPE"], 8 * turns["trained"])


def test_pi_draws_ropes_kernel_eight_times_wider() -> None:
    wide, narrow = pi.kernel("pi", 64, 65, factor=8.0), pi.kernel("rope", 64, 9)
    torch.testing.assert_close(wide[::8], narrow)
    assert float(narrow[0]) == pytest.approx(1)


def test_the_bound_between_whole_distances_holds() -> None:
    omega = common.frequencies("rope", 64)
    amplitude, phase = common.randn(32, seed=1).abs(), common.randn(32, seed=2)
    x = torch.linspace(0, 200, 4001, dtype=torch.float64)
    z = (amplitude * (x[:, None] * omega + phase).cos()).sum(1)
    ends = z[::20]  # whole distances
    t = (x[:-1] % 1).view(200, 20)
    line = ends[:-1, None] * (1 - t) + ends[1:, None] * t
    gap = (z[:-1].view(200, 20) - line).abs().max()
    assert 0 < float(gap) <= float((amplitude * omega**2).sum()) / 8
    squares = common.frequencies("rope", 128) ** 2
    assert int((squares <= 1e-4 * (1 + 1e-12)).sum()) == 32  # half of the 64 pairs


def test_two_slow_pairs_can_be_small_in_training_and_large_beyond() -> None:
    """Exercise 2 of the page has an answer."""
    omega = common.frequencies("rope", 64)
    a, b = omega[25], omega[24]
    assert b * 256 < 1
    x = torch.arange(2048, dtype=torch.float64)
    difference = (a * x).cos() - (b * x).cos()
    z = difference / difference[:257].abs().max()
    assert z[:257].abs().max() <= 1
    assert z.abs().max() > 10


# ---------------------------------------------------------------- NTK


def test_which_pairs_ntk_leads_to_new_angles() -> None:
    assert ntk.first_open_pair(128, 4096) == 46
    reach = {alpha: 4 * ntk.ntk_ratio(128, alpha) for alpha in (4.0, 8.0, 16.0)}
    assert (reach[4.0][:-1] > 1).all()
    assert float(reach[4.0][-1]) == pytest.approx(1)
    assert int((reach[8.0] < 1 - 1e-9).nonzero()[0]) == 43
    assert int((reach[16.0] < 1).nonzero()[0]) == 32
    needed = 4 ** (126 / (2 * 46))
    assert needed == pytest.approx(6.7, abs=0.05)
    assert float(4 * ntk.ntk_ratio(128, needed)[46]) == pytest.approx(1)
    assert float(ntk.ntk_ratio(128, 8.0)[21]) == pytest.approx(1 / 2)  # exercise 2


# ---------------------------------------------------------------- dynamic NTK


def test_alpha_as_drawn() -> None:
    from pe.encodings.dynamic_ntk import DynamicNTK

    ends = [float(DynamicNTK(2048, s).alpha(torch.tensor(8 * 2048))) for s in (1.0, 2.0, 4.0)]
    assert ends == [8, 15, 29]
    assert float(DynamicNTK(2048, 2.0).alpha(torch.tensor(2 * 2048))) == 3
    rows = dynamic_ntk.ratios_by_length(64, 2048, 2.0, 2048 * torch.tensor([1, 2, 4, 8]))
    assert (rows[0] == 1).all()
    torch.testing.assert_close(rows[:, -1], 1 / torch.tensor([1, 3, 7, 15]).double())


def test_raw_keys_make_decoding_exact_and_turned_ones_do_not() -> None:
    errors = dynamic_ntk.decoding_errors()
    assert errors["raw"].max() < 1e-12
    assert errors["stale"][:32].max() < 1e-12
    assert errors["stale"][64:].mean() > 1


# ---------------------------------------------------------------- Llama 3


def test_llama3s_ramp_beside_yarns() -> None:
    numbers = llama3.ramp_numbers()
    for name, last_kept, inside in (("llama3", 28, 6), ("yarn", 18, 16)):
        ratio = numbers[name]
        kept, slowed = ratio == 1, (ratio - 1 / 8).abs() < 1e-12
        assert int(kept.sum()) == last_kept + 1
        assert int((~kept & ~slowed).sum()) == inside
        assert int(slowed.nonzero()[0]) == 35
    turns, new = numbers["turns"], 8 * numbers["turns"] * numbers["llama3"]
    keep = ((turns - 1) / 3).clamp(0, 1)
    torch.testing.assert_close(new, turns * (1 + 7 * keep))
    assert (new.diff() < 0).all()  # no two pairs change places


# ---------------------------------------------------------------- Resonance


def test_resonance_closes_the_gap_of_the_pairs_that_turned() -> None:
    step = common.frequencies("rope", 64)
    gaps = {name: resonance.gaps(name) / step for name in ("rope", "resonance")}
    assert int((2 * math.pi / step > 256).nonzero()[0]) == 13
    assert gaps["resonance"][:13].max() == 0
    assert gaps["rope"][:13].min() > 0.01
    assert gaps["rope"][:13].max() <= 0.5
    assert gaps["resonance"][13:].min() > 1


def test_what_rounding_changes() -> None:
    change = 100 * resonance.changes(64)
    assert [round(float(c), 1) for c in change[:2]] == [4.7, 4.7]
    assert float(change[2:7].min()) > -0.7
    assert float(change[2:7].max()) < 2
    assert change[14:].abs().max() < 0.15
    period = resonance.wavelengths("resonance", 64)
    assert period[:6].tolist() == [6, 8, 11, 15, 20, 26]
    assert (change.abs() / 100 <= 1 / (2 * period)).all()


def test_the_exercise_on_a_gap_of_a_third_of_a_token() -> None:
    length = 2 * math.pi / float(common.frequencies("rope", 64)[6])
    assert length == pytest.approx(35.33, abs=0.005)
    gaps = {
        p: min(abs(p - n - k * length) for n in range(64) for k in range(-1, 5)) for p in (64, 106)
    }
    assert gaps[64] == pytest.approx(1 / 3, abs=0.01)
    assert gaps[106] < 0.002


# ---------------------------------------------------------------- side by side


def test_what_the_table_beside_the_picture_says() -> None:
    rope = common.frequencies("rope", comparison_frequencies.HEAD_DIM)
    turns = comparison_frequencies.LENGTH * rope / (2 * math.pi)
    assert int((turns < 1).nonzero()[0]) == 46
    found = comparison_frequencies.ratios()
    reach = {name: 8 * ratio[46:] for name, ratio in found.items()}
    for name in ("pi", "yarn", "llama3"):
        assert (reach[name] <= 1 + 1e-12).all(), name
    assert (reach["ntk"][:-1] > 1).all()
    assert float(reach["ntk"][-1]) == pytest.approx(1)
    assert (2 * found["dynamic_ntk"][46:-1] > 1).all()  # at twice the length
    assert float(2 * found["dynamic_ntk"][-1]) == pytest.approx(1)
    assert (found["yarn"][:21] == 1).all()
    assert found["yarn"][21] < 1
    assert int(((found["yarn"] - 1 / 8).abs() < 1e-12).nonzero()[0]) == 46
    assert (found["llama3"][:36] == 1).all()
    assert found["llama3"][36] < 1
    assert int(((found["llama3"] - 1 / 8).abs() < 1e-12).nonzero()[0]) == 46
    assert (found["resonance"] - 1).abs().max() < 0.05
    example, yarn = found["longrope"], found["yarn"]
    assert (example[:21] == 1).all()
    assert (example[21:46] < yarn[21:46]).all()
    torch.testing.assert_close(example[46:], yarn[46:])
    far = torch.tensor(8 * comparison_frequencies.LENGTH)
    enc = pe.encoding("dynamic_ntk", head_dim=128, num_heads=1, original_length=4096)
    ratio = enc.frequencies(far).inv_freq / rope  # type: ignore[operator]
    torch.testing.assert_close(ratio, found["ntk"])
