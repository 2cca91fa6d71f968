"""Rows, quantities, intervals and tables made of recorded runs."""
