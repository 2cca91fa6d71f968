"""Constants of `pe.encodings.core.forms` in the form in which Triton compiles them into kernels."""

from __future__ import annotations

import triton.language as tl

from pe.encodings.core import forms

NONE: tl.constexpr = tl.constexpr(forms.NONE)
KEYS: tl.constexpr = tl.constexpr(forms.KEYS)
TABLE: tl.constexpr = tl.constexpr(forms.TABLE)
FIRE: tl.constexpr = tl.constexpr(forms.FIRE)
LOGARITHM: tl.constexpr = tl.constexpr(forms.LOGARITHM)
POWER: tl.constexpr = tl.constexpr(forms.POWER)
ROWS: tl.constexpr = tl.constexpr(forms.ROWS)
CHUNK: tl.constexpr = tl.constexpr(forms.CHUNK)
LOG2E: tl.constexpr = tl.constexpr(forms.LOG2E)
FARTHEST: tl.constexpr = tl.constexpr(1e9)
"""The largest distance, at which distances are cut off before they become integers."""
