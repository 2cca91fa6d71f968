"""YaRN: slows RoPE's frequencies that complete no rotation in training and keeps the fast ones.

    r(beta) = d ln(L0 / (2 pi beta)) / (2 ln theta)     pair that rotates beta times in L0 tokens
    low  = max(floor r(beta_fast), 0),   high = min(ceil r(beta_slow), d - 1)
    gamma_i = 1 - clip((i - low) / (high - low), 0, 1)
    w_i <- gamma_i w_i + (1 - gamma_i) w_i / s
    cos, sin <- m cos, m sin,            m = 0.1 ln s + 1

w_i is the frequency of pair i, d the rotated width, theta the base, L0 the training length and s
the factor. m multiplies queries and keys, so the logits grow by m^2.

Peng, Quesnelle, Fan, Shippole 2023 (arXiv:2309.00071). The ramp gamma is that of the authors' code,
linear in the index i. With ``dynamic``, s is L / L0 for a row of L tokens, at least 1.

YaRN learns nothing and works at any position. Without ``dynamic`` it costs nothing at run time.
s = 1 is RoPE.
"""

import math

import torch
from torch import Tensor

from pe.encodings.core.checks import UNSET, at_least, positive
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import Variant, register


def rotations_index(rotations: float, dim: int, theta: float, original_length: int) -> float:
    """Return r, the fractional index of the frequency that rotates this often in L0 tokens."""
    return dim * math.log(original_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))


def magnitude(factor: float, weight: float = 1.0) -> float:
    """Return m = 0.1 weight ln s + 1, and 1 for s <= 1; the paper writes sqrt(1/t)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def magnitudes(factors: Tensor, weight: float = 1.0) -> Tensor:
    """Return the `magnitude` of each factor, of the same shape."""
    return 0.1 * weight * factors.clamp(min=1).log() + 1.0


def _refuse_unused(
    attention_factor: float | None, mscale: float | None, mscale_all_dim: float | None
) -> None:
    """Raise ValueError for weights of m that have no effect."""
    weights = {"mscale": mscale, "mscale_all_dim": mscale_all_dim}
    for name, value in weights.items():
        if value is None:
            continue
        if attention_factor is not None:
            raise ValueError(f"{name}: attention_factor is m itself; leave one of the two out")
        positive(name, value)
    missing = [name for name, value in weights.items() if value is None]
    if len(missing) == 1:
        raise ValueError(
            f"{missing[0]}: mscale and mscale_all_dim have an effect together only; give both, or "
            "attention_factor, which is m itself"
        )


DYNAMIC = Variant(
    "dynamic_yarn", "Dynamic YaRN", "2309.00071", lambda rope, factor: {"dynamic": True}, False
)


@register("yarn", title="YaRN", paper="2309.00071", family="frequencies", extends=[DYNAMIC])
class YaRN(FrequencyTransform):
    """RoPE's frequencies for ``factor`` times ``original_length`` tokens.

    The options have the names of the published checkpoints, except ``dynamic``.

    Args:
        original_length: L0 in tokens.
        factor: s, 4 by default; not with ``dynamic``.
        beta_fast, beta_slow: rotations in L0 tokens at the two ends of the ramp.
        attention_factor: m itself.
        mscale, mscale_all_dim: DeepSeek's weights; m is the quotient of the two m.
        truncate: whether low and high are rounded.
        dynamic: whether s and m follow from the length of each document. Keys are then cached
            before rotation.
    """

    def __init__(
        self,
        original_length: int,
        factor: float = UNSET,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attention_factor: float | None = None,
        mscale: float | None = None,
        mscale_all_dim: float | None = None,
        truncate: bool = True,
        dynamic: bool = False,
    ) -> None:
        super().__init__()
        self.original_length = at_least("original_length", original_length, 1)
        if dynamic and factor is not UNSET:
            raise ValueError(
                f"factor {factor}: with dynamic=True it follows from the length of the sequence; "
                "leave one of the two out"
            )
        self.length_dependent = dynamic
        self.factor = factor = at_least("factor", 4.0 if factor is UNSET else factor, 1.0)
        self.beta_fast = positive("beta_fast", beta_fast)
        self.beta_slow = positive("beta_slow", beta_slow)
        if beta_fast < beta_slow:
            raise ValueError(f"beta_fast {beta_fast} is less than beta_slow {beta_slow}")
        self.truncate = truncate
        self.fixed_magnitude = attention_factor is not None
        _refuse_unused(attention_factor, mscale, mscale_all_dim)
        self.weights = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (1.0, 0.0)
        if attention_factor is not None:
            self.magnitude = positive("attention_factor", attention_factor)
        else:
            above, below = (magnitude(factor, weight) for weight in self.weights)
            self.magnitude = above / below

    def ramp_bounds(self, dim: int, theta: float) -> tuple[float, float]:
        """Return low and high: frequencies up to low are kept, those from high on divided by s."""
        low = rotations_index(self.beta_fast, dim, theta, self.original_length)
        high = rotations_index(self.beta_slow, dim, theta, self.original_length)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        # Below L0 = 2 pi beta_slow the authors' code gets high < low, which reverses the ramp and
        # slows nothing. The intent is to slow every frequency after low.
        return low, high if high > low else low + 0.001

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        inv_freq, theta, dim, magnitude, *_ = frequencies
        if theta <= 1:
            raise ValueError(
                f"theta: expected more than 1, so that frequencies decrease; got {theta!r}"
            )
        low, high = self.ramp_bounds(dim, theta)
        index = torch.arange(dim // 2, dtype=torch.float64, device=inv_freq.device)
        keep = 1 - ((index - low) / (high - low)).clamp(0, 1)
        factor, m = self.extension(length, inv_freq)
        slowed = keep * inv_freq + (1 - keep) * inv_freq / factor
        # The sum of both parts may differ from inv_freq in the last bit.
        slowed = torch.where(factor > 1, slowed, inv_freq)
        return frequencies._replace(inv_freq=slowed, magnitude=magnitude * m)

    def extension(self, length: Tensor | None, like: Tensor) -> tuple[Tensor, float | Tensor]:
        """Return s, which is (), (B, 1) or (B, T, 1), and m, a number or of the shape of s."""
        if not self.length_dependent:
            return like.new_full((), self.factor), self.magnitude
        if length is None:
            length = like.new_full((), self.original_length)
        factor = (length.to(torch.float64) / self.original_length).clamp(min=1)
        above, below = (magnitudes(factor, weight) for weight in self.weights)
        return factor, self.magnitude if self.fixed_magnitude else above / below
