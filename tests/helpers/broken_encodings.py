"""Encodings that each break one law, the way an encoding in the wild would."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pe.encodings import Encoding, Frequencies, FrequencyTransform, Prepared
from pe.encodings.core import forms


def apart(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Return distances, float32, (1 or B, 1, Tq, Tk)."""
    distance = (q_positions[..., :, None] - k_positions[..., None, :]).float()
    return distance[None, None] if distance.dim() == 2 else distance[:, None]


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate channel i with channel i + D/2 by an angle that broadcasts to (..., D/2)."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def as_angle(positions: Tensor) -> Tensor:
    """Reshape positions (T,) or (B, T) to (1 or B, 1, T, 1)."""
    return positions[None, None, :, None] if positions.dim() == 1 else positions[:, None, :, None]


class Slope(Encoding):
    """A correct linear bias, which most of the others change."""

    def bias(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, state: Any = None
    ) -> Tensor:
        return self.slope(q, k, apart(q_positions, k_positions))

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return -0.25 * distance


class Form(Slope):
    """Gives kernels another slope than its matrix has."""

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> forms.Form:
        return forms.by_distance(torch.arange(length, device=device)[None].expand(4, -1) * -0.26)


class Turn(Encoding):
    """A correct rotation by one frequency."""

    rotates = True

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, tables: Any = None
    ) -> tuple[Tensor, Tensor]:
        return self.turn(q, q_positions), self.turn(k, k_positions)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        return turned(x, as_angle(positions.double()) * 0.1)


class Contract(Turn):
    """Declares that it does not rotate, and rotates."""

    rotates = False


class HalfBias(Slope):
    """A bias in the type of the queries."""

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return (-0.25 * distance).to(q.dtype)


class Embeds(Encoding):
    """Changes the embeddings and does not declare it."""

    relative = False

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + positions[..., None].to(x.dtype)


class Shift(Slope):
    """Calls itself relative and looks at the query's position."""

    def bias(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, state: Any = None
    ) -> Tensor:
        return -apart(q_positions, k_positions) / (1 + apart(q_positions, k_positions[..., :1] * 0))


class Change(Slope):
    """Calls itself absolute."""

    relative = False


class Heads(Slope):
    """What one head sees depends on the others."""

    content_dependent = True

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return -0.1 * distance * q.float().mean((1, 3))[:, None, :, None].sigmoid()


class Time(Turn):
    """Uses the axis of heads as the axis of positions."""

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        heads = torch.arange(x.shape[1])
        return turned(x, heads[None, :, None, None].double() * 0.1)


class Rows(Slope):
    """Gives all sequences the positions of the first one."""

    def bias(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, state: Any = None
    ) -> Tensor:
        if q_positions.dim() == 2:
            q_positions, k_positions = q_positions[0] * 2, k_positions[0]
        return -0.25 * apart(q_positions, k_positions)


class Future(Slope):
    """Looks at all keys, those behind the query too."""

    content_dependent = True

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return -0.1 * distance * k.float().mean((1, 2, 3))[:, None, None, None].sigmoid()


class Decode(Slope):
    """Counts queries from 0, as if they were always all there."""

    def bias(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, state: Any = None
    ) -> Tensor:
        return -0.25 * apart(torch.arange(q.shape[2]), torch.arange(k.shape[2])).abs()


class Cache(Turn):
    """Rotates by an angle that depends on the length, and does not declare it."""

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, tables: Any = None
    ) -> tuple[Tensor, Tensor]:
        longest = as_angle(k_positions.amax(-1, keepdim=True)).double()
        speed = 1 / (10 + longest)
        return (
            turned(q, as_angle(q_positions.double()) * speed),
            turned(k, as_angle(k_positions.double()) * speed),
        )


class Padding(Slope):
    """Uses the width of the batch as the length of each sequence."""

    length_dependent = True

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return -4.0 * distance / k.shape[2]


