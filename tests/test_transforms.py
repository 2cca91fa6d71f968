"""Frequency transforms: what each changes, at which lengths, and what it leaves to the last bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_tools import LENGTH, close, small, tokens
from test_generation import stepwise
from torch import Tensor

import pe
from pe.encodings import encoding
from pe.encodings.dynamic_ntk import DynamicNTK
from pe.encodings.frequencies import Frequencies, base_frequencies
from pe.encodings.llama3 import Llama3
from pe.encodings.resonance import Resonance
from pe.encodings.rope import RoPE

FAR = torch.tensor([0, 1, 5, 300, 4096, 65535, 99_999, 100_000])
L0 = 256


def build(spec: str, head_dim: int = 64, **options: Any) -> RoPE:
    sizes: dict[str, Any] = {"num_heads": 2, "original_length": L0}
    enc = encoding(spec, head_dim=head_dim, **(sizes | options))
    assert isinstance(enc, RoPE)
    return enc


def frequencies(spec: str, length: int | None = None, **options: Any) -> Tensor:
    given = None if length is None else torch.tensor(length)
    return build(spec, **options).frequencies(given).inv_freq


def turned(enc: RoPE, positions: Tensor) -> tuple[Tensor, Tensor]:
    q, k = (torch.randn(2, 2, positions.shape[-1], 64, generator=torch.Generator().manual_seed(s))
            for s in (0, 1))  # fmt: skip
    return enc.rotate(q, k, positions, positions)


def equal(a: RoPE, b: RoPE, positions: Tensor) -> bool:
    pairs = zip(turned(a, positions), turned(b, positions), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


# ---------------------------------------------------------------- a factor of 1


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("theta", [100.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("length", [3, 40, 256, 8192])
@pytest.mark.parametrize("name", ["pi", "ntk", "llama3", "yarn"])
def test_factor_one_is_rope_to_the_last_bit(
    name: str, length: int, theta: float, layout: str
) -> None:
    options: dict[str, Any] = {"theta": theta, "layout": layout, "original_length": length}
    rope, same = build("rope", **options), build(name, factor=1.0, **options)
    assert torch.equal(rope.inv_freq, same.inv_freq)
    assert equal(rope, same, FAR)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dynamic_ntk", {"factor": 1.0}),
        ("dynamic_ntk", {"factor": 8.0}),
        ("yarn", {"dynamic": True}),
    ],
)
def test_up_to_the_training_length_a_dynamic_one_is_rope_to_the_last_bit(
    name: str, options: dict[str, Any]
) -> None:
    rope, grows = build("rope"), build(name, **options)
    for length in (1, 2, L0 - 1, L0):
        assert equal(rope, grows, torch.arange(length))
    assert not equal(rope, grows, torch.arange(L0 + 1))
    assert torch.equal(rope.inv_freq, grows.frequencies().inv_freq)  # no length: that of training


# ---------------------------------------------------------------- PI, NTK, Llama 3


def test_pi_is_rope_at_positions_divided_by_the_factor() -> None:
    positions = torch.arange(0, 4000, 8)
    for a, b in zip(turned(build("pi", factor=8.0), positions),
                    turned(build("rope"), positions // 8), strict=True):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("head_dim", [4, 32, 64, 128])
@pytest.mark.parametrize("factor", [2.0, 16.0])
def test_ntk_is_rope_with_another_base(head_dim: int, factor: float) -> None:
    base = 10_000.0 * factor ** (head_dim / (head_dim - 2))
    ours = frequencies("ntk", head_dim=head_dim, factor=factor)
    torch.testing.assert_close(
        ours, frequencies("rope", head_dim=head_dim, theta=base), rtol=1e-12, atol=0
    )
    ratio = ours / frequencies("rope", head_dim=head_dim)
    assert float(ratio[0]) == 1
    assert float(ratio[-1]) == pytest.approx(1 / factor, rel=1e-12)


def test_ntk_counts_the_rotated_width_and_not_the_heads() -> None:
    half = frequencies("ntk", rotary_fraction=0.5)
    assert torch.equal(half, frequencies("ntk", head_dim=32))
    ratio = half / frequencies("rope", rotary_fraction=0.5)
    assert float(ratio[-1]) == pytest.approx(1 / 4, rel=1e-12)


def test_one_pair_cannot_be_kept_and_slowed() -> None:
    said = "rotated width 2: NTK-aware scaling keeps the first pair and slows the last"
    with pytest.raises(ValueError, match=said):
        build("ntk", head_dim=2)
    with pytest.raises(ValueError, match=said):
        build("ntk", head_dim=64, rotary_fraction=0.04)
    with pytest.raises(ValueError, match=said):
        build("dynamic_ntk", head_dim=2).frequencies()


def test_llama3_keeps_and_slows_by_turns_and_is_continuous() -> None:
    base = frequencies("rope", head_dim=128, theta=5e5)
    turns = 8192 * base / (2 * math.pi)
    ratio = frequencies("llama3", head_dim=128, theta=5e5, original_length=8192) / base
    assert (ratio[turns > 4] == 1).all()
    torch.testing.assert_close(ratio[turns < 1], torch.full_like(ratio[turns < 1], 1 / 8))
    between = (turns > 1) & (turns < 4)
    assert between.sum() > 2
    expected = 1 / 8 + (turns[between] - 1) / 3 * (1 - 1 / 8)
    torch.testing.assert_close(ratio[between], expected)
    assert (ratio.diff() <= 0).all()


def test_llama3s_bounds_belong_to_the_ramp_which_meets_both_ends() -> None:
    transform = Llama3(8192)
    exact = torch.tensor([4.0, 4.0 + 1e-9, 1.0, 1.0 - 1e-9], dtype=torch.float64)
    inv_freq = exact * 2 * math.pi / 8192
    ratio = transform(Frequencies(inv_freq, 1e4, 8)).inv_freq / inv_freq
    expected = torch.tensor([1, 1, 1 / 8, 1 / 8], dtype=torch.float64)
    torch.testing.assert_close(ratio, expected)


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        ("pi", {"factor": 0.5}, "factor: expected a finite number of at least 1.0, got 0.5"),
        ("ntk", {"factor": math.inf}, "factor: expected a finite number"),
        ("dynamic_ntk", {"factor": 0.0}, "factor: expected a finite number of at least 1.0"),
        ("dynamic_ntk", {"original_length": 0}, "original_length: expected a finite number of"),
        ("llama3", {"low_freq_factor": 4.0}, "high_freq_factor 4.0 must be more than"),
        ("llama3", {"low_freq_factor": 0.0}, "low_freq_factor: expected a finite number above 0"),
        ("llama3", {"original_length": None}, "'llama3' needs original_length"),
        ("yarn", {"dynamic": True, "factor": 4.0}, "factor 4.0: with dynamic=True it follows from"),
        ("pi+ntk", {}, "'pi+ntk': pi and ntk both stretch RoPE's frequencies"),
        ("dynamic_ntk+yarn", {}, "dynamic_ntk and yarn both stretch"),
        ("resonance+pope", {}, "resonance changes RoPE's frequencies, and pope has its own"),
        ("resonance", {"factor": 2.0}, "'resonance' has no option 'factor'"),
    ],
)
def test_what_is_refused(spec: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        build(spec, **options)
    assert said in str(caught.value)


# ---------------------------------------------------------------- by the length of the row


def test_alpha_grows_in_a_straight_line_from_1() -> None:
    transform = DynamicNTK(4096, 2.0)
    lengths = torch.tensor([1, 4095, 4096, 4097, 8192, 100_001])
    expected = torch.tensor([1, 1, 1, 1.00048828125, 3, 47.82861328125], dtype=torch.float64)
    assert torch.equal(transform.alpha(lengths), expected)
    for factor in (1.0, 3.0, 100.0):
        assert float(DynamicNTK(777, factor).alpha(torch.tensor(777))) == 1
    assert float(DynamicNTK(777, 1.0).alpha(torch.tensor(4 * 777))) == pytest.approx(4)


def test_dynamic_ntk_is_ntk_by_the_alpha_of_its_length() -> None:
    for length in (L0 + 1, 1000, 100_001):
        alpha = float(DynamicNTK(L0, 3.0).alpha(torch.tensor(length)))
        static = frequencies("ntk", factor=alpha)
        assert torch.equal(frequencies("dynamic_ntk", length, factor=3.0), static)


DYNAMIC: list[tuple[str, dict[str, Any]]] = [
    ("dynamic_ntk", {}),
    ("dynamic_ntk+resonance", {}),
    ("yarn", {"dynamic": True}),
    ("yarn+resonance", {"dynamic": True}),
]
GROWING = pytest.mark.parametrize(("spec", "options"), DYNAMIC)


@GROWING
def test_traits_of_those_that_look_at_the_length(spec: str, options: dict[str, Any]) -> None:
    enc = build(spec, **options)
    assert enc.length_dependent
    assert enc.raw_keys
    assert not enc.relative  # moved by a thousand positions, a text is longer by as much
    assert not dict(enc.named_buffers())


@GROWING
def test_each_row_has_the_base_of_its_own_length(spec: str, options: dict[str, Any]) -> None:
    enc = build(spec, **options)
    rows = torch.stack([torch.arange(8) * step for step in (1, 90, 400, 14_000)])
    spectrum = enc.spectrum(rows)
    assert spectrum.inv_freq.shape == (4, 32)
    q, k = (torch.randn(4, 2, 8, 64) for _ in range(2))
    together = enc.rotate(q, k, rows, rows)
    for b in range(4):
        alone = enc.spectrum(rows[b])
        assert alone.inv_freq.shape == (32,)
        assert torch.equal(spectrum.inv_freq[b], alone.inv_freq)
        if isinstance(spectrum.magnitude, Tensor):
            assert float(spectrum.magnitude[b]) == float(alone.magnitude)
        single = enc.rotate(q[b : b + 1], k[b : b + 1], rows[b], rows[b])
        for x, y in zip(together, single, strict=True):
            assert torch.equal(x[b : b + 1], y)
    assert not torch.equal(spectrum.inv_freq[1], spectrum.inv_freq[2])


@GROWING
def test_left_padding_is_not_length(spec: str, options: dict[str, Any]) -> None:
    enc, pad = build(spec, **options), 250
    positions = torch.stack((torch.arange(600), (torch.arange(600) - pad).clamp(min=0)))
    q, k = (torch.randn(2, 2, 600, 64) for _ in range(2))
    a = enc.rotate(q, k, positions, positions)
    alone = torch.arange(600 - pad)
    b = enc.rotate(q[1:, :, pad:], k[1:, :, pad:], alone, alone)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x[1:, :, pad:], y)


@GROWING
def test_nothing_is_remembered(spec: str, options: dict[str, Any]) -> None:
    """Short, long, short, and the lengths at which transformers' module keeps the longest."""
    enc = build(spec, **options)
    first = {n: turned(enc, torch.arange(n)) for n in (40, L0, 300)}
    for n in (5000, L0, 300, 40, 100, L0, 300, 40):
        again = turned(enc, torch.arange(n))
        if n in first:
            assert all(torch.equal(x, y) for x, y in zip(first[n], again, strict=True))


