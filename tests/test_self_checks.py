"""The checks of kernels before their first use run where the kernels do: in a compiled operator."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pe.attention.kernels
from pe.encodings.core.forms import TABLE

CPU = torch.device("cpu")
SHORT = {
    "flash.self_check.LENGTH": 70, "cope.self_check.LENGTH": 70, "stickbreaking.op.CHECKED": 70,
    "dape.LENGTH": 24, "path.op.LENGTH": 70,
}  # fmt: skip
"""Tokens of the checks, which are longer on a GPU."""
CHECKS: dict[str, tuple[Any, ...]] = {
    "flash.op": (TABLE, 0, 16, 16, torch.float32, CPU),
    "cope.op": (16, 16, torch.float32, CPU, True),
    "stickbreaking.op": (1, 16, 16, torch.float32, CPU),
    "dape": (2, 32, torch.float32, CPU),
    "path.op": (16, 16, torch.float32, CPU),
    "clex": (4, 8, "tanh", CPU),
}


def test_every_check_is_here() -> None:
    root = Path(pe.attention.kernels.__path__[0])
    found = {
        ".".join(file.relative_to(root).with_suffix("").parts)
        for file in root.rglob("*.py")
        if "def self_check(" in file.read_text(encoding="utf-8")
    }
    assert found == set(CHECKS)


@pytest.mark.parametrize("module", CHECKS)
def test_a_check_needs_neither_autograd_nor_functorch(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAPE's and CLEX's did, so their first use in a compiled model failed on a GPU."""
    for name, tokens in SHORT.items():
        monkeypatch.setattr(f"pe.attention.kernels.{name}", tokens)
    check = import_module(f"pe.attention.kernels.{module}").self_check.__wrapped__

    def checked(x: Tensor) -> Tensor:
        check(*CHECKS[module])
        return x.clone()

    name = f"pe_tests::check_{module.replace('.', '_')}"
    operator = torch.library.custom_op(name, checked, mutates_args=())
    operator.register_fake(torch.empty_like)
    operator.register_autograd(lambda context, gradient: gradient)
    compiled = torch.compile(lambda x: operator(x) * 2, backend="aot_eager")
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(compiled(x), 2 * x)
