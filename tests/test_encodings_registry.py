"""Names, options, combinations: what is accepted, what is refused, and what the message says."""

from __future__ import annotations

import json
import pkgutil
import re
import sys
import types
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
import torch
from torch import Tensor, nn

import pe
from pe.encodings import (
    FAMILIES,
    Encoding,
    Frequencies,
    FrequencyTransform,
    about,
    check,
    encoding,
    in_order,
    list_encodings,
    lookup,
    register,
)
from pe.encodings.core import registry
from pe.encodings.core.composite import Composite
from pe.encodings.core.parts import part_classes
from pe.encodings.rope import RoPE

ROOT = Path(__file__).resolve().parent.parent
SIZES: dict[str, Any] = {"head_dim": 16, "num_heads": 2, "original_length": 64}


class Slope(Encoding):
    """A toy distance bias with a learned strength, which also scales the logits."""

    def __init__(self, num_heads: int, strength: float = 0.5) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.full((num_heads,), strength))

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        rows = q_positions if q_positions.dim() == 2 else q_positions[None]
        columns = k_positions if k_positions.dim() == 2 else k_positions[None]
        distance = (rows[:, :, None] - columns[:, None, :])[:, None].float()
        return -self.strength[:, None, None] * distance

    def logit_scale(self, q_positions: Tensor) -> Tensor:
        scale = 1 + 0.1 * q_positions.float()
        return scale if scale.dim() == 1 else scale[:, None]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.strength.data.uniform_(generator=generator)


class Shift(Encoding):
    """A toy absolute encoding on the embeddings, up to a longest position."""

    relative = False
    max_positions = 100

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + positions[..., None].to(x.dtype)


class Halve(FrequencyTransform):
    stretches = False

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        return frequencies._replace(inv_freq=frequencies.inv_freq / 2)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes above under names, for one test."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    for name, part in {"slope": Slope, "shift": Shift, "halve": Halve}.items():
        register(name)(part)


