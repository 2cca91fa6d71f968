"""Controls: encodings that test why others fail. They are not proposals and not registered.

Three reasons are usually given: sine-only positions fail because no linear map shifts them, binary
positions because they jump at carries, and decimal positions because their numbers are large. Each
control separates one of these properties from the others, so that it shows if a reason is wrong:

                 shifted by a linear map    neighbours are alike    as large as sinusoids
    sinusoidal   yes                        yes                     yes
    Scattered    no                         no                      yes
    Gray         no                         yes: one bit differs    yes
    Loud         yes                        yes                     no: ``scale`` times as large
    Quiet        no                         but for carries         yes: decimal digits over 9
    Soft         yes                        yes                     no: as large as our embeddings

`studies/tasks/reasons.yaml` trains all but the last, and the ledger (book/claims.md) has the
verdicts. Sinusoids are three times as large as the token embeddings of our small models. Soft, in
`studies/tasks/longer.yaml`, tests whether they learn slowly for this reason.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pe.encodings.binary import Binary
from pe.encodings.core.additive import Additive
from pe.encodings.core.checks import positive
from pe.encodings.core.digits import digits
from pe.encodings.decimal import Decimal
from pe.encodings.sinusoidal import Sinusoidal

PLACES = 4096
"""Positions of `Scattered`."""
RMS = 0.5**0.5
"""Root mean square of the columns of a sinusoidal vector."""


class Scattered(Additive):
    """Each of 4,096 positions has a fixed random vector."""

    table: Tensor

    def __init__(self, hidden_size: int, scale_embeddings: bool = True) -> None:
        super().__init__(hidden_size, scale_embeddings)
        self.max_positions = PLACES
        self.register_exact_buffers()

    def exact_buffers(self) -> dict[str, Tensor]:
        drawn = torch.Generator(device="cpu").manual_seed(0)
        table = torch.randn(PLACES, self.hidden_size, generator=drawn, device="cpu")
        return {"table": RMS * table}

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return self.table[positions].to(dtype)


class Gray(Binary):
    """The position in Gray code: neighbours differ in one bit, even where binary numbers carry."""

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        whole = positions.long()
        columns = digits(whole ^ (whole >> 1), self.powers, self.base).to(dtype)
        return torch.nn.functional.pad(columns, (self.hidden_size - len(self.powers), 0))


class Quiet(Decimal):
    """Decimal digits divided by 9. `decimal_norm` has a similar scale, but also -1 in every column
    without a digit."""

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().rows(positions, dtype) / 9


class Loud(Sinusoidal):
    """Sinusoidal positions multiplied by ``scale``; 9 makes them as large as the largest digit."""

    def __init__(self, hidden_size: int, scale: float = 9.0) -> None:
        super().__init__(hidden_size)
        self.factor = positive("scale", scale)

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().rows(positions, dtype) * self.factor


class Soft(Loud):
    """Sinusoidal positions that are as large as our token embeddings of width 128."""

    def __init__(self, hidden_size: int, scale: float = 0.3) -> None:
        super().__init__(hidden_size, scale)
