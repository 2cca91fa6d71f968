"""Measure speed and memory of every encoding and of other libraries' models.

plan.py      what is measured, and in which order
systems.py   the models: ours and the other libraries'
cell.py      one measurement
measure.py   all measurements, with a time limit; the record is written after each of them

``pe speed`` runs it (`pe.cli`), and so does ``notebooks/speed.ipynb``.
"""
