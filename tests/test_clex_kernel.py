"""CLEX's differential equation in one kernel, interpreted on the CPU, against the loop of torch."""

from __future__ import annotations

import pytest
import torch

from pe.attention.available import INTERPRETED
from pe.encodings.core import clex_ode

clex = pytest.importorskip("pe.attention.kernels.clex", reason="needs triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled here")


def near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("activation", "pairs", "width", "last"),
    [("tanh", 4, 8, 1), ("silu", 4, 8, 2), ("tanh", 12, 20, 9)],
)
def test_the_kernels_solve_and_differentiate_as_the_loop(
    activation: str, pairs: int, width: int, last: int
) -> None:
    """Up to no step, to some, and to the end; F and W that are powers of two, and that are not."""
    g = torch.Generator().manual_seed(last)
    start, origin = (torch.randn(pairs, generator=g, dtype=torch.float64) - 3 for _ in range(2))
    up = torch.randn(pairs, width, generator=g, dtype=torch.float64) / pairs**0.5
    down = torch.randn(width, pairs, generator=g, dtype=torch.float64) / width**0.5
    upstream = torch.randn(3, pairs, generator=g, dtype=torch.float64)
    case = (start, origin, up, down, torch.tensor(last), 3, 3, activation)
    near(clex.solve_by_kernel(*case), clex_ode.solve_by_steps(*case))
    expected = clex_ode.gradient_by_steps(upstream, *case)
    for mine, right in zip(clex.gradient_by_kernel(upstream, *case), expected, strict=True):
        near(mine, right)


def test_what_does_not_fit_in_one_program_is_computed_by_steps_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert clex.fits(torch.empty(64, 128))
    assert not clex.fits(torch.empty(100, 200))
    monkeypatch.setattr(clex, "fits", lambda up: False)
    monkeypatch.setattr(clex, "forward", None)
    start, up = torch.zeros(4, dtype=torch.float64), torch.ones(4, 8, dtype=torch.float64)
    case = (start, start, up, up.mT.contiguous(), torch.tensor(2), 3, 2, "tanh")
    assert torch.equal(clex.solve(*case), clex_ode.solve_by_steps(*case))


def test_a_kernel_that_is_wrong_says_so_before_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    clex.self_check.__wrapped__(4, 8, "tanh", device)
    right = clex.solve_by_kernel
    monkeypatch.setattr(clex, "solve_by_kernel", lambda *case: right(*case) * (1 + 1e-8))
    message = r"CLEX's .* computes a z with a relative error of 1.0e-08"
    with pytest.raises(RuntimeError, match=message):
        clex.self_check.__wrapped__(4, 8, "tanh", device)