@GROWING
@pytest.mark.parametrize("length", [L0 - 1, L0, L0 + 1, 2 * L0])
def test_a_decoding_step_is_the_last_row_of_a_full_call(
    spec: str, options: dict[str, Any], length: int
) -> None:
    """B1: keys are kept raw and turned for the length of the step."""
    enc, positions = build(spec, **options), torch.arange(length)
    q, k, v = (torch.randn(2, 2, length, 64, dtype=torch.float64) for _ in range(3))
    whole = pe.attend(enc, q, k, v, positions, positions)
    step = pe.attend(enc, q[:, :, -1:], k, v, positions[-1:], positions)
    torch.testing.assert_close(step, whole[:, :, -1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "spec", ["dynamic_ntk+resonance", "longrope+resonance", "yarn", "yarn+resonance"]
)
def test_one_layer_decodes_as_it_prefills(spec: str) -> None:
    """As tests/test_generation.py has it for those that are registered by name."""
    options = {"dynamic": True} if "yarn" in spec else {}
    model = small(spec, num_hidden_layers=1, pe_options=options)
    length, pad = 2 * LENGTH, 5
    ids = tokens(2, length)
    mask = torch.ones_like(ids)
    mask[0, :pad] = 0
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, use_cache=False).logits[:, -1]
        steps = stepwise(model, ids, [pad + 2, *[1] * (length - pad - 2)], attention_mask=mask)
    close(steps[:, -1], whole)


