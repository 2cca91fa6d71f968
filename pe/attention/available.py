"""Decide where the Triton kernels can run, and register those of the encodings' operators.

`pe.encodings.core` defines some operators by operations of torch. Importing this module registers
CUDA kernels for them. Triton is imported when such an operator is first called, because the import
is slow. Where Triton is not installed, the operations of torch are used.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

from pe.encodings.core import clex_ode, rotation

# Both are constants, because torch.compile cannot trace how they are computed and would leave half
# of each layer uncompiled.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton's interpreter runs the kernels on the CPU, as in tests."""
HAS_TRITON = importlib.util.find_spec("triton") is not None


def unavailable_reason(device: torch.device) -> str | None:
    """Return why the kernels cannot run on ``device``; None if they can."""
    if not HAS_TRITON:
        return "triton is not installed"
    if torch.version.hip is not None:
        return "the kernels are written for NVIDIA GPUs"
    if device.type == "cuda" and not INTERPRETED:
        if torch.cuda.get_device_properties(device).major < 8:
            return "the kernels need compute capability 8.0 (Ampere) or newer"
        return None
    return None if INTERPRETED and device.type == "cpu" else "the kernels need a CUDA device"


def _register(operator: Any, definition: Callable[..., Any], module: str, name: str) -> None:
    """Register function ``name`` of a kernel module for ``operator`` on CUDA devices.

    Args:
        definition: computes the operator where the kernels cannot run.
    """

    def compute(*arguments: Any) -> Any:
        device = next(a.device for a in arguments if isinstance(a, torch.Tensor))
        if unavailable_reason(device) is not None:
            return definition(*arguments)
        kernels = importlib.import_module(f"pe.attention.kernels.{module}")
        return getattr(kernels, name)(*arguments)

    operator.register_kernel("cuda", compute)


_register(rotation.rotate, rotation.rotate_by_formula, "rotary", "rotate")
_register(rotation.polar, rotation.polar_by_formula, "rotary", "polar")
_register(rotation.polar_gradient, rotation.polar_gradient_by_formula, "rotary", "polar_gradient")
_register(clex_ode.solve, clex_ode.solve_by_steps, "clex", "solve")
_register(clex_ode.gradient, clex_ode.gradient_by_steps, "clex", "gradient")
