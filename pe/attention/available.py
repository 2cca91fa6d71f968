"""Where our Triton kernels can run, and for which operators of the encodings they are registered.

`pe.encodings.core` defines some operators by operations of torch. Importing this module gives them
CUDA kernels. Triton is imported when one is first called: it takes long, and may not be installed,
in which case the definition is computed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

from pe.encodings.core import clex_ode, rotation

# Known before any graph is traced: torch.compile can follow neither question, and would leave half
# of each layer uncompiled.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton runs its kernels on the CPU, one block after another, as tests do."""
HAS_TRITON = importlib.util.find_spec("triton") is not None


def unavailable_reason(device: torch.device) -> str | None:
    """Why there are no kernels for ``device``; None if there are."""
    if not HAS_TRITON:
        return "triton is not installed"
    if torch.version.hip is not None:
        return "the kernels are written for NVIDIA's cards"
    if device.type == "cuda" and not INTERPRETED:
        if torch.cuda.get_device_properties(device).major < 8:
            return "the kernels need compute capability 8.0 (Ampere) or newer"
        return None
    return None if INTERPRETED and device.type == "cpu" else "the kernels need a CUDA device"


def _register(operator: Any, definition: Callable[..., Any], module: str, name: str) -> None:
    """Let ``operator`` be computed by function ``name`` of a kernel module on CUDA devices."""

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
_register(clex_ode.path, clex_ode.path_by_steps, "clex", "path")