def test_dynamic_yarns_factor_and_temperature_follow_each_row() -> None:
    grows = build("yarn", dynamic=True)
    spectrum = grows.frequencies(torch.tensor([[100], [L0], [2 * L0], [9 * L0]]))
    magnitude = spectrum.magnitude
    assert isinstance(magnitude, Tensor)
    assert magnitude.shape == (4, 1)
    for row, factor in enumerate((1.0, 1.0, 2.0, 9.0)):
        fixed = build("yarn", factor=factor).frequencies()
        torch.testing.assert_close(spectrum.inv_freq[row], fixed.inv_freq, rtol=1e-15, atol=0)
        assert float(magnitude[row]) == pytest.approx(float(fixed.magnitude), rel=1e-15)
    explicit = build("yarn", dynamic=True, attention_factor=1.25)
    assert explicit.frequencies(torch.tensor([[900]])).magnitude == 1.25
    weighted = build("yarn", dynamic=True, mscale=1.0, mscale_all_dim=0.5)
    ratio = (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    assert float(weighted.frequencies(torch.tensor(4 * L0)).magnitude) == pytest.approx(ratio)


@pytest.mark.parametrize("spec", ["dynamic_ntk+resonance", "yarn"])
def test_a_compiled_model_takes_each_rows_length_without_leaving_its_graph(spec: str) -> None:
    options = {"dynamic": True} if spec == "yarn" else {}
    model = small(spec, num_hidden_layers=1, pe_options=options)
    ids, pad = tokens(2, 2 * LENGTH), 9
    mask = torch.ones_like(ids)
    mask[0, :pad] = 0
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    with torch.no_grad():
        want = model(ids, attention_mask=mask, use_cache=False).logits
        found = compiled(ids, attention_mask=mask, use_cache=False).logits
    close(found[mask.bool()], want[mask.bool()], atol=1e-5)


# ---------------------------------------------------------------- Resonance

RESONANT = ["resonance", "yarn+resonance", "ntk+resonance", "pi+resonance", "llama3+resonance"]


@pytest.mark.parametrize("spec", RESONANT)
def test_tables_repeat_bit_by_bit_at_any_position(spec: str) -> None:
    """B19."""
    enc = build(spec)
    period = enc.get_buffer("period")
    assert torch.equal(period, period.round())
    torch.testing.assert_close(enc.inv_freq * period, torch.full_like(period, 2 * math.pi))
    for dtype in (torch.float32, torch.float64):
        for start in (0, 99_000):
            for pair in range(0, 32, 3):
                turn = int(period[pair])
                here = torch.arange(start, start + 64)
                first, later = (enc.prepare(p, p, dtype).tables[0] for p in (here, here + turn))
                assert torch.equal(first[0][..., pair], later[0][..., pair])
                assert torch.equal(first[1][..., pair], later[1][..., pair])


def test_without_resonance_no_table_repeats() -> None:
    enc, here = build("rope"), torch.arange(64)
    for pair in range(8):
        turn = round(2 * math.pi / float(enc.inv_freq[pair]))
        first, later = (enc.prepare(p, p).tables[0] for p in (here, here + turn))
        assert not torch.equal(first[0][..., pair], later[0][..., pair])


def test_rows_repeat_with_the_period_of_their_own_length() -> None:
    enc = build("dynamic_ntk+resonance")
    lengths = torch.tensor([[100], [1000], [50_000]])
    spectrum = enc.frequencies(lengths)
    assert spectrum.period is not None
    assert spectrum.period.shape == (3, 32)
    assert torch.equal(spectrum.period, spectrum.period.round())
    assert (spectrum.period[2] > spectrum.period[0])[1:].all()
    for row, length in enumerate(lengths.flatten().tolist()):
        turn = int(spectrum.period[row, 3])
        rows = torch.tensor([0, 1, turn, 1 + turn, length - 1])
        cos, _ = enc.prepare(rows, rows).tables[0]
        assert torch.equal(cos[0, 0, :2, 3], cos[0, 0, 2:4, 3])


def test_stretching_comes_first_whatever_the_order_of_the_names() -> None:
    a, b = build("resonance+yarn"), build("yarn+resonance")
    assert torch.equal(a.inv_freq, b.inv_freq)
    slowed = 2 * math.pi / build("yarn").inv_freq
    assert torch.equal(a.get_buffer("period"), slowed.round())
    assert a.magnitude == build("yarn").magnitude


def test_logits_stay_a_function_of_distance() -> None:
    """A10: positions are reduced, and whole turns change nothing."""
    enc = build("resonance")
    assert enc.relative
    q, k = (torch.randn(1, 2, 9, 64, dtype=torch.float64) for _ in range(2))
    p = torch.tensor([0, 1, 2, 5, 6, 7, 100, 313, 5000])
    logits = []
    for shift in (0, 1, 63, 90_001):
        a, b = enc.rotate(q, k, p + shift, p + shift)
        logits.append(a @ b.mT)
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=0, atol=1e-9)


