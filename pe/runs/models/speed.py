"""speed.json: speed and memory of encodings."""

from __future__ import annotations

from typing import Literal

from pe.runs.models.parts import Lengths, Mode, Part, Process, Record


class SpeedSettings(Part):
    """The settings of the measurements."""

    recipe: str
    """Recipe with the sizes of the models."""
    tokens: int
    """Tokens in a step: batch times length."""
    lengths: Lengths
    modes: list[Mode]
    """train: a full training step; prefill: one forward pass without gradients; small: a training
    step of one short window."""
    systems: list[str]
    """Encodings, and LIBRARY/METHOD for other libraries' models."""
    repeats: int
    """How often a cell is timed."""
    compiled: bool
    """Whether models are compiled with torch.compile."""
    deterministic: bool = False
    """Whether torch used deterministic algorithms only. Absent: false."""


class SpeedSession(Process):
    """A process that measured."""

    helpers: int
    """Number of processes that compiled the models before the measurements. If there were any, the
    times of first steps are theirs."""


class SpeedCell(Part):
    """One measurement."""

    system: str
    """As in settings.systems."""
    mode: Mode
    """As in settings.modes."""
    length: int
    """Tokens in a window."""
    batch: int
    """Windows in a step; fewer than in other cells if a peer needed too much memory."""
    session: int
    """Which of the sessions, from 0."""
    round: int
    """How often this cell was measured before."""
    tokens_per_second: float | None
    """Median over the repeats; null if nothing was measured."""
    least: float | None
    """Of the slowest repeat."""
    most: float | None
    """Of the fastest repeat."""
    repeats: int
    """Repeats done."""
    steps_a_repeat: int
    """Steps in each of them."""
    mfu: float | None
    """Model FLOPs utilisation of a training step; null in other modes, and if the device's peak is
    not known."""
    peak_memory_gib: float | None
    """Peak memory of a step after warm-up, without what was allocated before the model was built;
    null on a CPU."""
    first_step_seconds: float | None
    """Time of the first step, most of which is compilation."""
    parameters: int | None
    """All parameters of the model."""
    compiled: bool | None
    """Whether this model was compiled."""
    path: str | None
    """How attention was computed."""
    reason: str | None
    """Why nothing was measured; null otherwise."""
    seconds: float
    """Time of the whole measurement."""


class SpeedRecord(Record):
    """Speed and memory of encodings and of other libraries' models, on one machine."""

    study: str
    """Folder that the run belongs to."""
    run: str
    """Folder of the run."""
    status: Literal["running", "complete", "stopped"]
    """running (or killed), complete, or stopped before its end."""
    settings: SpeedSettings
    sessions: list[SpeedSession]
    """The processes that measured, in order."""
    cells: list[SpeedCell]
    """One object per measurement; NoPE is measured repeatedly."""
