"""Give a trained model another positional encoding and keep every other weight.

    drop     convert(model, "nope")                 DroPE, arXiv:2512.12167
    extend   convert(model, "yarn", factor=4.0)     any frequency transform, from a rotary model

The result is a new model; the old one stays as it is. If both encodings contain the same part, such
as RoPE, its learned parameters and its options (theta, for example) are taken over. New parameters
are drawn by (seed, name), as at the start of training.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pe._errors import LAST_SEED, whole
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
            heads together, with weights that start at 1. None: keep the model's setting.
        softmax_scale: factor of the logits in place of 1/sqrt(head_dim). None: keep the model's.
        length_temperature: c in the factor 1 + c ln(n / L), by which the logits of a query that
            sees n tokens are multiplied if n exceeds the L tokens of training. None: keep it.
        context_length: number of tokens in the windows on which the result will be trained, if
            that changes. Extension methods still count from the model's present length.
        seed: determines the parameters that the new encoding does not share with the old one.
        options: options of the new encoding. An option of a part that both encodings have keeps
            its value unless it is given here.

    Raises:
        ValueError: the encoding or an option is unknown, parts cannot be combined, the model is
            not one of this package, ``spec`` changes frequencies and the model has none, an option
            changes the shape of parameters that are to be taken over, or ``context_length`` or
            ``seed`` is no whole number in its range.
    """
    if not isinstance(model, (PEModel, PEForCausalLM)):
        raise ValueError(
            f"convert takes a model of pe.model, not a {type(model).__name__}; load it with "
            "AutoModelForCausalLM.from_pretrained from a run's checkpoint"
        )
    whole("seed", seed, most=LAST_SEED)
    if context_length is not None:
        whole("context_length", context_length, 1)
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
    with torch.random.fork_rng(devices=[]):  # leaves the caller's random numbers as they were
        new = type(model)(config)
    new.to(device=model.device, dtype=model.dtype)
    _fill(new, model, seed)
    if isinstance(model, PEForCausalLM):
        own = new.generation_config.use_cache  # False if the new encoding allows no cache
        new.generation_config = copy.deepcopy(model.generation_config)
        if new.model.cacheable != model.model.cacheable:
            new.generation_config.use_cache = own
    new.train(model.training)
    return new


@torch.no_grad()
def _fill(new: nn.Module, old: nn.Module, seed: int) -> None:
    """Copy the parameters that both models have and draw those of the new encoding alone.

    New norms keep their initial weights of 1.
    """
    draw_encodings(new, seed)
    before = dict(outside_encodings(old)) | dict(_shared(old))
    for key, parameter in (*outside_encodings(new), *_shared(new)):
        if key not in before:
            continue
        if before[key].shape != parameter.shape:
            _, part, name = key
            raise ValueError(
                f"{part.name or part.__name__}: {name} of shape {tuple(before[key].shape)} is "
                f"learned, and has shape {tuple(parameter.shape)} in the new encoding, so it would "
                "be lost; give the option that decides the shape its old value, whose default may "
                "follow from a window or the training length, or convert to 'nope' first"
            )
        parameter.copy_(before[key])


def _shared(model: nn.Module) -> Iterator[tuple[Any, Tensor]]:
    """Yield each parameter of the encodings with its key: layer, class and name.

    The key says nothing about the place of a part in a sum such as ``rope+fox``, so that a part is
    recognised in any sum.
    """
    decoder: Any = model.model if isinstance(model, PEForCausalLM) else model
    for index, number in enumerate(decoder.encoding_of):
        layer = decoder.encodings[number]
        parts = [m for m in layer.modules() if isinstance(m, (Encoding, FrequencyTransform))]
        seen: set[int] = set()
        for part in reversed(parts):  # inner modules first, since they own the parameters
            for name, parameter in part.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield (index, type(part), name), parameter
