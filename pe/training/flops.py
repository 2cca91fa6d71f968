"""Useful arithmetic of training, and what devices can do at best: model FLOPs utilisation (MFU).

    FLOPs per token = 6 N + 6 L d T      (N parameters, L layers, d hidden, T context)

The second term is causal attention counted once: each token looks at T/2 keys on average. The peaks
are the vendors' dense bfloat16 rates; a device that is not listed has no MFU rather than a wrong
one. Imports no torch.
"""

from __future__ import annotations

PEAK_BF16_TFLOPS = {
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H200": 989.0,
    "H200 NVL": 835.0,
    "B200": 2250.0,
    "A100": 312.0,
    "A10G": 70.0,
    "A10": 125.0,
    "A40": 149.7,
    "L40S": 362.0,
    "L4": 121.0,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
}
"""Dense bfloat16 TFLOP/s. A name is looked up by the longest key that it contains."""
OTHER_CHIPS = ("Laptop", "D", "MIG")
"""Words that mark a slower chip, or a slice of one, sold under the same name."""


def peak_flops(device_name: str) -> float | None:
    """FLOP/s of the device, or None where it is not known."""
    words = device_name.replace("-", " ")
    if any(word in words.split() for word in OTHER_CHIPS):
        return None
    matches = [key for key in PEAK_BF16_TFLOPS if f" {key} " in f" {words} "]
    return PEAK_BF16_TFLOPS[max(matches, key=len)] * 1e12 if matches else None


def flops_per_token(parameters: int, layers: float, hidden_size: int, context_length: int) -> float:
    """Forward and backward FLOPs of one trained token.

    ``layers``: how many, as `pe.training.metrics.layers_shown` counts them.
    """
    return 6.0 * parameters + 6.0 * layers * hidden_size * context_length
