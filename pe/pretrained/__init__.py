"""Models that people already have: what their configurations say about positions.

`pe.explain` reads a configuration, never weights, and never executes code from a checkpoint.
"""