def test_every_file_registers_what_it_defines_and_names_of_records_stay() -> None:
    files = {module.name for module in pkgutil.iter_modules(pe.encodings.__path__)} - {"core"}
    assert {lookup(name).__module__.rpartition(".")[2] for name in list_encodings()} == files
    records = (ROOT / "runs").glob("*/*/run.json")
    specs = {json.loads(path.read_text())["pe"] for path in records}
    recorded = {part for spec in specs for part in part_classes(spec)}  # raises at unknown names
    assert {"rope", "pope", "yarn", "nope", "window"} < recorded
    assert pe.list_encodings() == list_encodings() == sorted(list_encodings())


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        ("rpoe", {}, "unknown encoding 'rpoe' (did you mean 'rope'?); choose from: "),
        ("Pope ", {"delta_inti": "zero"}, "unknown encoding 'Pope' (did you mean 'pope'?)"),
        ("", {}, "expected the name of an encoding at character"),
        ("rope+", {}, "expected the name of an encoding at character"),
        ("rope", {"tetha": 1.0}, "'rope' has no option 'tetha' (did you mean 'theta'?); its "),
        ("nope", {"theta": 1.0}, "'nope' has no option 'theta'; its options: none"),
        ("rope", {"transforms": []}, "'rope' has no option 'transforms'"),
        ("yarn", {"factor": 0.5}, "factor: expected a finite number of at least 1.0, got 0.5"),
        ("yarn", {"factor": "4"}, "'yarn': option factor: expected float, got '4'"),
        ("yarn", {"factor": True}, "'yarn': option factor: expected float, got True"),
        ("yarn", {"truncate": 1}, "'yarn': option truncate: expected bool, got 1"),
        ("yarn", {"factor": float("inf")}, "factor: expected a finite number"),
        ("yarn", {"beta_fast": 1.0, "beta_slow": 2.0}, "beta_fast 1.0 is less than beta_slow 2.0"),
        ("yarn", {"attention_factor": -1.0}, "attention_factor: expected a finite number above 0"),
        ("rope", {"theta": 0.0}, "theta: expected a finite number above 0, got 0.0"),
        (
            "yarn",
            {"theta": 1.0},
            "theta: expected more than 1, so that frequencies decrease; got 1.0",
        ),
        ("rope", {"layout": "hafl"}, "unknown layout 'hafl' (did you mean 'half'?)"),
        ("rope", {"rotary_fraction": 0.0}, "rotary_fraction: expected more than 0 and at most 1"),
        ("rope", {"rotary_fraction": 0.01}, "no whole pairs to rotate"),
        ("pope", {"delta_init": "zeros"}, "(did you mean 'zero'?)"),
        ("rope+rope", {}, "'rope+rope' names a part twice"),
        ("rope+pope", {}, "'rope+pope': rope and pope both rotate queries and keys"),
        ("path+ssmax", {}, "path adds the difference to other logits, so ssmax cannot scale them"),
        ("yarn+pope", {}, "yarn changes RoPE's frequencies, and pope has its own"),
        ("nope+rope", {}, "nope means no encoding"),
        ("yarn+nope", {}, "nope means no encoding"),
        ("no_such_module:X", {}, "'no_such_module:X' cannot be imported"),
        ("math:nothing", {}, "'math:nothing' cannot be imported"),
        ("mine.py:Mine", {}, "write 'mine:Mine'"),
        ("collections:OrderedDict", {}, "not a subclass of pe.encodings.Encoding"),
        ("math:pi", {}, "not a subclass of pe.encodings.Encoding"),
        ("..:Mine", {}, "'..:Mine': expected 'module:Class'"),
        ("folder/mine:Mine", {}, "expected 'module:Class'"),
        (":Mine", {}, "':Mine': expected 'module:Class'"),
        ("rope+window:4(window=8)", {}, "window is given twice; leave out :4 or window="),
        ("rope+window:99999999999999999999", {}, "option window: expected at most "),
    ],
)
def test_what_is_refused(spec: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared below
        encoding(spec, **SIZES, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError) as checked:  # noqa: PT011
        check(spec, options, **SIZES)
    assert str(checked.value) == str(caught.value)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(ValueError, match="'yarn' needs original_length"):
        encoding("yarn", head_dim=16, num_heads=2)
    with pytest.raises(ValueError, match="head_dim 15 .* use an even head_dim"):
        encoding("rope", head_dim=15, num_heads=2)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"head_dim": -2}, "head_dim: expected a whole number above 0, got -2"),
        ({"head_dim": "16"}, "head_dim: expected a whole number above 0, got '16'"),
        ({"num_heads": 0}, "num_heads: expected a whole number above 0, got 0"),
        ({"num_heads": True}, "num_heads: expected a whole number above 0, got True"),
        ({"num_kv_heads": 0}, "num_kv_heads: expected a whole number above 0, got 0"),
        ({"num_kv_heads": 3}, "num_kv_heads: expected a divisor of the 2 heads, got 3"),
        ({"hidden_size": 0}, "hidden_size: expected a whole number above 0, got 0"),
        ({"original_length": 64.0}, "original_length: expected a whole number above 0, got 64.0"),
        ({"layer_index": -1}, "layer_index: expected a whole number of at least 0, got -1"),
        ({"layer_index": "1"}, "layer_index: expected a whole number of at least 0, got '1'"),
    ],
)
def test_sizes_that_no_model_has_are_refused_for_every_encoding(
    sizes: dict[str, Any], said: str
) -> None:
    for name in ("nope", "pope", "sinusoidal"):
        with pytest.raises(ValueError, match=re.escape(said)):
            encoding(name, **SIZES | sizes)


def test_attend_refuses_what_is_no_tensor_of_the_right_numbers() -> None:
    q = torch.randn(1, 2, 4, 16)
    rope, where = encoding("rope", **SIZES), torch.arange(4)
    cases: list[tuple[list[Any], str]] = [
        ([q.int(), q, q], "q: expected a tensor of floating-point numbers, got torch.int32"),
        ([q, q.numpy(), q], "k: expected a tensor of floating-point numbers, got a ndarray"),
        ([q, q, None], "v: expected a tensor of floating-point numbers, got a NoneType"),
        ([q, q, q, [0, 1, 2, 3]], "q_positions: expected a tensor of whole numbers, got a list"),
        ([q, q, q, where, where.float()], "k_positions: expected a tensor of whole numbers, got "),
    ]
    for arguments, said in cases:
        with pytest.raises(ValueError, match=re.escape(said)):
            pe.attend(rope, *arguments)


