"""How the layers of a recipe compute attention, and the memory that matrices of logits take.

A bias that no kernel computes is a float32 matrix with an entry for each head, query and key. The
gradient needs this matrix and often the intermediate results that led to it, so a layer keeps them
until its backward pass: Self-Extend 1 such matrix, stick-breaking 3, PaTH 6 and, with 8 heads, DAPE
11. For 64 windows of 1,024 tokens and 8 heads, each of these takes 2 GiB per layer.

No table holds these numbers, because they follow from the encoding's code. `matrices_of` passes
short sequences through `pe.attend` and counts what torch saves for the gradient. A compiled step
saves as much, or less if the compiler computes something a second time. An eager step saves less,
because it computes an expensive bias in blocks (`pe.encodings.core.query_rows`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pe import devices
from pe.attention import attend, path_for
from pe.attention.rows import BLOCK
from pe.encodings import Encoding, encoding
from pe.encodings.core.spec import layer_specs
from pe.recipes.recipe import Recipe
from pe.training.check import encoding_options, encoding_sizes

if TYPE_CHECKING:
    from pe.model import PEForCausalLM

CPU = torch.device("cpu")

SLOWEST_FIRST = ("rows", "matrix", "kernel", "flash")
SHORT = 16
"""Tokens of the shortest sequence that `matrices_of` measures."""


def attention_path(model: PEForCausalLM, recipe: Recipe, windows: int, device: torch.device) -> str:
    """Return how a training step computes attention, in the slowest of the layers.

    Args:
        windows: number of windows in a forward pass of one process.

    Returns:
        One of the names that `pe.attention.choose` explains.
    """
    paths = {_path(enc, recipe, windows, device) for enc in model.model.encodings}  # type: ignore[arg-type]
    return next(path for path in SLOWEST_FIRST if path in paths)


def _path(enc: Encoding, recipe: Recipe, windows: int, device: torch.device | None) -> str:
    """Return how a layer computes attention; ``device``: None is a GPU that has our kernels."""
    place = device or torch.device("cuda")
    dtype = torch.bfloat16 if devices.narrow(recipe.precision, place) else torch.float32
    compiled = devices.compiles(recipe.compile, place)
    if recipe.reset_positions or recipe.mask_documents:
        needs_mask = recipe.mask_documents and enc.length_dependent
        # A compiled graph cannot read positions, which a bias by distance needs (`PEModel._spans`).
        by_spans = enc.hides and (not enc.biased or (enc.relative and not compiled))
        if needs_mask or not by_spans:
            device = CPU  # the kernels cannot be used, as on a CPU
        compiled = compiled or needs_mask  # nor can rows in a window
    sequences = windows * recipe.num_attention_heads
    return path_for(enc, device, dtype, recipe.context_length, sequences, recipe.head_dim, compiled)


def matrix_bytes(recipe: Recipe, windows: int) -> list[tuple[float, float]]:
    """Return the memory that matrices take in a training step on a GPU, for each layer.

    Args:
        windows: number of windows in a forward pass of one process.

    Returns:
        For each layer the bytes that it keeps until its backward pass, and those that it needs
        during that pass, in which gradients take about as much again.

    Raises:
        ValueError: the encoding or one of its options is unknown or wrong.
    """
    specs = layer_specs(recipe.pe, recipe.num_hidden_layers)
    arguments = json.dumps(encoding_sizes(recipe) | encoding_options(recipe), sort_keys=True)
    documents = recipe.reset_positions or recipe.mask_documents
    entries = windows * recipe.num_attention_heads * recipe.context_length**2
    sizes = []
    for spec in specs:
        enc, matrices = _measured(recipe.pe, specs.index(spec), arguments, documents)
        path = _path(enc, recipe, windows, None)
        whole, block = 4 * matrices * entries, 4 * matrices * min(entries, BLOCK)
        of_path = {"matrix": (whole, 2 * whole), "rows": (0.0, 2 * block)}
        sizes.append(of_path.get(path, (0.0, 0.0)))
    return sizes


@functools.cache
def _measured(pe: str, layer: int, arguments: str, documents: bool) -> tuple[Encoding, float]:
    """Return the encoding of a layer and the number of its matrices.

    Args:
        arguments: those of `encoding`, in JSON.
        documents: whether positions differ from window to window.
    """
    values = json.loads(arguments)
    with torch.random.fork_rng(devices=[]):  # building an encoding draws initial values
        enc = encoding(pe, layer_index=layer, **values)
        return enc, matrices_of(enc, values, documents)


def matrices_of(enc: Encoding, sizes: Mapping[str, int], documents: bool) -> float:
    """Return how many float32 numbers a layer saves for each head, query and key of a sequence.

    What is saved for B sequences of T tokens is a polynomial in B and T. The coefficient of B T^2
    follows from a first difference in B and a second one in T.

    Args:
        sizes: ``head_dim``, ``num_heads``, ``num_kv_heads`` and ``hidden_size``.
    """
    if path_for(enc, CPU, torch.float32, SHORT) == "flash":
        return 0.0
    one, two, three = (
        _saved_bytes(enc, sizes, 2, times * SHORT, documents)
        - _saved_bytes(enc, sizes, 1, times * SHORT, documents)
        for times in (1, 2, 3)
    )
    return (one - 2 * two + three) / (2 * SHORT**2) / (4 * sizes["num_heads"])


def _saved_bytes(
    enc: Encoding, sizes: Mapping[str, int], batch: int, length: int, documents: bool
) -> int:
    """Return the bytes that torch saves for the gradient of attention to short sequences."""
    heads, keys, width = sizes["num_heads"], sizes["num_kv_heads"], sizes["head_dim"]
    q, k, v, x = (
        torch.zeros(batch, *shape, requires_grad=True)
        for shape in (
            (heads, length, width), (keys, length, width), (keys, length, width),
            (length, sizes["hidden_size"]),
        )
    )  # fmt: skip
    positions = torch.arange(length).expand(batch, length) if documents else None
    saved: dict[int, Tensor] = {}  # by storage, as several tensors may share one

    def save(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        attend(enc, q, k, v, positions, positions, backend="sdpa", layer_input=x)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
