"""Record what a function asks of a GPU once, and replay it: CUDA graphs.

A training step of small models runs about a thousand short kernels. Python and torch take several
times as long to start a kernel as the GPU takes to run it. A graph starts all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

WARM = 3
"""Calls that run as usual before recording, while libraries set themselves up."""


class Replayed:
    """A function of GPU tensors that is recorded once per input shape and then replayed.

    The function may change tensors in place. It must neither wait for the GPU nor draw random
    numbers. If torch refuses to record it, every call runs as usual and `refusal` is the reason.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self._function = function
        self._calls = 0
        self._stream = torch.cuda.Stream()
        self._graphs: dict[tuple[torch.Size, ...], _Recorded] = {}
        self.refusal = ""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the function's result as a new tensor."""
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
        """Run the function as usual, on the stream that records graphs."""
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            result = self._function(*inputs)
        here.wait_stream(self._stream)
        return result

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recorded:
        """Record the function's kernels without running them."""
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
