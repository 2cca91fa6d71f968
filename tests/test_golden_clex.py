"""CLEX against published code, configuration by configuration; and what it promises.

tests/golden holds what the authors' layer computes: ``*_f32`` as it is, ``*_f64`` the same code in
float64.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from golden_tools import build, error, given, golden
from torch import Tensor

from pe.encodings import encoding
from pe.encodings.clex import CLEX, stretched
from pe.encodings.core import clex_ode
from pe.encodings.rope import RoPE


def clex(config: str, **options: Any) -> tuple[RoPE, CLEX]:
    o = given("clex")[config]
    settings = {
        "theta": float(o["base"]), "original_length": o["max_position_embeddings"],
        "max_factor": o["max_factor"], "width": o["param_factor"], "act": o["act"],
        "steps": round(1 / o["time_dt"]), "time_base": 1e4,
    }  # fmt: skip
    enc = build("clex", o["dim"], **(settings | options))
    transform = enc.transforms[0]
    assert isinstance(transform, CLEX)
    with torch.no_grad():
        transform.up.copy_(golden("clex")[f"{config}W_up"])
        transform.down.copy_(golden("clex")[f"{config}W_down"])
    return enc, transform


EACH = pytest.mark.parametrize("config", ["c0__", "c1__", "c2__", "c3__"])


@EACH
@torch.no_grad()
def test_clex_frequencies_at_every_whole_t(config: str) -> None:
    arrays, (enc, transform) = golden("clex"), clex(config)
    lengths = transform.original_length * torch.arange(1, transform.max_factor + 1)[:, None]
    found = enc.frequencies(lengths).inv_freq
    torch.testing.assert_close(found, arrays[f"{config}inv_freq_by_t_f64"], rtol=1e-12, atol=0)
    # The authors solve in float32, in hundreds of steps.
    theirs = arrays[f"{config}inv_freq_by_t_f32"].double()
    torch.testing.assert_close(found, theirs, rtol=2e-5, atol=0)
    # Ten steps a unit, the default, are as good as a hundred for what float32 could tell.
    transform.steps = 10
    torch.testing.assert_close(enc.frequencies(lengths).inv_freq, found, rtol=2e-6, atol=0)


@EACH
def test_clex_velocity(config: str) -> None:
    enc, transform = clex(config)
    start = enc.frequencies().inv_freq.log()
    base = 1e4 ** -(torch.arange(8, dtype=torch.float64) / 8)
    v = clex_ode.Field(base.log(), transform.up.double(), transform.down.double(), transform.act)
    want = golden("clex")[f"{config}vector_field_at_t2.5_z=log_theta0_f64"]
    assert error(v.at(start, 2.5), want) < 1e-12


@EACH
@torch.no_grad()
def test_clex_tables_in_texts_of_any_length(config: str) -> None:
    arrays, (enc, transform) = golden("clex"), clex(config)
    lengths = given("clex")[config]["eval_lengths"]
    for length in lengths:
        positions = arrays[f"{config}len{length}__pos"]
        assert int(positions.max()) == length - 1
        tables = enc.prepare(positions, positions).tables[0]
        for table, name in zip(tables, ("cos", "sin"), strict=True):
            want = arrays[f"{config}len{length}__{name}_f32"][:, :8]
            # 3e-7 of a turn's error in their float32 frequencies, times the position
            assert error(table[0, 0], want) < 1e-6 + 1e-6 * length, length
    assert transform.max_factor * transform.original_length == lengths[-1] == enc.max_positions
    far = torch.arange(lengths[-1] + 1)
    with pytest.raises(ValueError, match="longest position"):
        enc.prepare(far, far)


@EACH
@torch.no_grad()
def test_clex_training_positions(config: str) -> None:
    arrays, (enc, transform) = golden("clex"), clex(config)
    n, t, reach = transform.original_length, torch.tensor(3), transform.reach
    order = torch.randperm(3 * n - 2, generator=torch.Generator().manual_seed(5))
    found = stretched(order, torch.tensor(n), t, n, reach)[:n]
    assert torch.equal(found, arrays[f"{config}train_t3_positions"])
    inv_freq = enc.frequencies(torch.tensor(3 * n)).inv_freq
    table = (found[:, None] * inv_freq).cos()
    assert error(table, arrays[f"{config}train_t3_cos_f32"][:, :8]) < 2e-4


@torch.no_grad()
def test_clex_begins_as_ntk_scaling() -> None:
    arrays, (enc, transform) = golden("clex"), clex("c0__")
    assert not transform.down.any()
    lengths = 64 * torch.arange(1, 9)
    found = enc.frequencies(lengths[:, None]).inv_freq
    closed = arrays["c0__ntk_closed_form_alpha_2t-1"]
    torch.testing.assert_close(found, closed, rtol=1e-9, atol=0)
    fresh = build("clex", 16, original_length=64)
    for t in (1, 2, 7, 16):
        ntk = build("ntk", 16, factor=2.0 * t - 1).frequencies().inv_freq
        own = fresh.frequencies(torch.tensor(64 * t)).inv_freq
        torch.testing.assert_close(own, ntk, rtol=3e-6, atol=0)


@torch.no_grad()
def test_the_network_sees_ropes_own_base_unless_told_otherwise() -> None:
    """The authors' layer shows it 10,000 whatever theta is; c3 has theta 500,000."""
    as_published = clex("c3__")[0].frequencies(torch.tensor(256)).inv_freq
    right = clex("c3__", time_base=None)[0].frequencies(torch.tensor(256)).inv_freq
    named = clex("c3__", time_base=5e5)[0].frequencies(torch.tensor(256)).inv_freq
    assert not torch.allclose(as_published, right, rtol=1e-3, atol=0)
    assert torch.equal(right, named)


