"""Speed and memory of every encoding, beside other libraries, on one kind of card.

plan.py      what is measured, and in which order
systems.py   the models: ours and the peers'
cell.py      one measurement
measure.py   all of them, with a time limit, in a record that is never older than one cell
record.py    the record: medians over rounds, ratios to NoPE
targets.py   what was aimed at, and whether it was reached
tables.py    the record as Markdown
"""
