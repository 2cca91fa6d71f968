"""Attention with biases that are never a matrix, forward and backward."""