def test_a_pair_that_stands_still_stays_so() -> None:
    base = base_frequencies(8, 10_000.0)
    still = base._replace(inv_freq=base.inv_freq * torch.tensor([1, 1, 0, 0]))
    out = Resonance()(still)
    assert out.period is not None
    assert out.period.tolist() == [6, 63, 0, 0]
    assert out.inv_freq[2:].tolist() == [0, 0]
    assert torch.isfinite(out.inv_freq).all()


def test_learned_frequencies_are_not_rounded_in_silence() -> None:
    base = base_frequencies(8, 10_000.0)
    learned = base._replace(inv_freq=base.inv_freq.clone().requires_grad_())
    with pytest.raises(ValueError, match="no gradient passes a rounding"):
        Resonance()(learned)
    with torch.no_grad():
        Resonance()(base)


@pytest.mark.parametrize("spec", [*RESONANT, "dynamic_ntk+resonance", "longrope+resonance"])
def test_constants_survive_casts_and_the_meta_device(spec: str) -> None:
    here, positions = build(spec), torch.arange(0, 3000, 100)
    expected = turned(here, positions)
    cast = build(spec).to(torch.bfloat16)
    with torch.device("meta"):
        empty = build(spec)
    for enc in (cast, empty.to_empty(device="cpu")):
        found = turned(enc, positions)
        assert all(torch.equal(x, y) for x, y in zip(expected, found, strict=True))


@pytest.mark.parametrize("spec", ["pi+alibi", "resonance+alibi", "dynamic_ntk+resonance+alibi"])
def test_biases_can_be_added(spec: str) -> None:
    enc = encoding(spec, head_dim=64, num_heads=2, original_length=L0)
    assert enc.rotates
    assert enc.length_dependent == ("dynamic" in spec)
    p = torch.arange(300)
    q, k, v = (torch.randn(1, 2, 300, 64) for _ in range(3))
    assert torch.isfinite(pe.attend(enc, q, k, v, p, p)).all()
    assert enc.bias(q, k, p, p) is not None
