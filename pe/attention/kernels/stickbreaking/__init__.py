"""Stick-breaking attention (arXiv:2410.17980), in memory linear in the length."""
