"""Parts that several files of records have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")]
Tokens = Annotated[str, StringConstraints(pattern=r"^[0-9]+$")]
"""A context length in tokens, as a key of JSON."""
Status = Literal["running", "complete", "failed", "interrupted"]
Mode = Literal["train", "prefill", "small"]

Created = Annotated[str, Field(description="When it began. ISO 8601, UTC.")]
Seconds = Annotated[float, Field(description="Wall time.")]
Reason = Annotated[str | None, Field(description="Why there is no value; null where there is one.")]
Lengths = Annotated[list[int], Field(description="Context lengths in tokens.")]
TargetTokens = Annotated[int, Field(description="Tokens scored at the end of each window.")]


class Part(BaseModel):
    """Base class of all parts of a record. It allows no other fields and converts no types."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class Record(Part):
    """A file of a record."""

    format: Literal[1] = Field(alias="schema")
    """Version of this format."""


class Code(Part):
    """The code that ran."""

    commit: str | None
    """Git commit; null where none is known."""
    dirty: bool | None
    """Whether tracked files differed from the commit, or pe/ had files that it lacks. Null if this
    is not known; older records have false then."""
    version: str
    """Version of pe."""
    source: Literal["git", "told", "unknown"] = "unknown"
    """How the commit is known: from git, or from $PE_COMMIT (told). Not in older records."""
    files: str | None = None
    """SHA-256 (16 digits) of the package's Python files. Not in older records."""


class Hardware(Part):
    """The machine."""

    device: str
    """cpu, cuda or mps."""
    name: str
    """Processor or GPU."""
    count: int
    """Devices used."""
    devices: list[str] | None = None
    """The device of each process by rank, if a run had several processes. Not in older records."""
    cores: int
    """CPU cores."""
    memory_gib: float
    """Main memory in GiB."""
    platform: str
    """Operating system."""


class Process(Part):
    """A process: when it ran, how it was started, and what it ran on."""

    created: Created
    finished: str | None
    """When it ended. ISO 8601, UTC; null while it runs."""
    command: str
    """The command line that started it."""
    code: Code
    versions: dict[str, str]
    """Versions of Python and of the most important packages."""
    hardware: Hardware


class Computed(Part):
    """When something was computed, on what, and for how long."""

    created: Created
    code: Code
    hardware: str
    """Device."""
    seconds: Seconds


class Cell(Part):
    """One context length."""

    value: float | None
    """Perplexity, exp(nll); null where the model cannot be run at this length."""
    nll: float | None
    """Mean negative log likelihood in nats per token, token-weighted."""
    window_nll: list[float] | None
    """Mean of each window, for intervals and paired comparisons."""
    reason: Reason


Perplexity = Annotated[
    dict[Tokens, Cell],
    Field(
        description="By length: perplexity of the last target_tokens of every window, if the model "
        "reads `length` tokens. The targets are the same at every length."
    ),
]


class Scored(Part):
    """Which text was scored."""

    lengths: Lengths
    target_tokens: TargetTokens
    windows: int
    """Number of windows, each inside one test document."""
