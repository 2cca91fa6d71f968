"""The rig that measures speed and memory of every encoding, beside other libraries' models.

plan.py      what is measured, and in which order
systems.py   the models: ours and the other libraries'
cell.py      one measurement
measure.py   all of them, with a time limit, in a record that is never older than one cell

``pe speed`` runs it (`pe.cli`), and so does ``notebooks/speed.ipynb``.
"""
