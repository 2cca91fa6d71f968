"""The operators of rotations: interpreted kernels and definitions, held against formulas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor

import pe
from pe.encodings.core import rotation

kernels = pytest.importorskip("pe.attention.kernels.rotary", reason="needs triton")
NAMES = ("rotate", "polar", "polar_gradient")


@pytest.fixture(params=["kernel", "definition"])
def operators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What the operators are computed by on the CPU: the interpreted kernels or torch."""
    with ExitStack() as stack:
        for name in NAMES:
            operator = getattr(rotation, name)
            if "cpu" not in operator._backend_fns:
                operator.register_kernel("cpu", getattr(kernels, name))
                operator._disabled_kernel.add("cpu")  # for other tests
            if request.param == "kernel":
                stack.enter_context(operator.set_kernel_enabled("cpu"))
        yield request.param


def both_ways(
    spec: str, monkeypatch: pytest.MonkeyPatch, length: int, heads: tuple[int, int], width: int
) -> list[dict[str, Tensor]]:
    """Rotated queries and keys and all gradients, by the formula and by the operators."""
    results = []
    for operator in (False, True):
        module = "pope" if spec == "pope" else "rope"
        monkeypatch.setattr(f"pe.encodings.{module}.takes_operator", lambda *_, way=operator: way)
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
        rotated = enc.rotate(q, k, positions, positions)
        learned = [packed, *(p for p in enc.parameters() if p.requires_grad)]
        upstream = [torch.randn(t.shape) for t in rotated]
        gradients = torch.autograd.grad(rotated, learned, upstream)
        names = ["q", "k", *(f"gradient {i}" for i in range(len(gradients)))]
        results.append(dict(zip(names, [*rotated, *gradients], strict=True)))
    return results


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize(
    ("spec", "length", "heads", "width"),
    [
        ("rope", 1, (2, 2), 16), ("rope", 70, (4, 2), 32), ("xpos", 70, (4, 2), 32),
        ("fope", 70, (3, 1), 32), ("partial", 33, (2, 1), 64), ("yarn", 70, (2, 1), 32),
        ("pope", 1, (2, 2), 16), ("pope", 70, (4, 2), 32),
    ],
)  # fmt: skip
def test_operators_rotate_as_the_formula_does(
    spec: str, length: int, heads: tuple[int, int], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    formula, operator = both_ways(spec, monkeypatch, length, heads, width)
    for name, want in formula.items():
        torch.testing.assert_close(operator[name], want, atol=2e-5, rtol=1e-5, msg=name)


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("half", [True, False])
def test_rotating_backward_undoes_rotating(half: bool) -> None:
    torch.manual_seed(0)
    x, phase = torch.randn(2, 3, 70, 32), torch.randn(1, 1, 70, 16)
    rotated = rotation.rotate(x, phase.cos(), phase.sin(), half, False)
    assert not torch.allclose(rotated, x)
    restored = rotation.rotate(rotated, phase.cos(), phase.sin(), half, True)
    torch.testing.assert_close(restored, x, atol=1e-5, rtol=1e-5)


def test_softplus_keeps_its_digits_where_it_is_small() -> None:
    """To 1e-5, 50 times finer than the 16 bits that it is written in, and so does its slope."""
    x = torch.cat((torch.linspace(-30, 30, 1020), torch.tensor([-80.0, -40.0, 40.0, 90.0])))
    x = x.view(1, 1, -1, 8)
    ones, zeros = torch.ones(1, 1, 128, 8), torch.zeros(1, 1, 128, 8)
    length = kernels.polar(x, ones, zeros, [])[..., :8]
    upstream = torch.cat((torch.ones_like(x), torch.zeros_like(x)), -1)
    slope, _ = kernels.polar_gradient(upstream, x, ones, zeros, [])
    exact = torch.nn.functional.softplus(x.double(), threshold=100)
    torch.testing.assert_close(length.double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(slope.double(), x.double().sigmoid(), rtol=1e-5, atol=0)


@pytest.mark.usefixtures("operators")
def test_every_number_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    new_empty = Tensor.new_empty

    def poisoned(self: Tensor, *size: object, **options: object) -> Tensor:
        return new_empty(self, *size, **options).fill_(math.nan)  # type: ignore[arg-type]

    monkeypatch.setattr(Tensor, "new_empty", poisoned)
    for spec in ("partial", "xpos", "pope"):
        _, operator = both_ways(spec, monkeypatch, 40, (2, 1), 32)
        assert all(torch.isfinite(t).all() for t in operator.values()), spec


@pytest.mark.usefixtures("operators")
def test_operators_keep_torchs_rules() -> None:
    x = torch.randn(1, 2, 5, 8, requires_grad=True)
    phase, delta = torch.randn(1, 1, 5, 4), torch.randn(2, 8)
    wide = torch.randn(1, 1, 5, 8)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    case = (x, phase.cos(), phase.sin(), True, False)
    torch.library.opcheck(torch.ops.pe.rotate.default, case, test_utils=tests)
    shift = [delta.cos().requires_grad_(), delta.sin().requires_grad_()]
    case = (x, wide.cos(), wide.sin(), shift)
    torch.library.opcheck(torch.ops.pe.polar.default, case, test_utils=tests)


def test_the_cpu_float32_and_learned_frequencies_take_the_formula() -> None:
    x, table = torch.randn(1, 1, 4, 8, dtype=torch.bfloat16), torch.randn(1, 1, 4, 4)
    assert not rotation.takes_operator(x, table)  # not on a GPU

    class OnGPU:
        is_cuda, dtype, device = True, torch.bfloat16, torch.device("cpu")

        def numel(self) -> int:
            return 32

    there = OnGPU()
    assert rotation.takes_operator(there, table)  # type: ignore[arg-type]
    assert not rotation.takes_operator(there, table.clone().requires_grad_())  # type: ignore[arg-type]
    assert not rotation.takes_operator(there, table[..., :3])  # type: ignore[arg-type]
    there.dtype = torch.float32
    assert not rotation.takes_operator(there, table)  # type: ignore[arg-type]


def test_a_cuda_device_without_kernels_computes_the_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An old card, or no triton: the registered function asks before it imports a kernel."""
    from pe.attention import available

    registered: dict[str, object] = {}

    class Operator:
        def register_kernel(self, device: str, compute: object) -> None:
            registered[device] = compute

    available._register(Operator(), lambda x: ("definition", x), "rotary", "no_such_kernel")
    compute, x = registered["cuda"], torch.zeros(1)
    monkeypatch.setattr(available, "unavailable_reason", lambda device: "the card is too old")
    assert compute(x)[0] == "definition"  # type: ignore[operator]
    monkeypatch.setattr(available, "unavailable_reason", lambda device: None)
    with pytest.raises(AttributeError, match="no_such_kernel"):
        compute(x)  # type: ignore[operator]