@torch.no_grad()
def test_clex_is_rope_up_to_the_training_length_and_by_row_beyond() -> None:
    enc, _ = clex("c1__")
    plain = build("rope", 16).frequencies().inv_freq
    rows = enc.frequencies(torch.tensor([[64], [65], [128], [129]])).inv_freq
    assert torch.equal(rows[0], plain)
    assert torch.equal(rows[1], rows[2])
    assert not torch.equal(rows[2], rows[3])
    assert torch.equal(rows[3], enc.frequencies(torch.tensor(150)).inv_freq)


@pytest.mark.parametrize("act", clex_ode.ACTIVATIONS)
def test_the_gradient_by_steps_is_the_gradient(act: str) -> None:
    g = torch.Generator().manual_seed(0)
    start, origin = (torch.randn(4, generator=g, dtype=torch.float64) - 3 for _ in range(2))
    up, down = (torch.randn(*s, generator=g, dtype=torch.float64) / 3 for s in ((4, 8), (8, 4)))
    up.requires_grad_()
    down.requires_grad_()

    def ours(up: Tensor, down: Tensor, last: int = 4) -> Tensor:
        found: Tensor = clex_ode.solve(start, origin, up, down, torch.tensor(last), 4, 5, act)
        return found

    assert torch.autograd.gradcheck(ours, (up, down), fast_mode=True)
    # And the solution is that of the equation, step by step with autograd.
    v, z, rows = clex_ode.Field(origin, up, down, act), start, [start]
    for unit in (1, 2, 3):
        for n in range(5):
            z = clex_ode.stages(v, z, unit + n / 5, 1 / 5)[-1]
        rows.append(z)
    upstream = torch.randn(4, 4, generator=g, dtype=torch.float64)
    wanted = torch.autograd.grad((torch.stack(rows) * upstream).sum(), (up, down))
    found = torch.autograd.grad((ours(up, down) * upstream).sum(), (up, down))
    for a, b in zip(found, wanted, strict=True):
        assert error(a, b) < 1e-11
    assert torch.equal(ours(up, down)[:3], ours(up, down, last=3)[:3])
    torch.library.opcheck(
        clex_ode.solve, (start, origin, up, down, torch.tensor(3), 4, 5, act),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )  # fmt: skip


