"""Notebooks: their parameters, what their pages show, and papermill's engine for them."""
