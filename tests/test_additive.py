"""What is added to token embeddings: published numbers, scales, limits.

tests/golden holds arrays made by running the sources that each page names, with their tolerances.
"""

from __future__ import annotations

import json
import math
import sys
import types
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from golden_tools import GOLDEN, golden
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pe.encodings import Encoding, encoding
from pe.encodings.core.additive import Additive
from pe.encodings.core.digits import digits

PLAIN = ("sinonly", "binary", "binary_norm", "decimal", "decimal_norm")
EVERY = pytest.mark.parametrize("name", ["sinusoidal", "learned", *PLAIN])


@cache
def stated(method: str) -> dict[str, Any]:
    with np.load(GOLDEN / f"{method}.npz") as arrays:
        found: dict[str, Any] = json.loads(str(arrays["params_json"]))
        return found


def build(name: str, hidden: int, **options: Any) -> Additive:
    enc = encoding(name, head_dim=hidden, num_heads=1, original_length=64, **options)
    assert isinstance(enc, Additive)
    return enc


def rows(enc: Additive, positions: Tensor | int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The bare vectors of the positions: what a token of zeros becomes."""
    where = torch.arange(positions) if isinstance(positions, int) else positions
    return enc.embed(torch.zeros(len(where), enc.hidden_size, dtype=dtype), where).detach()


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(ours.double(), theirs.double(), atol=tolerance, rtol=0)


# ---------------------------------------------------------------- sinusoidal


SINUSOIDAL: dict[str, dict[str, Any]] = {
    "interleaved": {},
    "interleaved_base500": {"theta": 500.0},
    "interleaved_far": {},
    "concat_paper_freq": {"layout": "concat"},
    "t2t_concat": {"layout": "concat", "grid": "tensor2tensor"},
    "t2t_concat_odd": {"layout": "concat", "grid": "tensor2tensor"},
    "t2t_concat_far": {"layout": "concat", "grid": "tensor2tensor"},
    "xtransformers_scaled": {"layout": "concat", "learned_scale": True, "scale_embeddings": False},
}


def arrays_of(kind: str) -> list[str]:
    return [key for key in golden("sinusoidal") if key.rsplit("__")[0] == kind]


@pytest.mark.parametrize("kind", SINUSOIDAL)
def test_sinusoidal_in_each_published_form(kind: str) -> None:
    tolerance = stated("sinusoidal")["tol"]
    assert len(arrays_of(kind)) == 3
    for key in arrays_of(kind):
        want = golden("sinusoidal")[key]
        where, exact = torch.arange(len(want)), tolerance["float64"]
        if kind.endswith("far"):
            where = golden("sinusoidal")["far_positions"]
            # Ways to write a frequency differ by a unit in its last place, times 65,535 tokens.
            exact = float(where.max()) * 2**-52
        enc = build("sinusoidal", want.shape[1], **SINUSOIDAL[kind]).double()
        enc.reset_parameters()  # a learned scale of float32 has lost half its digits
        close(rows(enc, where), want, exact)
        # In float32 only the result is rounded, so far positions are as good as near ones.
        single = build("sinusoidal", want.shape[1], **SINUSOIDAL[kind])
        close(rows(single, where, torch.float32), want, 1e-6)


def test_every_sinusoidal_array_is_compared() -> None:
    kinds = {key.rsplit("__")[0] for key in golden("sinusoidal")}
    inputs = {"far_positions", "emb"}
    assert kinds == set(SINUSOIDAL) | inputs | {"sum_scaled_sqrt_d_interleaved"}


def test_sinusoidal_is_added_to_scaled_tokens() -> None:
    for key in arrays_of("sum_scaled_sqrt_d_interleaved"):
        size = key.split("__")[1]
        x = golden("sinusoidal")[f"emb__{size}"]
        enc = build("sinusoidal", x.shape[1])
        close(enc.embed(x, torch.arange(len(x))), golden("sinusoidal")[key], 1e-12)


def test_tensor2tensors_last_wavelength_is_the_base_itself() -> None:
    paper, code = (
        build("sinusoidal", 64, grid=grid).get_buffer("frequencies")
        for grid in ("paper", "tensor2tensor")
    )
    assert float(code[-1]) == pytest.approx(1e-4, rel=1e-12)
    assert float(paper[-1]) == pytest.approx(10_000 ** (-62 / 64), rel=1e-12)
    assert paper[0] == code[0] == 1


def test_a_shift_is_a_rotation_of_the_pairs() -> None:
    """What the paper hoped for: P(p + k) is a linear function of P(p), the same for all p."""
    enc, k = build("sinusoidal", 32), 13
    w = enc.get_buffer("frequencies")
    here, there = rows(enc, torch.tensor([5, 900])), rows(enc, torch.tensor([5 + k, 900 + k]))
    sin, cos = here[:, 0::2], here[:, 1::2]
    close(there[:, 0::2], sin * (k * w).cos() + cos * (k * w).sin(), 1e-12)
    close(there[:, 1::2], cos * (k * w).cos() - sin * (k * w).sin(), 1e-12)
    dots = (here * there).sum(-1)
    close(dots, (k * w).cos().sum().expand(2), 1e-12)


# ---------------------------------------------------------------- sinonly, binary, decimal


@pytest.mark.parametrize("name", PLAIN)
def test_the_vectors_are_those_of_pe_explorer(name: str) -> None:
    arrays, tolerance = golden(name), stated(name)["tol"]
    compared = {"far_positions"}
    for key, want in arrays.items():
        if not key.startswith("pe"):
            continue
        where = arrays["far_positions"] if "far" in key else torch.arange(len(want))
        # Their float32 angles are off by up to half a unit in the last place of the position.
        off = 2**-12 if name == "sinonly" and "far" in key else tolerance
        close(rows(build(name, want.shape[1]), where), want, off)
        close(rows(build(name, want.shape[1]), where, torch.float32), want, off)
        compared.add(key)
    for d, length in stated(name)["sizes"]:
        x = arrays[f"emb__d{d}_L{length}"]
        out = build(name, d).embed(x, torch.arange(length))
        close(out, arrays[f"sum__d{d}_L{length}"], tolerance)
        compared |= {f"emb__d{d}_L{length}", f"sum__d{d}_L{length}"}
    assert compared == set(arrays)


@pytest.mark.parametrize(("name", "base"), [("binary", 2), ("decimal", 10)])
def test_digits_are_those_that_python_writes(name: str, base: int) -> None:
    enc = build(name, 70)
    assert enc.max_positions is None, "70 digits have room for any 64-bit integer"
    largest = torch.iinfo(torch.int64).max
    for position in (0, 1, 9, 10, 1023, 1024, 99_999, 2**40, largest):
        written = f"{position:b}" if base == 2 else str(position)
        want = [0] * (70 - len(written)) + [int(digit) for digit in written]
        assert rows(enc, torch.tensor([position]))[0].tolist() == want
        normed = rows(build(f"{name}_norm", 70), torch.tensor([position]))[0]
        close(normed, 2 * torch.tensor(want).double() / (base - 1) - 1, 1e-12)


@pytest.mark.parametrize(("name", "limit"), [("binary", 2**6), ("decimal_norm", 10**6)])
def test_a_position_with_more_digits_than_columns_is_refused(name: str, limit: int) -> None:
    enc = build(name, 6)
    assert enc.max_positions == limit
    assert torch.equal(rows(enc, torch.tensor([limit - 1])), enc.rows(
        torch.tensor([limit - 1]), torch.float64))  # fmt: skip
    with pytest.raises(ValueError, match=f"no position {limit}: longest position {limit - 1}"):
        rows(enc, torch.tensor([0, limit]))


def test_sine_only_is_zero_at_position_0_and_twice_as_dense() -> None:
    enc = build("sinonly", 32)
    assert (rows(enc, 1) == 0).all()
    paper = build("sinusoidal", 32).get_buffer("frequencies")
    torch.testing.assert_close(enc.get_buffer("frequencies")[::2], paper, rtol=1e-12, atol=0)


# ---------------------------------------------------------------- learned


def test_learned_is_that_of_gpt2() -> None:
    arrays = golden("learned")
    enc = build("learned", 24, table_size=32).double()
    with torch.no_grad():
        enc.get_parameter("table").copy_(arrays["wpe"])
    x = arrays["wte"][arrays["ids"]]
    exact = stated("learned")["tol"]
    close(enc.embed(x, torch.arange(11)), arrays["sum_default"], exact)
    close(enc.embed(x, arrays["position_ids"]), arrays["sum_positions"], exact)


def test_learned_has_as_many_positions_as_training_and_refuses_the_rest_first() -> None:
    enc = build("learned", 8)
    assert (enc.max_positions, enc.get_parameter("table").shape) == (64, (64, 8))
    rows(enc, 64)
    with pytest.raises(ValueError, match="no position 64: longest position 63"):
        rows(enc, 65)
    assert build("learned", 8, table_size=100).max_positions == 100
    with pytest.raises(ValueError, match="needs original_length, or the option table_size"):
        encoding("learned", head_dim=8, num_heads=1)
    with pytest.raises(ValueError, match="table_size: expected .* at least 1, got 0"):
        build("learned", 8, table_size=0)


def test_learned_starts_with_the_spread_of_gpt2() -> None:
    enc = build("learned", 500)
    for draw in (None, torch.Generator().manual_seed(3)):
        enc.reset_parameters(draw)
        assert float(enc.get_parameter("table").detach().std()) == pytest.approx(0.02, rel=0.05)


# ---------------------------------------------------------------- all of them


@EVERY
def test_tokens_are_scaled_where_the_source_scales_them(name: str) -> None:
    """With tokens of spread 0.02 and no factor the position would drown the token."""
    x, where = torch.randn(5, 16, dtype=torch.float64), torch.arange(5)
    for chosen, factor in ((None, 1 if name == "learned" else 4), (True, 4), (False, 1)):
        enc = build(name, 16, **({} if chosen is None else {"scale_embeddings": chosen}))
        close(enc.embed(x, where) - rows(enc, where), factor * x, 1e-12)


@EVERY
def test_every_position_has_a_vector_of_its_own_also_after_casting(name: str) -> None:
    enc = build(name, 16)
    far = torch.tensor([0, 1, 2, 3, 17, 40, 63])
    if name != "learned":
        far = torch.tensor([0, 1, 2, 3, 17, 4095, 4096, 30_001, 65_535])
    before = rows(enc, far, torch.float32)
    assert len(before.unique(dim=0)) == len(far)
    if name != "learned":
        assert torch.equal(rows(enc.to(torch.bfloat16), far, torch.float32), before)


@pytest.mark.parametrize("name", ["binary", "decimal_norm"])
def test_a_compiler_sees_no_division_in_digits(name: str) -> None:
    """torch's vectorised C++ divided by zeros that pad its last vector: one opaque operator."""
    enc, where = build(name, 24), torch.arange(13) * 4
    graph = make_fx(lambda where: enc.rows(where, torch.float32))(where)
    targets = {str(node.target) for node in graph.graph.nodes}
    assert "pe.digits.default" in targets
    assert not [target for target in targets if "floor_divide" in target or "remainder" in target]
    torch.testing.assert_close(graph(where), rows(enc, where, torch.float32))
    torch.library.opcheck(digits, (where, enc.get_buffer("powers"), type(enc).base))  # type: ignore[attr-defined]


@EVERY
def test_two_of_them_are_refused_together(name: str) -> None:
    other = "learned" if name == "sinonly" else "sinonly"
    with pytest.raises(ValueError, match=f"{name} and {other} both change the token embeddings"):
        encoding(f"{name}+{other}", head_dim=16, num_heads=1, original_length=64)


@EVERY
def test_a_bias_or_a_rotation_joins_them(name: str) -> None:
    whole = encoding(f"{name}+rope+alibi", head_dim=16, num_heads=1, original_length=64)
    x, where = torch.randn(2, 7, 16), torch.arange(7)
    alone = build(name, 16)
    alone.load_state_dict({k.removeprefix("parts.0."): v for k, v in whole.state_dict().items()})
    assert torch.equal(whole.embed(x, where), alone.embed(x, where))
    assert not whole.relative
    assert whole.embeds


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sinusoidal", {"layout": "concatt"}, "unknown layout 'concatt' .did you mean 'concat'"),
        ("sinusoidal", {"grid": "t2t"}, "unknown grid 't2t'"),
        ("sinusoidal", {"theta": -1.0}, "theta: expected a finite number above 0"),
        ("sinonly", {"theta": 0.0}, "theta: expected a finite number above 0"),
        ("learned", {"std": 0.0}, "std: expected a finite number above 0"),
        ("decimal", {"base": 10}, "'decimal' has no option 'base'"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, 16, **options)


def test_an_encoding_of_the_users_own_may_bring_another(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sharper(Encoding):
        alone_with = "sinonly"

    module = types.ModuleType("brings")
    module.Sharper = Sharper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "brings", module)
    sizes: dict[str, Any] = {"head_dim": 16, "num_heads": 1, "original_length": 64}

    def parts(spec: str) -> list[str]:
        whole = encoding(spec, **sizes).get_submodule("parts")
        return [type(p).__name__ for p in whole.children()]

    assert parts("brings:Sharper") == ["SinOnly", "Sharper"]
    assert parts("brings:Sharper+alibi") == ["Sharper", "ALiBi"]
    alone = encoding("brings:Sharper", **sizes, theta=500.0)
    second = float(alone.get_buffer("parts.0.frequencies")[1])
    assert math.isclose(second, 500 ** (-1 / 16))
