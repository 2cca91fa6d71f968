"""Which keys a layer sees, whatever else tells it about order.

    window:w    the last w keys                 i - j < w
    chunk:c     those of the query's chunk      floor(i / c) = floor(j / c)
    sinks:n     the first n as well             j < n
    sink        none that could be looked at:   softmax over [z, s_h], the last weight dropped

i and j count the tokens that a query may see at all (`Encoding.narrow`): hidden tokens count
nowhere, and each document of a sequence is counted from its first token. So positions have no say:
windows go with any encoding, also with those that move tokens.

Windows: Beltagy, Peters, Cohan 2020 (arXiv:2004.05150), Jiang et al. 2023 (arXiv:2310.06825).
Chunks: Llama 4, in transformers' code. First tokens that are kept: Xiao et al. 2023
(arXiv:2309.17453). A learned logit per head that takes weight and gives no value: gpt-oss
(arXiv:2508.10925).
"""

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import at_least_float32
from pe.encodings.core.key_range import KeyRange
from pe.encodings.core.registry import register_keys


@register_keys("window", title="window", paper="2004.05150")
class Window(Encoding):
    """Sliding window: a query sees the last ``window`` keys, itself among them."""

    hides = True

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = at_least("window", window, 1)

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        return query - key < self.window

    def key_range(self) -> KeyRange:
        return KeyRange(window=self.window)


@register_keys("chunk", title="chunk")
class Chunk(Encoding):
    """A query sees the keys of its own chunk of ``chunk`` tokens."""

    hides = True

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = at_least("chunk", chunk, 1)

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        return key // self.chunk == query // self.chunk

    def key_range(self) -> KeyRange:
        return KeyRange(chunk=self.chunk)


@register_keys("sinks", title="sinks", paper="2309.17453")
class Sinks(Encoding):
    """The first ``sinks`` keys stay visible, whatever a window or a chunk hides."""

    keeps = True

    def __init__(self, sinks: int) -> None:
        super().__init__()
        self.sinks = at_least("sinks", sinks, 1)

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        return key < self.sinks

    def key_range(self) -> KeyRange:
        return KeyRange(sinks=self.sinks)


@register_keys("sink", title="sink logit", paper="2508.10925")
class SinkLogit(Encoding):
    """A learned logit per head that takes part in the softmax and has no value."""

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
