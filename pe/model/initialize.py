"""Draw initial weights by parameter name, so that models share all weights they have in common.

Each parameter has its own generator, seeded by (seed, name). So models with RoPE and with PoPE
start from the same projections, and a comparison between encodings with one seed is paired.
"""

import math
from collections.abc import Iterator

import torch
from torch import nn

from pe.encodings import Encoding
from pe.model.rng import seed_of

RESIDUAL = ("o_proj.weight", "down_proj.weight")
"""Projections whose output is added to the residual stream."""
EMBEDDING = "embed_tokens.weight"


def generator_for(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator that depends on the seed and the name only."""
    return torch.Generator(device="cpu").manual_seed(seed_of(seed, name))


def outside_encodings(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the name and the parameter, for all parameters except those of encodings."""
    inside = {id(p) for m in model.modules() if isinstance(m, Encoding) for p in m.parameters()}
    return (item for item in model.named_parameters() if id(item[1]) not in inside)


@torch.no_grad()
def draw_weights(
    model: nn.Module, seed: int, std: float = 0.02, embedding_std: float | None = None
) -> None:
    """Draw all weights of ``model`` from ``seed``.

    Matrices are normal with standard deviation ``std``, divided by sqrt(2 layers) for projections
    that are added to the residual stream, as in GPT-2. Norms are 1. Token embeddings have standard
    deviation ``embedding_std`` if that is given. Encodings draw their own parameters.
    """
    layers = sum(1 for name, _ in model.named_parameters() if name.endswith("o_proj.weight"))
    for name, parameter in outside_encodings(model):
        if parameter.dim() < 2:
            parameter.fill_(1.0)
            continue
        scale = std / math.sqrt(2 * layers) if name.endswith(RESIDUAL) else std
        if name.endswith(EMBEDDING) and embedding_std is not None:
            scale = embedding_std
        drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        drawn.normal_(0.0, scale, generator=generator_for(seed, name))
        parameter.copy_(drawn)
    draw_encodings(model, seed)


def draw_encodings(model: nn.Module, seed: int) -> None:
    """Draw the learned parameters of each encoding in the model by (seed, name)."""
    encodings = [(name, m) for name, m in model.named_modules() if isinstance(m, Encoding)]
    nested = {id(m) for _, outer in encodings for m in outer.modules() if m is not outer}
    for name, module in encodings:
        if id(module) not in nested:  # a composite draws the parameters of its parts
            _reset(module, generator_for(seed, name))


def _reset(module: Encoding, generator: torch.Generator) -> None:
    """Reset ``module`` on the CPU, because a CPU generator cannot draw on another device."""
    device = next((p.device for p in module.parameters()), generator.device)
    if device.type in ("cpu", "meta"):
        module.reset_parameters(generator)
    else:
        module.cpu().reset_parameters(generator)
        module.to(device)