def test_sizes_are_no_options_but_the_length_extended_from_is() -> None:
    with pytest.raises(ValueError, match="head_dim follows from the model's sizes"):
        check("rope", {"head_dim": 3})
    check("yarn", {"original_length": 128})
    with pytest.raises(ValueError, match="original_length: expected .* above 0, got 0"):
        check("yarn", {"original_length": 0})
    with pytest.raises(ValueError, match="original_length: expected .* above 0, got '128'"):
        check("yarn", {"original_length": "128"})


def test_check_accepts_what_can_be_built() -> None:
    for name in list_encodings():
        check(name)
    check("yarn", {"factor": 8, "theta": 500000}, head_dim=128, num_heads=4)


@pytest.mark.usefixtures("toys")
def test_one_name_for_two_classes_is_refused() -> None:
    assert register("slope")(Slope) is Slope  # the same again, as a reloaded notebook does
    with pytest.raises(ValueError, match="two encodings are called 'rope'"):
        register("rope")(Slope)
    assert lookup("rope") is RoPE


def test_a_class_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_module")
    module.Slope, module.Halve = Slope, Halve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_module", module)
    enc = encoding("my_module:Slope", **SIZES, strength=2.0)
    assert isinstance(enc, Slope)
    assert enc.get_parameter("strength").tolist() == [2.0, 2.0]
    both = encoding("rope+my_module:Slope", **SIZES)
    assert [type(p) for p in both.parts] == [RoPE, Slope]
    slow = encoding("my_module:Halve", **SIZES)
    assert torch.equal(slow.get_buffer("inv_freq"), encoding("rope", **SIZES).inv_freq / 2)
    with pytest.raises(ValueError, match="did you mean 'strength'"):
        encoding("my_module:Slope", **SIZES, strenght=2.0)

    class Needs(Encoding):
        def __init__(self, nheads: int) -> None:
            super().__init__()

    module.Needs = Needs  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"needs a value for nheads.*head_dim, num_heads"):
        encoding("my_module:Needs", **SIZES)
    assert isinstance(encoding("my_module:Needs", **SIZES, nheads=2), Needs)

    class Plain(Encoding):  # types that cannot be checked, or are written in the old way
        def __init__(  # type: ignore[no-untyped-def]
            self,
            head_dim,
            kind: Literal["a", "b"] = "a",
            n: Optional[int] = None,  # noqa: UP045
        ) -> None:
            super().__init__()

    module.Plain = Plain  # type: ignore[attr-defined]
    assert isinstance(encoding("my_module:Plain", **SIZES, kind="b", n=1), Plain)
    with pytest.raises(ValueError, match="option n: expected int, got '1'"):
        encoding("my_module:Plain", **SIZES, n="1")


@pytest.mark.usefixtures("toys")
def test_transforms_follow_each_other_in_order() -> None:
    class Floor(FrequencyTransform):
        stretches = False

        def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
            return frequencies._replace(inv_freq=frequencies.inv_freq.clamp(min=0.01))

    register("floor")(Floor)
    base = encoding("rope", **SIZES).get_buffer("inv_freq")
    first = encoding("halve+floor", **SIZES).get_buffer("inv_freq")
    second = encoding("rope+floor+halve", **SIZES).get_buffer("inv_freq")
    assert torch.equal(first, (base / 2).clamp(min=0.01))
    assert torch.equal(second, base.clamp(min=0.01) / 2)
    whole = encoding("halve+slope", **SIZES)
    assert [type(p) for p in whole.parts] == [RoPE, Slope]


