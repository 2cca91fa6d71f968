"""Triton kernels: attention without a matrix for the bias, rotations, and the equation of CLEX."""
