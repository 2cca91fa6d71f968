"""Parts of a spec that choose which keys a layer sees, or how sharply it attends to them.

    window:w       the last w keys                 i - j < w
    chunk:c        the keys of the query's chunk   floor(i / c) = floor(j / c)
    sinks:n        the first n keys as well        j < n
    sink           one more logit without value:   softmax over [z, s_h], the last weight dropped
    temperature:L  larger logits far away:         z (1 + a ln(1 + floor(p / L))),   a = 0.1

i and j are the numbers of query and key among the tokens that the query may see at all
(`Encoding.narrow`). Hidden tokens are not counted, and each document of a sequence is counted from
its first token, so positions do not decide what is visible. z is a logit and s_h a learned number
of head h. p is the position of the query. In a layer with a window or a chunk it is the number of
visible keys minus one (`pe.encodings.core.key_range.Narrowed`).

Windows are from Beltagy, Peters, Cohan 2020 (arXiv:2004.05150) and Jiang et al. 2023
(arXiv:2310.06825), chunks from Llama 4 in transformers' code, and first tokens that are kept from
Xiao et al. 2023 (arXiv:2309.17453). The learned logit is from gpt-oss (arXiv:2508.10925). The
temperature is from Ministral 3 in transformers' code, where a is called llama_4_scaling_beta.
Llama 4 has p + 1 instead of p, and has it in layers without an encoding (`irope`).
"""

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import positive
from pe.encodings.core.distance import at_least_float32
from pe.encodings.core.key_range import KeyRange
from pe.encodings.core.registry import register_keys


def at_least_one(name: str, value: int, least: str) -> int:
    """Return ``value`` if it is at least 1. In the error, ``least`` explains what 1 means."""
    if value < 1:
        raise ValueError(f"{name}:{value}: expected 1 or more, where {name}:1 {least}")
    return value


@register_keys("window", title="window", paper="2004.05150")
class Window(Encoding):
    """Sliding window: a query sees the last ``window`` keys, including its own."""

    hides = True

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = at_least_one("window", window, "shows each token itself only")

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        return query - key < self.window

    def key_range(self) -> KeyRange:
        return KeyRange(window=self.window)


@register_keys("chunk", title="chunk")
class Chunk(Encoding):
    """A query sees the keys of its chunk of ``chunk`` tokens."""

    hides = True

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = at_least_one("chunk", chunk, "shows each token itself only")

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        return key // self.chunk == query // self.chunk

    def key_range(self) -> KeyRange:
        return KeyRange(chunk=self.chunk)


@register_keys("sinks", title="sinks", paper="2309.17453")
class Sinks(Encoding):
    """The first ``sinks`` keys stay visible, even if a window or a chunk hides them."""

    keeps = True

    def __init__(self, sinks: int) -> None:
        super().__init__()
        self.sinks = at_least_one("sinks", sinks, "keeps the first token")

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        return key < self.sinks

    def key_range(self) -> KeyRange:
        return KeyRange(sinks=self.sinks)


@register_keys("sink", title="sink logit", paper="2508.10925")
class SinkLogit(Encoding):
    """A learned logit per head in the softmax, without a value; it begins at ``sink_init``."""

    per_layer = True

    def __init__(self, num_heads: int, sink_init: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.sink_init = num_heads, sink_init
        self.sink = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.sink.fill_(self.sink_init)

    def sink_logit(self) -> Tensor:
        return at_least_float32(self.sink)


@register_keys("temperature", title="temperature")
class Temperature(Encoding):
    """Multiplies the logits by a factor that grows with the logarithm of the position.

    ``temperature`` is L in tokens and ``temperature_scale`` is a. Positions below L get 1.
    """

    relative = False

    def __init__(self, temperature: int, temperature_scale: float = 0.1) -> None:
        super().__init__()
        self.temperature = at_least_one("temperature", temperature, "counts every token")
        self.temperature_scale = positive("temperature_scale", temperature_scale)

    def logit_scale(self, q_positions: Tensor) -> Tensor:
        steps = q_positions // self.temperature  # integers, so exact at any position
        scale = 1.0 + self.temperature_scale * steps.to(torch.float64).log1p()
        return scale[..., None, :]  # (B, 1, T) or (1, T), float64; the caller rounds it
