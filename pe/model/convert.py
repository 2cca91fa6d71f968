"""Give a trained model another positional encoding, with every other weight as it is.

    drop     convert(model, "nope")                 DroPE, arXiv:2512.12167
    extend   convert(model, "yarn", factor=4.0)     any frequency transform, from a rotary model

The result is a new model; the old one is untouched. What the two encodings have in common stays:
learned parameters of a part that both have, and options, RoPE's theta for example. Parameters that
are new are drawn by (seed, name), as at the start of a training.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pe.encodings import Encoding, FrequencyTransform
from pe.encodings.core.change import changed_options
from pe.model.decoder import PEForCausalLM, PEModel
from pe.model.initialize import draw_encodings, outside_encodings

Model = TypeVar("Model", PEModel, PEForCausalLM)


def convert(
    model: Model,
    spec: str,
    *,
    joint_norm: str | None = None,
    softmax_scale: float | None = None,
    length_temperature: float | None = None,
    context_length: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Model:
    """Return a copy of ``model`` with the encoding ``spec``.

    Args:
        spec: a name, or several joined by ``+``; ``"nope"`` drops the encoding.
        joint_norm: ``"q"``, ``"k"`` or ``"qk"``: RMS-normalise queries, keys or both over all their
            heads together, with weights of 1 to begin with. None: as the model has it.
        softmax_scale: factor of the logits in place of 1/sqrt(head_dim). None: as the model has it.
        length_temperature: c in the factor 1 + c ln(n / L) of the logits of a query that sees more
            than the L tokens of training. None: as the model has it.
        context_length: length of the windows the result will be trained on, if it is another.
            Extension methods go on counting from the length that the model knows.
        seed: draws the parameters that the new encoding does not share with the old one.
        options: of the encoding. Options of parts that both have are kept where none is given.

    Raises:
        ValueError: an unknown encoding or option, parts that cannot be combined, a model that is
            not of this package, or a change of frequencies that the model does not have.
    """
    if not isinstance(model, (PEModel, PEForCausalLM)):
        raise ValueError(
            f"convert takes a model of pe.model, not a {type(model).__name__}; load it with "
            "AutoModelForCausalLM.from_pretrained from a run's checkpoint"
        )
    config = model.config
    length = config.max_position_embeddings
    own_length = None if context_length in (None, length) else length
    fields = {
        "pe": spec,
        "pe_options": changed_options(config.pe, config.pe_options, spec, options, own_length),
        "joint_norm": joint_norm,
        "softmax_scale": softmax_scale,
        "length_temperature": length_temperature,
        "max_position_embeddings": context_length,
    }
    config = config.changed(**{k: v for k, v in fields.items() if v is not None})
    with torch.random.fork_rng(devices=[]):  # a conversion draws nothing that others would
        new = type(model)(config)
    new.to(device=model.device, dtype=model.dtype)
    _fill(new, model, seed)
    if isinstance(model, PEForCausalLM):
        new.generation_config = copy.deepcopy(model.generation_config)
    new.train(model.training)
    return new


@torch.no_grad()
def _fill(new: nn.Module, old: nn.Module, seed: int) -> None:
    """Copy what both models have; draw what only the new encoding has. New norms stay at 1."""
    draw_encodings(new, seed)
    before = dict(outside_encodings(old)) | dict(_shared(old))
    for key, parameter in (*outside_encodings(new), *_shared(new)):
        if key in before and before[key].shape == parameter.shape:
            parameter.copy_(before[key])


def _shared(model: nn.Module) -> Iterator[tuple[Any, Tensor]]:
    """Parameters of encodings by layer, class and name, wherever in a sum the part is."""
    decoder: Any = model.model if isinstance(model, PEForCausalLM) else model
    for index, number in enumerate(decoder.encoding_of):
        layer = decoder.encodings[number]
        parts = [m for m in layer.modules() if isinstance(m, (Encoding, FrequencyTransform))]
        seen: set[int] = set()
        for part in reversed(parts):  # the inner ones, whose parameters they are, first
            for name, parameter in part.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield (index, type(part), name), parameter
