"""Triton kernels: attention with biases that are never a matrix."""
