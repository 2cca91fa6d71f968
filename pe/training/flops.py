"""Count the FLOPs of training and look up the peaks of devices, for model FLOPs utilisation (MFU).

MFU is the arithmetic that the model needs per second, divided by the peak of the device
(arXiv:2204.02311):

    FLOPs per token = 6 N + 6 L d T      (N parameters, L layers, d hidden, T context)

The second term is causal attention, in which a token sees T/2 keys on average. The peaks are the
vendors' dense bfloat16 rates. A device that is not listed has no MFU. This module imports
no torch.
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
"""Dense bfloat16 TFLOP/s. A device has the value of the longest key that its name contains."""
OTHER_CHIPS = ("Laptop", "D", "MIG", "Ti")
"""A device with one of these words is another chip, or a part of one, whose peak is not listed."""


def peak_flops(device_name: str) -> float | None:
    """Return the peak of the device in FLOP/s, or None if it is not known."""
    words = device_name.replace("-", " ")
    if any(word in words.split() for word in OTHER_CHIPS):
        return None
    matches = [key for key in PEAK_BF16_TFLOPS if f" {key} " in f" {words} "]
    return PEAK_BF16_TFLOPS[max(matches, key=len)] * 1e12 if matches else None


def flops_per_token(parameters: int, layers: float, hidden_size: int, context_length: int) -> float:
    """Return the FLOPs of one trained token, forward and backward.

    Args:
        layers: number of layers, as `pe.training.metrics.layers_shown` counts those with a window.
        context_length: in tokens.
    """
    return 6.0 * parameters + 6.0 * layers * hidden_size * context_length
