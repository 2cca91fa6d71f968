"""How the kernels cut their work up: block sizes, warps and pipeline stages, by measurement.

Chosen on an H100 for heads of 64 (benchmarks/LOG.md has the tables); what is wider, and other
cards, run with less well chosen ones.
"""

from __future__ import annotations

from typing import NamedTuple


class Blocks(NamedTuple):
    """Queries and keys of a block, warps that share it, loads in flight."""

    queries: int
    keys: int
    warps: int
    stages: int


class Plan(NamedTuple):
    """The blocks of each kernel."""

    forward: Blocks
    keys: Blocks
    """dk and dv; its query blocks must divide its key blocks."""
    queries: Blocks
    """dq."""
    table: Blocks
    """Gradient by distance; square."""


S = Blocks(64, 64, 4, 3)
NARROW = {
    0: Plan(Blocks(128, 64, 8, 3), Blocks(32, 64, 4, 3), Blocks(64, 64, 4, 2), S),
    1: Plan(Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), S),
    2: Plan(Blocks(64, 128, 4, 2), Blocks(64, 64, 4, 3), Blocks(64, 32, 4, 3), S),
    3: Plan(Blocks(64, 128, 4, 2), Blocks(64, 64, 4, 3), Blocks(64, 32, 4, 3), S),
    5: Plan(Blocks(128, 64, 8, 3), Blocks(32, 64, 4, 3), Blocks(64, 64, 4, 2), S),
    6: Plan(Blocks(128, 64, 8, 3), Blocks(32, 64, 4, 3), Blocks(64, 64, 4, 2), S),
}
WIDE = Plan(Blocks(128, 64, 8, 2), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2))


def plan_for(query_width: int, value_width: int, kind: int) -> Plan:
    """The plan for these widths and this kind of bias."""
    return NARROW[kind] if max(query_width, value_width) <= 64 else WIDE