class Holes(Slope):
    """Counts the keys between query and key, hidden ones included."""

    content_dependent = True

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        places = torch.arange(k.shape[2])
        return -0.25 * apart(places[-q.shape[2] :], places)


class Documents(Cache):
    """Uses the length of the longest document for all documents of a sequence."""

    length_dependent = True


class Blind(Slope):
    """Divides by the number of keys that a query sees."""

    def masked_bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None,
        mask: Tensor,
    ) -> Tensor:
        bias = self.bias(q, k, q_positions, k_positions)
        return bias / mask.sum(-1, keepdim=True)


class Memory(Slope):
    """Remembers the longest sequence of earlier calls."""

    longest = 1

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        self.longest = max(self.longest, k.shape[2])
        return -4.0 * distance / self.longest


class Precision(Turn):
    """Computes phases in the type of the queries."""

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        return turned(x, as_angle(positions.to(x.dtype)) * 0.7)


class SinglePrecision(Turn):
    """Computes phases in float32, whatever the queries are."""

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        return turned(x, as_angle(positions.float()) * 0.7)


class Autocast(Slope):
    """Computes a bias by a matrix product, which autocast rounds."""

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return (distance @ torch.full((distance.shape[-1],) * 2, 0.3)).float()


class Cast(Slope):
    """Keeps its slope in a buffer that a cast rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steepness", torch.tensor(0.3))

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return -self.steepness.float() * distance  # type: ignore[operator]


class Meta(Slope):
    """Keeps its slope in a buffer that nobody computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steepness", torch.tensor(0.25), persistent=False)

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return -self.steepness.float() * distance  # type: ignore[operator]


class Saving(Slope):
    """Draws a slope and saves it nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.steepness = float(torch.rand(()))

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return -self.steepness * distance


class Limit(Encoding):
    """Has one position less than it says."""

    relative = False
    embeds = True
    max_positions = 64

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(63, hidden_size))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions].to(x.dtype)


class Base(FrequencyTransform):
    """Slows by a little even where nothing is extended."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        return frequencies._replace(inv_freq=frequencies.inv_freq / (self.factor + 0.01))


class Gradients(Slope):
    """Takes a square root, whose derivative at 0 is infinite."""

    content_dependent = True

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        return -((q @ keys.transpose(-1, -2)).float().clamp(min=0) * distance.clamp(min=0)).sqrt()


class Unused(Slope):
    """Has a learned number that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten = nn.Parameter(torch.zeros(2))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.forgotten.data.zero_()


class Formula(Slope):
    """Stops a gradient that should pass."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.steepness = nn.Parameter(torch.full((num_heads, 1, 1), 0.25))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.steepness.data.fill_(0.25)

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return -self.steepness * self.steepness.detach() * distance


class Mixed(Slope):
    """Correct: a learned frequency in float64, and a slope in float32 that depends on the query."""

    rotates = content_dependent = True

    def __init__(self) -> None:
        super().__init__()
        self.speed = nn.Parameter(torch.tensor(0.5))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.speed.data.fill_(0.5)

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, tables: Any = None
    ) -> tuple[Tensor, Tensor]:
        speed = self.speed.double()
        return turned(q, as_angle(q_positions) * speed), turned(k, as_angle(k_positions) * speed)

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        return -q.float().mean(-1, keepdim=True).sigmoid() * distance


class Composition(Slope):
    """Moves the tokens in `prepare` without saying so; in a sum it moves nobody."""

    def prepare(
        self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype = torch.float32
    ) -> Prepared:
        return Prepared(q_positions * 2, k_positions * 2)


class Unseen(Encoding):
    """A window whose bias looks at the mean of all keys, hidden ones among them."""

    hides = True
    content_dependent = True

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        return query - key < 4

    def bias(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, state: Any = None
    ) -> Tensor:
        return (k - k.mean(-2, keepdim=True)).float().square().mean((1, 3))[:, None, None]


class Crash(Slope):
    """Raises an exception that no law expects."""

    def slope(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        raise KeyError("slope")
