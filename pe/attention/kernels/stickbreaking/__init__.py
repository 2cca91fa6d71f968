"""Kernels for stick-breaking attention (arXiv:2410.17980)."""
