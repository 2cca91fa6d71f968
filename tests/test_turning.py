"""The kernels that turn queries and keys, interpreted, against the formulas of the encodings."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import pe
from pe.attention.kernels import rotary as turning
from pe.encodings.core import turning as chooser


def both_ways(
    spec: str, monkeypatch: pytest.MonkeyPatch, length: int, heads: tuple[int, int], width: int
) -> list[dict[str, Tensor]]:
    """Rotated queries and keys and all gradients, by torch and by the kernels."""
    results = []
    for by_kernel in (False, True):
        monkeypatch.setattr(
            f"pe.encodings.{spec_file(spec)}.by_kernel", lambda *_, way=by_kernel: way
        )
        enc = pe.encoding(
            spec, head_dim=width, num_heads=heads[0], num_kv_heads=heads[1], original_length=32
        )
        enc.reset_parameters(torch.Generator().manual_seed(2))
        if spec == "pope":
            torch.nn.init.uniform_(enc.delta, -2 * math.pi, 0, torch.Generator().manual_seed(3))
        torch.manual_seed(length)
        packed = torch.randn(2, length, sum(heads), width, requires_grad=True)
        q, k = packed.transpose(1, 2).split(list(heads), dim=1)  # views, as a model has them
        positions = torch.arange(3, 3 + length)
        turned = enc.rotate(q, k, positions, positions)
        wanted = [packed, *(p for p in enc.parameters() if p.requires_grad)]
        upstream = [torch.randn(t.shape) for t in turned]
        found = torch.autograd.grad(turned, wanted, upstream)
        names = ["q", "k", *(f"gradient {i}" for i in range(len(found)))]
        results.append(dict(zip(names, [*turned, *found], strict=True)))
    return results


def spec_file(spec: str) -> str:
    return "pope" if spec == "pope" else "rope"


@pytest.mark.parametrize("spec", ["rope", "xpos", "fope", "partial", "yarn", "pope"])
@pytest.mark.parametrize(
    ("length", "heads", "width"), [(1, (2, 2), 16), (70, (4, 2), 32), (130, (3, 1), 64)]
)
def test_kernels_turn_as_the_formula_does(
    spec: str,
    length: int,
    heads: tuple[int, int],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    formula, kernel = both_ways(spec, monkeypatch, length, heads, width)
    for name, want in formula.items():
        torch.testing.assert_close(kernel[name], want, atol=2e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_turning_back_undoes_turning(layout: str) -> None:
    torch.manual_seed(0)
    x, phase = torch.randn(2, 3, 70, 32), torch.randn(1, 1, 70, 16)
    half = layout == "half"
    turned = turning.turn(x, phase.cos(), phase.sin(), half, False)
    assert not torch.allclose(turned, x)
    back = turning.turn(turned, phase.cos(), phase.sin(), half, True)
    torch.testing.assert_close(back, x, atol=1e-5, rtol=1e-5)


def test_softplus_keeps_its_digits_where_it_is_small() -> None:
    """To 1e-5, 50 times finer than the 16 bits that it is written in, and so does its slope."""
    x = torch.cat((torch.linspace(-30, 30, 1020), torch.tensor([-80.0, -40.0, 40.0, 90.0])))
    x = x.view(1, 1, -1, 8).requires_grad_()
    ones, zeros = torch.ones(1, 1, 128, 8), torch.zeros(1, 1, 128, 8)
    found = turning.polar(x, ones, zeros, [])[..., :8]
    (slope,) = torch.autograd.grad(found.sum(), x)
    exact = torch.nn.functional.softplus(x.double(), threshold=100)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(slope.double(), x.double().sigmoid(), rtol=1e-5, atol=0)


def test_every_number_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    new_empty = Tensor.new_empty

    def poisoned(self: Tensor, *size: object, **options: object) -> Tensor:
        return new_empty(self, *size, **options).fill_(math.nan)  # type: ignore[arg-type]

    monkeypatch.setattr(Tensor, "new_empty", poisoned)
    for spec in ("partial", "xpos", "pope"):
        _, kernel = both_ways(spec, monkeypatch, 70, (2, 1), 32)
        assert all(torch.isfinite(t).all() for t in kernel.values()), spec


def test_operators_keep_torchs_rules() -> None:
    x = torch.randn(1, 2, 5, 8, requires_grad=True)
    phase, delta = torch.randn(1, 1, 5, 4), torch.randn(2, 8)
    wide = torch.randn(1, 1, 5, 8)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    case = (x, phase.cos(), phase.sin(), True, False)
    torch.library.opcheck(torch.ops.pe.turn.default, case, test_utils=tests)
    shift = [delta.cos().requires_grad_(), delta.sin().requires_grad_()]
    case = (x, wide.cos(), wide.sin(), shift)
    torch.library.opcheck(torch.ops.pe.polar.default, case, test_utils=tests)


def test_the_processor_in_float32_and_learned_frequencies_are_left_to_torch() -> None:
    x, table = torch.randn(1, 1, 4, 8, dtype=torch.bfloat16), torch.randn(1, 1, 4, 4)
    assert not chooser.by_kernel(x, table)  # not on a GPU

    class OnGPU:
        is_cuda, dtype, device = True, torch.bfloat16, torch.device("cpu")

        def numel(self) -> int:
            return 32

    there = OnGPU()
    assert chooser.by_kernel(there, table)  # type: ignore[arg-type]
    assert not chooser.by_kernel(there, table.clone().requires_grad_())  # type: ignore[arg-type]
    assert not chooser.by_kernel(there, table[..., :3])  # type: ignore[arg-type]
    there.dtype = torch.float32
    assert not chooser.by_kernel(there, table)  # type: ignore[arg-type]
