"""FoPE: rotates each pair of channels by a fixed mixture of RoPE's frequencies.

    w_i kept where w_i >= 2 pi / L0:        D of the d/2 frequencies of RoPE
    C_hj(p) = sum_i A_hij cos(p w_i),   S_hj(p) = sum_i B_hij sin(p w_i),   j < min(D, d/4)
    (x_a, x_b) -> (x_a C - x_b S,  x_b C + x_a S)
    all other pairs have frequency 0:   C = 1, S = 0

p is the position, L0 the training length, h a key head and j a pair of channels. Frequencies that
complete no rotation in L0 tokens are dropped. A and B are identity matrices plus Xavier-normal
noise; they are drawn once per key head and layer and then frozen. The map is no rotation. A logit
contains products of different frequencies, so it is no function of the distance alone.

Hua et al. 2024 (arXiv:2412.17739). The authors' code has C = S = 1 in the other pairs, which
doubles their part of every logit (``dropped="ones"``). The layout is half, as in their
code, or interleaved.

FoPE trains no parameters. It costs one small matrix product for cosines and one for sines per layer
and works at any position.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from pe.encodings.core.checks import UNSET, at_least, choice
from pe.encodings.core.frequencies import Frequencies, phase_tables
from pe.encodings.core.registry import register
from pe.encodings.rope import RoPE


@register("fope", title="FoPE", paper="2412.17739", family="rotary")
class FoPE(RoPE):
    """Fourier position embedding.

    Args:
        original_length: L0 in tokens, at least 7.
        gain: of the noise; the authors' three model sizes have 0.3, 0.4 and 0.6.
        dropped: (C, S) of the pairs that are not mixed: ``constant`` is (1, 0), ``ones`` is (1, 1).
        keep_zero: whether dropped frequencies stay in the mixture as zeros, whose cosine is 1. All
            d/2 pairs are then mixed.
    """

    per_layer = True
    relative = False

    def __init__(
        self,
        head_dim: int,
        num_kv_heads: int,
        original_length: int,
        theta: float = 10000.0,
        gain: float = 0.3,
        dropped: str = UNSET,
        keep_zero: bool = False,
        layout: str = "half",
    ) -> None:
        self.slowest = 2 * math.pi / at_least("original_length", original_length, 7)
        self.keep_zero = keep_zero
        super().__init__(head_dim, theta=theta, layout=layout)
        self.num_kv_heads = num_kv_heads
        self.gain = at_least("gain", gain, 0.0)
        if keep_zero and dropped is not UNSET:
            raise ValueError(
                "dropped: with keep_zero all pairs are mixed and none is dropped; leave one out"
            )
        dropped = "constant" if dropped is UNSET else dropped
        self.dropped = choice("dropped", dropped, ("constant", "ones"))
        mixed = self.inv_freq.shape[0]
        pairs = head_dim // 2 if keep_zero else max(min(mixed, head_dim // 4), 1)
        shape = (num_kv_heads, mixed, pairs)
        # Saved although frozen, because another draw would be another model.
        self.cos_mix = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.sin_mix = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.reset_parameters()

    def select_frequencies(self, spectrum: Frequencies) -> Frequencies:
        fast = spectrum.inv_freq >= self.slowest
        if self.keep_zero:
            return spectrum._replace(inv_freq=spectrum.inv_freq * fast)
        return spectrum._replace(inv_freq=spectrum.inv_freq[fast])

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        mixed, pairs = self.cos_mix.shape[1:]
        step = -(-mixed // pairs)  # with more frequencies than pairs, take every step-th
        identity = torch.zeros_like(self.cos_mix)
        chosen = torch.arange(0, mixed, step, device=identity.device)
        identity[:, chosen, torch.arange(len(chosen), device=identity.device)] = 1.0
        for mix in (self.cos_mix, self.sin_mix):
            # The fans are those of the (K, D, D') tensor, D D' and K D', as in the authors' code.
            nn.init.xavier_normal_(mix, self.gain, generator)
            mix.add_(identity)

    def _tables(
        self, positions: Tensor, spectrum: Frequencies, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return C and S, (1 or B, K, T, d/2)."""
        cos, sin = phase_tables(positions, spectrum.inv_freq, torch.float64)
        # Neither autocast nor a reduced matmul precision applies to float64.
        cos, sin = cos @ self.cos_mix.double(), sin @ self.sin_mix.double()
        rest = (0, self.rotary_dim // 2 - cos.shape[-1])
        cos = pad(cos, rest, value=1.0)
        sin = pad(sin, rest, value=1.0 if self.dropped == "ones" else 0.0)
        out = torch.float64 if dtype == torch.float64 else torch.float32
        return cos.to(out), sin.to(out)
