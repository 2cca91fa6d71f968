"""CLEX's differential equation in one kernel, interpreted on the CPU, against the loop of torch."""

from __future__ import annotations

import pytest
import torch

from pe.attention.choose import INTERPRETED
from pe.encodings.core import clex_ode

clex = pytest.importorskip("pe.attention.kernels.clex", reason="needs triton")
pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled here")


def near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("activation", clex_ode.ACTIVATIONS)
@pytest.mark.parametrize(("pairs", "width"), [(4, 8), (12, 20), (32, 64)])
@pytest.mark.parametrize("last", [1, 3, 9])
def test_the_kernels_solve_and_differentiate_as_the_loop(
    activation: str, pairs: int, width: int, last: int
) -> None:
    g = torch.Generator().manual_seed(last)
    start, origin = (torch.randn(pairs, generator=g, dtype=torch.float64) - 3 for _ in range(2))
    up = torch.randn(pairs, width, generator=g, dtype=torch.float64) / pairs**0.5
    down = torch.randn(width, pairs, generator=g, dtype=torch.float64) / width**0.5
    upstream = torch.randn(4, pairs, generator=g, dtype=torch.float64)
    given = (start, origin, up, down, torch.tensor(last), 4, 3, activation)
    near(clex.solve(*given), clex_ode.solve_by_hand(*given))
    wanted = clex_ode.gradient_by_hand(upstream, *given)
    for mine, right in zip(clex.gradient(upstream, *given), wanted, strict=True):
        near(mine, right)


def test_what_does_not_fit_in_one_program_is_left_to_torch() -> None:
    assert clex.fits(torch.empty(64, 128))
    assert not clex.fits(torch.empty(100, 200))


def test_a_kernel_that_is_wrong_says_so_before_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    clex.prove.__wrapped__(4, 8, "tanh", device)
    right = clex.solve
    monkeypatch.setattr(clex, "solve", lambda *given: right(*given) * (1 + 1e-8))
    with pytest.raises(RuntimeError, match=r"CLEX's .* finds a z that is 1.0e-08 off"):
        clex.prove.__wrapped__(4, 8, "tanh", device)
