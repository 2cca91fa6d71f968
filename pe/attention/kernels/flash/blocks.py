"""Block sizes of the kernels, warps and pipeline stages, by measurement.

Chosen on an H100 and an H200 for heads of 64 (benchmarks/LOG.md has the tables); what is wider, and
other cards, run with less well chosen ones.

A processor holds 65,536 registers, so two programs of 8 warps, or three of 4, fit if a thread has
no more than 128, or 168. Left alone, the compiler takes up to 255 to save a few instructions, and a
program that waits for memory then has no other to make way for. Limits here keep nothing, or next
to nothing, outside of registers (`registers`: as compiled for sm_90 by triton 3.6).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pe.encodings.core.forms import FIRE, KEYS, LOGARITHM, NONE, POWER, TABLE


class Blocks(NamedTuple):
    """Queries and keys of a block, warps that share it, loads in flight, most registers."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int = 0
    """Per thread; 0: no limit."""

    def options(self) -> dict[str, Any]:
        """Options of the compiler."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})


class Plan(NamedTuple):
    """The blocks of each kernel."""

    forward: Blocks
    keys: Blocks
    """dk and dv; its query blocks must divide its key blocks."""
    queries: Blocks
    """dq."""
    table: Blocks
    """Gradient by distance; square."""


SQUARE = Blocks(64, 64, 4, 3)
PLAIN = Plan(Blocks(128, 64, 8, 3, 128), Blocks(32, 64, 4, 3), Blocks(64, 64, 4, 2, 168), SQUARE)
NARROW = dict.fromkeys((NONE, LOGARITHM, POWER), PLAIN)
NARROW[KEYS] = Plan(Blocks(64, 128, 4, 2, 168), Blocks(64, 64, 4, 3), PLAIN.queries, SQUARE)
NARROW[TABLE] = NARROW[KEYS]._replace(queries=Blocks(64, 32, 4, 3, 128))
NARROW[FIRE] = NARROW[TABLE]._replace(forward=PLAIN.forward)
REACHING = NARROW[TABLE]._replace(forward=Blocks(64, 64, 4, 3, 168))
"""Of a table that is constant from some distance on (T5)."""
WIDE = Plan(
    Blocks(128, 32, 8, 2, 128), Blocks(32, 64, 4, 2), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2)
)


def plan_for(query_width: int, value_width: int, kind: int, reach: int) -> Plan:
    """The plan for these widths and this kind of bias."""
    if max(query_width, value_width) > 64:
        return WIDE
    return REACHING if reach else NARROW[kind]
