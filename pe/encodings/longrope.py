"""LongRoPE: divides each of RoPE's frequencies by a factor that a search has found.

    w_i <- w_i / lambda_i,      lambda = short_factor if L <= L0 else long_factor
    cos, sin <- m cos, m sin,   m = sqrt(1 + ln s / ln L0),   s = factor

w_i are RoPE's frequencies, L0 the training length, L the number of tokens in the row and s the
extension factor. The factors of a whole row switch at L0. m multiplies queries and keys, so the
logits grow by m^2, in short rows too.

Ding et al. 2024 (arXiv:2402.13753). The switch and m are those of the published code.

LongRoPE trains no parameters: `pe.search_longrope` finds the factors. Without given factors, long
rows get YaRN's frequencies and short rows RoPE's. It works at any position. Keys are cached before
rotation, because all of them are rotated again when a sequence grows beyond L0.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pe.encodings.core.checks import UNSET, at_least, choice, positive
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform, base_frequencies
from pe.encodings.core.registry import register
from pe.encodings.yarn import YaRN
from pe.encodings.yarn import magnitude as yarn_magnitude

POLICIES = ("su", "yarn")


def yarn_factors(dim: int, theta: float, original_length: int, factor: float) -> list[float]:
    """Return lambda_i = w_i / w_i', by which YaRN slows each frequency, from 1 to ``factor``."""
    base = base_frequencies(dim, theta)
    factors: list[float] = (base.inv_freq / YaRN(original_length, factor)(base).inv_freq).tolist()
    return factors


def magnitude_of(policy: str | float, factor: float, original_length: int) -> float:
    """Return m: the number itself, or that of ``su`` (see above) or ``yarn`` (0.1 ln s + 1).

    The last two are 1 at s = 1.

    Raises:
        ValueError: an unknown name, a number that is not above 0, or ``su`` with L0 = 1.
    """
    if not isinstance(policy, str):
        return positive("magnitude", float(policy))
    if choice("magnitude", policy, POLICIES) == "yarn" or factor == 1:
        return yarn_magnitude(factor)
    if original_length < 2:
        raise ValueError(
            f"original_length {original_length}: magnitude 'su' divides by its logarithm; "
            "use 2 or more, or a number"
        )
    return math.sqrt(1 + math.log(factor) / math.log(original_length))


@register("longrope", title="LongRoPE", paper="2402.13753", family="frequencies")
class LongRoPE(FrequencyTransform):
    """One factor per frequency for rows of up to ``original_length`` tokens, another for longer.

    Args:
        original_length: L0 in tokens.
        factor: s, 4 by default. It is required beside ``long_factor`` or ``short_factor`` unless
            ``magnitude`` is a number and ``dynamic`` is off.
        long_factor, short_factor: lambda_i of each frequency.
        magnitude: ``su``, ``yarn`` or m itself.
        dynamic: whether the factors of long rows grow linearly with the length, from 1 at L0 to
            ``long_factor`` at s L0.
        exempt: n-hat; the first n-hat tokens are rotated by plain RoPE, without m.
    """

    length_dependent = True

    def __init__(
        self,
        original_length: int,
        factor: float = UNSET,
        long_factor: list[float] | None = None,
        short_factor: list[float] | None = None,
        magnitude: str | float = "su",
        dynamic: bool = False,
        exempt: int = 0,
    ) -> None:
        super().__init__()
        self.original_length = at_least("original_length", original_length, 1)
        follows = dynamic or isinstance(magnitude, str)
        if factor is UNSET and (long_factor or short_factor) and follows:
            raise ValueError(
                "factor: expected the extended length divided by original_length, such as "
                "131072 / 4096. m depends on it, and long_factor and short_factor do not give it. "
                "Give factor, or magnitude as a number"
            )
        self.factor = factor = at_least("factor", 4.0 if factor is UNSET else factor, 1.0)
        if dynamic and factor == 1:
            raise ValueError("factor 1: with dynamic=True factors grow up to it; use more than 1")
        self.chosen = {"long_factor": long_factor, "short_factor": short_factor}
        self.factors: tuple[Sequence[float], Sequence[float]] | None = None
        self.magnitude = magnitude_of(magnitude, factor, self.original_length)
        self.dynamic = dynamic
        self.exempt = at_least("exempt", exempt, 0)

    def attach(self, frequencies: Frequencies) -> None:
        pairs = frequencies.dim // 2
        for name, factors in self.chosen.items():
            if factors is not None and len(factors) != pairs:
                raise ValueError(
                    f"{name}: expected a factor for each of {pairs} pairs, got {len(factors)}"
                )
            for index, factor in enumerate(factors or ()):
                if isinstance(factor, bool) or not isinstance(factor, int | float):
                    raise ValueError(f"{name}: expected numbers, got {factor!r} for pair {index}")
                positive(f"{name}, pair {index}", factor)
        self.factors = self._factors(frequencies)

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        inv_freq = frequencies.inv_freq
        if length is None:
            length = torch.tensor(self.original_length, device=inv_freq.device)
        factors = self.factors or self._factors(frequencies)
        long, short = (inv_freq.new_tensor(each) for each in factors)
        if self.dynamic:
            excess = length.to(torch.float64) / self.original_length - 1
            long = 1 + (long - 1) * excess / (self.factor - 1)
        slowed = inv_freq / torch.where(length > self.original_length, long, short)
        return frequencies._replace(
            inv_freq=slowed, magnitude=frequencies.magnitude * self.magnitude, exempt=self.exempt
        )

    def _factors(self, frequencies: Frequencies) -> tuple[Sequence[float], Sequence[float]]:
        """Return lambda of long and of short rows, d/2 numbers each."""
        dim, theta = frequencies.dim, frequencies.theta
        long, short = self.chosen["long_factor"], self.chosen["short_factor"]
        if long is None:
            long = yarn_factors(dim, theta, self.original_length, self.factor)
        return long, short or [1.0] * (dim // 2)
