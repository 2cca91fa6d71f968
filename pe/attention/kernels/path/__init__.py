"""Kernels for PaTH attention (arXiv:2505.16381)."""
