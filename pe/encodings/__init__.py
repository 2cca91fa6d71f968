"""Positional encodings as functions of torch tensors, one file per encoding.

>>> import torch
>>> from pe.encodings import encoding
>>> rope = encoding("rope", head_dim=64, num_heads=8)
>>> q = k = torch.randn(1, 8, 16, 64)
>>> q_rotated, k_rotated = rope.rotate(q, k, torch.arange(16), torch.arange(16))
"""

from pe._errors import PositionError
from pe.encodings.core.base import Encoding, Prepared
from pe.encodings.core.build import check, encoding, layer_encodings
from pe.encodings.core.extension import extension_methods
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import (
    FAMILIES,
    About,
    about,
    in_order,
    list_encodings,
    lookup,
    register,
)
