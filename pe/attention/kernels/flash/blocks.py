"""Block sizes, warps, pipeline stages and register limits of the kernels, chosen by measurement.

They were measured on an H100 and an H200 for heads of width 64 (benchmarks/LOG.md has the tables).
For wider heads and on other GPUs they work, but may not be the best ones.

A streaming multiprocessor has 65,536 registers. So two programs of 8 warps fit if a thread uses at
most 128 registers, and three programs of 4 warps if it uses at most 168. Without a limit the
compiler uses up to 255 to save a few instructions. Then fewer programs fit, and none can run while
another waits for memory. The limits here cause no spilling, or next to none (as compiled for sm_90
by triton 3.6).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pe.encodings.core.forms import FIRE, KEYS, LOGARITHM, NONE, POWER, ROWS, TABLE


class Blocks(NamedTuple):
    """The size of a kernel's blocks, and options of the compiler."""

    queries: int
    keys: int
    warps: int
    stages: int
    """Depth of the software pipeline: how many loads are in flight."""
    registers: int = 0
    """The most registers per thread; 0 for no limit."""

    def options(self) -> dict[str, Any]:
        """Return the options with which Triton compiles the kernel."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})


class Plan(NamedTuple):
    """The blocks of all kernels for one kind of bias."""

    forward: Blocks
    keys: Blocks
    """For dk and dv. The size of its query blocks must divide that of its key blocks."""
    queries: Blocks
    """For dq."""
    table: Blocks
    """For the gradients of TABLE and FIRE; the blocks must be square."""


SQUARE = Blocks(64, 64, 4, 3)
PLAIN = Plan(Blocks(128, 64, 8, 3, 128), Blocks(32, 64, 4, 3), Blocks(64, 64, 4, 2, 168), SQUARE)
NARROW = dict.fromkeys((NONE, LOGARITHM, POWER), PLAIN)
NARROW[KEYS] = Plan(Blocks(64, 128, 4, 2, 168), Blocks(64, 64, 4, 3), PLAIN.queries, SQUARE)
NARROW[TABLE] = NARROW[KEYS]._replace(queries=Blocks(64, 32, 4, 3, 128))
NARROW[FIRE] = NARROW[TABLE]._replace(forward=PLAIN.forward)
# Compiled for sm_90 it spills at most 64 bytes. It has not been timed.
NARROW[ROWS] = Plan(Blocks(64, 64, 4, 3, 168), PLAIN.keys, NARROW[TABLE].queries, SQUARE)
REACHING = NARROW[TABLE]._replace(forward=Blocks(64, 64, 4, 3, 168))
"""For a table that is constant from some distance on (T5)."""
WIDE = Plan(
    Blocks(128, 32, 8, 2, 128), Blocks(32, 64, 4, 2), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2)
)


def plan_for(query_width: int, value_width: int, kind: int, reach: int) -> Plan:
    """Return the plan for these widths, this kind of bias, and ``reach`` (0: none)."""
    if max(query_width, value_width) > 64:
        return WIDE
    return REACHING if reach and kind == TABLE else NARROW[kind]
