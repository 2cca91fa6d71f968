"""RoPE: rotates each pair of channels of queries and keys by an angle proportional to the position.

    (x_a, x_b) -> (x_a cos p w_i - x_b sin p w_i,  x_b cos p w_i + x_a sin p w_i)
    w_i = theta^(-2i/d),   i = 0 .. d/2-1

(x_a, x_b) is pair i of a query or key with d channels, p its position, w_i the frequency of the
pair and theta the base. The logits depend on the positions through their difference only.

Su et al. 2021 (arXiv:2104.09864). Layout ``half`` pairs channel i with i + d/2 (Llama, GPT-NeoX),
and ``interleaved`` pairs 2i with 2i + 1 (RoFormer, GPT-J). The two give the same model up to a
permutation of the rows of the query and key projections. Trained weights give wrong results under
the other layout, without any error.

RoPE learns nothing, costs four multiplications and two additions per pair of channels, and works at
any position.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding, Lengths, Prepared, tightest
from pe.encodings.core.checks import choice, positive, rotary_width
from pe.encodings.core.extension import with_raised_base
from pe.encodings.core.frequencies import (
    Frequencies,
    FrequencyTransform,
    base_frequencies,
    phase_tables,
)
from pe.encodings.core.registry import Variant, register
from pe.encodings.core.rotation import rotate, rotate_pairs, takes_operator

LAYOUTS = ("half", "interleaved")


RAISED_BASE = Variant("abf", "Larger base (ABF)", "2309.16039", with_raised_base)


@register("rope", title="RoPE", paper="2104.09864", family="rotary", extends=[RAISED_BASE])
class RoPE(Encoding):
    """Rotary position embedding.

    Args:
        head_dim: width of a head.
        theta: the base.
        layout: ``half`` or ``interleaved``.
        rotary_fraction: share of the channels that rotate, the first ones of each head.
        transforms: changes of the frequencies, such as YaRN; those that stretch come first.

    Raises:
        ValueError: an option is out of range, or the channels do not form pairs.
    """

    rotates = True
    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        theta: float = 10000.0,
        layout: str = "half",
        rotary_fraction: float = 1.0,
        transforms: Sequence[FrequencyTransform] = (),
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = positive("theta", theta)
        self.layout = choice("layout", layout, LAYOUTS)
        self.rotary_dim = rotary_width(head_dim, rotary_fraction)
        self.transforms = nn.ModuleList(sorted(transforms, key=lambda t: not t.stretches))
        self.length_dependent = any(t.length_dependent for t in transforms)
        # Shifting the positions makes the sequence longer.
        self.relative = type(self).relative and not self.length_dependent
        self.max_positions, self.limited_by = tightest(transforms)
        for transform in transforms:
            transform.attach(base_frequencies(self.rotary_dim, self.theta))
        self.register_exact_buffers()

    def frequencies(self, length: Tensor | None = None) -> Frequencies:
        """Return the frequencies after all transforms, float64, on ``length``'s device or the CPU.

        ``length`` is the number of tokens in each row, () or (B, 1), or in the document of each
        token, (B, T, 1). Only length-dependent transforms use it.
        """
        base = base_frequencies(self.rotary_dim, self.theta)
        if length is not None:
            base = base._replace(inv_freq=base.inv_freq.to(length.device))
        for transform in self.transforms:
            base = transform(base, length)
        return self.select_frequencies(base)

    def select_frequencies(self, spectrum: Frequencies) -> Frequencies:
        """Return the frequencies that rotate; a subclass may remove some or set them to 0."""
        return spectrum

    def exact_buffers(self) -> dict[str, Tensor]:
        if self.length_dependent:
            return {}
        spectrum = self.frequencies()
        self.magnitude, self.exempt = spectrum.magnitude, spectrum.exempt
        buffers = {"inv_freq": spectrum.inv_freq}
        return buffers if spectrum.period is None else buffers | {"period": spectrum.period}

    def spectrum(self, positions: Tensor, lengths: Tensor | None = None) -> Frequencies:
        """Return the frequencies for tokens at these positions, (T,) or (B, T).

        ``lengths``, (1 or B, T), is the length of each token's document. None means that each row
        is one document.
        """
        if self.length_dependent and lengths is not None:
            return self.frequencies(lengths[..., None])
        if self.length_dependent:
            return self.frequencies(positions.amax(-1, keepdim=positions.dim() == 2) + 1)
        period = self._buffers.get("period")
        return Frequencies(
            self.inv_freq, self.theta, self.rotary_dim, self.magnitude, period, self.exempt
        )

    def prepare(
        self,
        q_positions: Tensor,
        k_positions: Tensor,
        dtype: torch.dtype = torch.float32,
        lengths: Lengths | None = None,
    ) -> Prepared:
        self.refuse_too_far(k_positions)
        of_q, of_k = lengths or (None, None)
        spectrum = self.spectrum(k_positions, of_k)
        k_tables = self._tables(k_positions, spectrum, dtype)
        if of_q is not None:
            q_tables = self._tables(q_positions, self.spectrum(q_positions, of_q), dtype)
        else:  # in training both are one tensor, which needs one pair of tables
            same = q_positions is k_positions
            q_tables = k_tables if same else self._tables(q_positions, spectrum, dtype)
        return Prepared(q_positions, k_positions, (q_tables, k_tables))

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, tables: Any = None
    ) -> tuple[Tensor, Tensor]:
        self.refuse_misfit(q, k, q_positions, k_positions)
        q_tables, k_tables = tables or self.prepare(q_positions, k_positions, q.dtype).tables
        return self._rotate(q, q_tables), self._rotate(k, k_tables)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for transform in self.transforms:
            transform.reset_parameters(generator)  # type: ignore[operator]

    def _tables(
        self, positions: Tensor, spectrum: Frequencies, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return cos and sin, (1 or B, 1, T, d/2), or (1 or B, K, T, d/2) in some subclasses."""
        where = positions if spectrum.warp is None else spectrum.warp[positions]
        cos, sin = phase_tables(where, spectrum.inv_freq, dtype, spectrum.period)
        m = spectrum.magnitude
        if isinstance(m, Tensor):  # (), (B, 1) or, per token, (B, T, 1) -> (B, 1, 1 or T, 1)
            m = m.to(cos.dtype)
            m = m[:, None] if m.dim() == 3 else m[..., None, None]
        if isinstance(m, Tensor) or m != 1.0:
            cos, sin = cos * m, sin * m
        if spectrum.exempt:
            base = self.select_frequencies(base_frequencies(self.rotary_dim, self.theta)).inv_freq
            plain = phase_tables(positions, base.to(positions.device), dtype)
            first = (positions < spectrum.exempt)[..., None]
            first = first[None, None] if positions.dim() == 1 else first[:, None]
            cos, sin = torch.where(first, plain[0], cos), torch.where(first, plain[1], sin)
        return cos, sin

    def _rotate(self, x: Tensor, tables: Any) -> Tensor:
        cos, sin = tables
        if cos.shape[1] not in (1, x.shape[1]):  # query heads share the tables of their key head
            cos, sin = (t.repeat_interleave(x.shape[1] // t.shape[1], dim=1) for t in tables)
        half = self.layout == "half"
        if takes_operator(x, cos, sin):
            by_operator: Tensor = rotate(x, cos, sin, half, False)
            return by_operator
        return rotate_pairs(x, cos, sin, half)
