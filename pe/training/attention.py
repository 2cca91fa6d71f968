"""How the layers of a recipe compute attention, and the memory that matrices of logits take.

A bias that no kernel computes is a float32 matrix with an entry for each head, query and key. The
gradient needs this matrix and often the intermediate results that led to it, so a layer keeps them
until its backward pass. Self-Extend keeps 1 such matrix, which takes 2 GiB per layer for 64 windows
of 1,024 tokens and 8 heads.

No table holds these numbers, because they follow from the encoding's code. `matrices_of` passes
short sequences through `pe.attend` and counts what torch saves for the gradient. A compiled step
saves as much, or less if the compiler computes something a second time. An eager step saves less,
because it computes an expensive bias in blocks (`pe.encodings.core.query_rows`).

Kernels keep no such matrix, but of a bias with a row for each query (`pe.encodings.core.forms`)
they keep the rows.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pe import devices
from pe.attention import attend, path_for
from pe.encodings import Encoding, encoding
from pe.encodings.core import query_rows
from pe.encodings.core.forms import ROWS
from pe.encodings.core.spec import layer_specs
from pe.recipes.recipe import Recipe
from pe.training.check import encoding_options, encoding_sizes

if TYPE_CHECKING:
    from pe.model import PEForCausalLM

CPU = torch.device("cpu")

SLOWEST_FIRST = ("rows", "matrix", "kernel", "flash")
SHORT = 8
"""Tokens of the shortest of the three sequences that `matrices_of` measures, if the context has
three times as many."""


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
    """Return the memory that matrices and rows take in a training step on a GPU, for each layer.

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
    documents = recipe.reset_positions or recipe.mask_documents, recipe.mask_documents
    length, in_blocks = recipe.context_length, recipe.compile == "off"
    entries = windows * recipe.num_attention_heads * length**2
    sizes = []
    for spec in specs:
        enc, matrices = _measured(
            recipe.pe, specs.index(spec), arguments, length, *documents, in_blocks
        )
        path = _path(enc, recipe, windows, None)
        kept, block = 0.0, 0.0
        if path == "matrix":
            kept = 4 * matrices * entries
        elif path == "rows":
            from pe.attention.rows import BLOCK  # imports torch's compiler, slowly

            block = 4 * matrices * min(entries, BLOCK)
        elif path == "kernel":
            kept = 2.0 * entries / length * _row_length(enc, recipe)  # in bfloat16
        sizes.append((kept, 2 * (kept + block)))
    return sizes


def _row_length(enc: Encoding, recipe: Recipe) -> int:
    """Return how many numbers for each head and query the kernels read."""
    state = enc.key_state(torch.zeros(1, 1, recipe.hidden_size)) if enc.state_size else None
    form = enc.bias_form(1, CPU, state)
    return form.reach if form.kind == ROWS else 0


@functools.cache
def _measured(
    pe: str, layer: int, arguments: str, length: int, positions: bool, mask: bool, in_blocks: bool
) -> tuple[Encoding, float]:
    """Return the encoding of a layer and its `matrices_of`.

    Args:
        arguments: those of `encoding`, in JSON.
        in_blocks: whether biases are computed in blocks, as in an eager step.
    """
    values = json.loads(arguments)
    blocks = contextlib.nullcontext() if not in_blocks else patch.object(query_rows, "NUMBERS", 0)
    with torch.random.fork_rng(devices=[]), blocks:  # building an encoding draws initial values
        enc = encoding(pe, layer_index=layer, **values)
        return enc, matrices_of(enc, values, length, positions, mask)


def matrices_of(
    enc: Encoding,
    sizes: Mapping[str, int],
    length: int,
    positions: bool = False,
    mask: bool = False,
) -> float:
    """Return the number of float32 matrices, over heads, queries and keys, that a layer saves.

    What is saved for B sequences of T tokens is a polynomial in B and T. It is linear in B and of
    degree 2 in T. It is fitted to short sequences, and its term in B T^2 counts.

    Args:
        sizes: ``head_dim``, ``num_heads``, ``num_kv_heads`` and ``hidden_size``.
        length: T. positions: whether each sequence has other positions. mask: whether it has a
            mask.
    """
    if path_for(enc, CPU, torch.float32, length) == "flash":
        return 0.0
    lengths = max(1, min(SHORT, length // 3)) * np.arange(1, 4)
    one, two = (
        np.array([_saved_bytes(enc, sizes, batch, int(n), positions, mask) for n in lengths])
        for batch in (1, 2)
    )
    quadratic = np.linalg.solve(np.vander(lengths.astype(float)), two - one)[0]
    return float(quadratic) / (4 * sizes["num_heads"])


def _saved_bytes(
    enc: Encoding, sizes: Mapping[str, int], batch: int, length: int, positions: bool, mask: bool
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
    places = torch.arange(length).expand(batch, length) if positions else None
    seen = torch.ones(batch, 1, length, length, dtype=torch.bool).tril() if mask else None
    saved: dict[int, Tensor] = {}  # by storage, as several tensors may share one

    def save(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        attend(enc, q, k, v, places, places, seen, backend="sdpa", layer_input=x)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