@pytest.mark.usefixtures("toys")
def test_hooks_chain_biases_add_scales_multiply() -> None:
    class Twice(Slope):
        def embed(self, x: Tensor, positions: Tensor) -> Tensor:
            return x * 2

    register("twice")(Twice)
    enc = encoding("shift+twice+rope+slope", **SIZES)
    assert isinstance(enc, Composite)
    x, p = torch.ones(1, 3, 32), torch.arange(3)
    assert torch.equal(enc.embed(x, p), (x + p[:, None]) * 2)
    q, k = torch.randn(2, 1, 2, 3, 16)
    alone = Slope(2)
    bias = enc.bias(q, k, p, p)
    assert bias is not None
    torch.testing.assert_close(bias, 2 * alone.bias(q, k, p, p))
    scale = enc.logit_scale(p)
    assert scale is not None
    torch.testing.assert_close(scale, alone.logit_scale(p) ** 2)
    for a, b in zip(
        enc.rotate(q, k, p, p), encoding("rope", **SIZES).rotate(q, k, p, p), strict=True
    ):
        assert torch.equal(a, b)
    assert not enc.relative
    assert enc.rotates
    assert enc.max_positions == 100
    assert encoding("rope+slope", **SIZES).relative
    assert encoding("rope+slope", **SIZES).max_positions is None


@pytest.mark.usefixtures("toys")
def test_a_composite_resets_and_casts_its_parts() -> None:
    enc = encoding("rope+slope", **SIZES)
    enc.reset_parameters(torch.Generator().manual_seed(3))
    drawn = enc.get_parameter("parts.1.strength").clone()
    enc.reset_parameters(torch.Generator().manual_seed(3))
    assert torch.equal(enc.get_parameter("parts.1.strength"), drawn)
    exact = enc.get_buffer("parts.0.inv_freq").clone()
    assert torch.equal(enc.to(torch.bfloat16).get_buffer("parts.0.inv_freq"), exact)


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("backend", ["dense", "sdpa", None])
def test_attend_with_rotation_bias_and_scale(backend: str | None) -> None:
    enc = encoding("rope+slope", **SIZES, strength=0.3)
    q = torch.randn(2, 2, 5, 16, requires_grad=True)
    k, v = torch.randn(2, 2, 2, 9, 16).unbind()
    k_positions = torch.arange(9)
    out = pe.attend(enc, q, k, v, k_positions[4:], k_positions, backend=backend)
    # Written out, without any of pe.attention.
    rope = encoding("rope", **SIZES)
    turned_q, turned_k = rope.rotate(q, k, k_positions[4:], k_positions)
    logits = turned_q @ turned_k.transpose(-1, -2) / 4
    logits = logits * (1 + 0.1 * k_positions[4:].float())[:, None]
    distance = k_positions[4:, None] - k_positions[None, :]
    logits = logits - 0.3 * distance
    expected = logits.masked_fill(distance < 0, float("-inf")).softmax(-1) @ v
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    parameter = enc.get_parameter("parts.1.strength")
    ours = torch.autograd.grad(out.square().sum(), (q, parameter))
    assert all(torch.isfinite(g).all() for g in ours)
    assert ours[1].abs().min() > 0


def test_a_file_says_what_it_takes() -> None:
    # The page of each encoding and `--help-notebook` rest on these docstrings.
    for name in list_encodings():
        part = lookup(name)
        module = sys.modules[part.__module__]
        assert module.__doc__
        assert part.__doc__
        paper = about(name).paper
        assert paper is None or f"arXiv:{paper}" in module.__doc__, name


@pytest.mark.parametrize("name", list_encodings())
def test_every_encoding_of_the_package_says_how_it_is_shown(name: str) -> None:
    shown = about(name)
    assert shown.title
    assert shown.paper is None or re.fullmatch(r"\d{4}\.\d{4,5}", shown.paper)
    assert shown.family in FAMILIES[:-1]


def test_titles_of_a_sum_are_joined_and_an_unknown_one_keeps_its_name() -> None:
    assert about("rope+alibi").title == "RoPE + ALiBi"
    assert about("my_module:Mine").title == "Mine"
    assert about("lost") == ("lost", None, "other")


def test_encodings_are_shown_by_family_and_then_by_title() -> None:
    shown = in_order(["yarn", "my_module:Mine", "rope+alibi", "rope", "pope", "alibi", "nope"])
    assert shown == ["nope", "pope", "rope", "rope+alibi", "yarn", "alibi", "my_module:Mine"]
