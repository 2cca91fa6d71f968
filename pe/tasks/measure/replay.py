"""Record what a function asks of a GPU once, and replay it: CUDA graphs.

A training step of small models is some thousand short kernels, and what Python and torch take to
start each of them is several times what the GPU takes to run it. A graph starts them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

WARM = 3
"""Calls before recording, which are carried out as usual: libraries set themselves up in them."""


class Replayed:
    """A function of tensors on a GPU, which may change tensors in place; one graph per shape.

    Nothing in it may wait for the GPU, or draw random numbers. Where torch refuses to record it,
    every call is carried out as usual, and `refusal` says why.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self._function = function
        self._calls = 0
        self._stream = torch.cuda.Stream()
        self._graphs: dict[tuple[torch.Size, ...], _Recorded] = {}
        self.refusal = ""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the function returns; a new tensor each time."""
        self._calls += 1
        if self.refusal:
            return self._function(*inputs)
        if self._calls <= WARM:
            return self._aside(inputs)
        shapes = tuple(x.shape for x in inputs)
        if shapes not in self._graphs:
            try:
                self._graphs[shapes] = self._record(inputs)
            except RuntimeError as error:  # an operation that waits for the GPU, for example
                self.refusal = str(error).strip().splitlines()[0]
                return self._function(*inputs)
        graph, kept, result = self._graphs[shapes]
        for to, new in zip(kept, inputs, strict=True):
            to.copy_(new, non_blocking=True)
        graph.replay()
        return result.clone()

    def _aside(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Carried out as usual, on the stream on which graphs are recorded."""
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            result = self._function(*inputs)
        here.wait_stream(self._stream)
        return result

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recorded:
        """Records what the function asks for, and carries nothing out."""
        kept = [x.clone() for x in inputs]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self._stream):
            result = self._function(*kept)
        return _Recorded(graph, kept, result)


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: Tensor
