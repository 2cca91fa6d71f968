"""speed.json: what encodings cost."""

from __future__ import annotations

from typing import Literal

from pe.runs.models.parts import Lengths, Mode, Part, Process, Record


class SpeedSettings(Part):
    """What was to be measured."""

    recipe: str
    """Recipe whose sizes the models have."""
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
    """Whether torch takes deterministic algorithms only. Absent: false."""


class SpeedSession(Process):
    """A process that measured."""

    helpers: int
    """Processes that compiled at the same time before cells were measured; first steps are theirs
    then."""


class SpeedCell(Part):
    """One measurement."""

    system: str
    """As in settings.systems."""
    mode: Mode
    """As in settings.modes."""
    length: int
    """Tokens in a window."""
    batch: int
    """Windows in a step; fewer than the others have where a peer did not fit."""
    session: int
    """Which of the sessions, from 0."""
    round: int
    """How often this cell had been measured before."""
    tokens_per_second: float | None
    """Median over the repeats; null where nothing was measured."""
    least: float | None
    """Of the slowest repeat."""
    most: float | None
    """Of the fastest repeat."""
    repeats: int
    """Repeats done."""
    steps_a_repeat: int
    """Steps in each of them."""
    mfu: float | None
    """Model FLOPs utilisation of a training step; null elsewhere and where the device's peak is not
    known."""
    peak_memory_gib: float | None
    """Most memory of a steady step above what was allocated before the model was built; null on a
    CPU."""
    first_step_seconds: float | None
    """From the model to the end of the first step: compilation, for the most part."""
    parameters: int | None
    """All parameters of the model."""
    compiled: bool | None
    """Whether this model was compiled."""
    path: str | None
    """Which attention was taken."""
    reason: str | None
    """Why nothing was measured; null where something was."""
    seconds: float
    """What the measurement took in all."""


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
    """One object per measurement; NoPE has several rounds."""