def test_clex_is_solved_once_a_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """DAMO-NLP-SG/CLEX#3: one solution for all layers, rows, queries and keys."""
    from model_tools import small, tokens

    from pe.encodings import clex as module

    solved: list[int] = []
    inner = module.solve

    def counted(*arguments: Any) -> Tensor:
        solved.append(int(arguments[4]))
        found: Tensor = inner(*arguments)
        return found

    monkeypatch.setattr(module, "solve", counted)
    model = small("clex", num_hidden_layers=3)
    mask = torch.ones(2, 60, dtype=torch.long)
    mask[0, :50] = 0
    with torch.no_grad():
        model(tokens(2, 60), attention_mask=mask, use_cache=False)
    assert solved == [3]  # ceil(60 / 24), as far as the longest row needs
    model.train()
    model(tokens(2, 24), shift_labels=tokens(2, 24)).loss.backward()
    assert len(solved) == 2


def test_clex_trains_on_places_that_differ_from_call_to_call_and_fit_the_text() -> None:
    enc = build("clex", 16, original_length=24, max_factor=4).train()
    torch.manual_seed(0)
    ends, stretch = set(), 0
    for _ in range(40):
        warp = enc.spectrum(torch.arange(24)).warp
        assert warp is not None
        places = warp[:24]
        assert places[0] == 0
        assert (places.diff() > 0).all()
        assert torch.equal(places, places.round())
        ends.add(int(places[-1]) + 1)
        stretch += not torch.equal(places, torch.arange(24).double())
    assert ends == {24, 48, 72, 96}  # t = 1 .. 4, and t = 1 leaves tokens where they are
    assert stretch < 40
    # Longer texts than L0 are squeezed by whole numbers.
    order = torch.randperm(24 * 16, generator=torch.Generator().manual_seed(1))
    places = stretched(order, torch.tensor(60), torch.tensor(2), 24, 96)[:60]
    assert places[-1] == 60 * 2 // 2 - 1
    assert (places[:-1].diff() > 0).all()
    assert set((2 * places[:-1]).frac().tolist()) == {0.0}


def test_all_places_are_equally_likely() -> None:
    """What is drawn is a set of n - 2 of the n t - 2 places between the ends."""
    counts = torch.zeros(14)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4000):
        order = torch.randperm(64, generator=generator)
        counts[stretched(order, torch.tensor(8), torch.tensor(2), 8, 32)[1:7].long() - 1] += 1
    share, want = counts / 4000, 6 / 14
    assert float(counts.sum()) == 4000 * 6
    assert ((share - want).abs() < 4 * math.sqrt(want * (1 - want) / 4000)).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clex", {"head_dim": 2}, "rotated width 2: CLEX keeps the first frequency"),
        ("clex", {"act": "relu"}, "act 'relu'"),
        ("clex", {"steps": 0}, "steps: expected"),
        ("clex", {"max_factor": 0}, "max_factor: expected"),
        ("clex+resonance", {}, "that clex learns, .*; leave out resonance or clex"),
        ("clex+yarn", {}, "both stretch"),
        ("clex+longrope", {}, "both stretch"),
    ],
)
def test_clex_refuses(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, **({"original_length": 64} | options))


def test_clex_has_the_width_of_what_turns() -> None:
    for name, options, pairs in (
        ("clex", {"rotary_fraction": 0.5}, 4), ("partial+clex", {}, 2), ("p_rope+clex", {}, 8),
    ):  # fmt: skip
        enc = build(name, 16, original_length=24, **options)
        assert [tuple(p.shape) for p in enc.parameters()] == [
            (pairs, 2 * pairs),
            (2 * pairs, pairs),
        ]


def test_clex_needs_the_length_that_it_extends_from() -> None:
    with pytest.raises(ValueError, match="'clex' needs original_length"):
        encoding("clex", head_dim=16, num_heads=2)
    assert CLEX(64).learns
