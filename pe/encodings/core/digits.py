"""Base class of encodings that add the digits of the position to the token embeddings.

    P(p)_j = floor(p / B^(d-1-j)) mod B           normalised: 2 P / (B-1) - 1

P(p) is the vector of position p, j its column, B the base and d the width. The last digit is in the
last column.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from pe.encodings.core.additive import Additive

LARGEST = torch.iinfo(torch.int64).max


@torch.library.custom_op("pe::digits", mutates_args=())
def digits(positions: Tensor, powers: Tensor, base: int) -> Tensor:
    """Return the digits (..., n) of positions (...), one for each of the powers (n,) of the base.

    It is an opaque operator because torch.compile's vectorised CPU code pads its last vector with
    zeros and fails when it divides by them.
    """
    return (positions[..., None] // powers) % base


@digits.register_fake
def _(positions: Tensor, powers: Tensor, base: int) -> Tensor:
    return positions.new_empty((*positions.shape, len(powers)))


class Digits(Additive):
    """Subclasses set ``base``, and ``normalised`` if digits are mapped to -1 .. 1."""

    base: ClassVar[int]
    normalised: ClassVar[bool] = False
    powers: Tensor

    def __init__(self, hidden_size: int, scale_embeddings: bool = True) -> None:
        super().__init__(hidden_size, scale_embeddings)
        end = self.base**hidden_size
        self.max_positions = end if end <= LARGEST else None  # otherwise all of int64
        self.register_exact_buffers()

    def exact_buffers(self) -> dict[str, Tensor]:
        powers = [self.base**n for n in range(self.hidden_size) if self.base**n <= LARGEST]
        return {"powers": torch.tensor(powers[::-1], device="cpu")}

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        columns = digits(positions.long(), self.powers, self.base).to(dtype)
        columns = pad(columns, (self.hidden_size - len(self.powers), 0))
        return 2 * columns / (self.base - 1) - 1 if self.normalised else columns
