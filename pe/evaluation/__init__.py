"""Evaluation of trained runs beyond their training length."""
