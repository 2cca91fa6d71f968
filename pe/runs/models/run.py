"""run.json: a training run."""

from __future__ import annotations

from typing import Any, Literal

from pe.runs.models.parts import (
    Cell,
    Code,
    Created,
    Hardware,
    Hash,
    Part,
    Process,
    Record,
    Scored,
    Status,
    Tokens,
)


class Session(Part):
    """One process that trained."""

    created: Created
    step: int
    """Optimizer steps that had been taken before it."""
    code: Code
    hardware: Hardware | None = None
    """The machine. Null in sessions older than this list."""


class Data(Part):
    """The text."""

    corpus: str
    """Name or path of the corpus."""
    fingerprint: str
    """SHA-256 (16 digits) of the texts and their division into splits."""
    documents: int
    """Documents in all splits."""
    train_tokens: int
    """Tokens in the training split."""
    validation_tokens: int
    """Tokens in the validation split."""
    test_tokens: int
    """Tokens in the test split."""
    tokenizer: str
    """Name of the tokenizer."""
    tokenizer_fingerprint: str | None = None
    """SHA-256 (16 digits) of the tokenizer's files. Not in older records."""
    vocab_size: int
    """Entries of the vocabulary."""
    notes: list[str] = []
    """What was left out, cut or moved when the corpus was read. Not in older records."""


class Model(Part):
    """The model."""

    parameters: int
    """All parameters, the tied head counted once."""
    encoding_parameters: int
    """Parameters of the positional encoding among them."""
    attention: Literal["flash", "kernel", "matrix", "rows"] | None = None
    """How attention was computed in a training step (pe.attention.choose). Not in records older
    than the choice."""


class Best(Part):
    """The weights with the least validation loss."""

    step: int
    """Optimizer steps before them."""
    validation_loss: float
    """Their loss on the validation split, nats per token."""


class Training(Part):
    """Results of the training."""

    steps: int
    """Optimizer steps."""
    tokens: int
    """Tokens trained on."""
    passes: float
    """Tokens trained on, divided by the tokens of the training split."""
    wall_seconds: float | None
    """Seconds of the training steps that led to the result, over all sessions. Null if the
    measurement was wrong; notes say why."""
    tokens_per_second: float | None
    """Median tokens/s of the logged intervals without the first; null like wall_seconds."""
    mfu: float | None
    """Model FLOPs utilisation, 0 to 1; null where the device's peak is not known."""
    peak_memory_gib: float | None
    """Peak device memory (CUDA) or resident memory (CPU) in GiB."""
    final_loss: float | None
    """Mean training loss of the last tenth of the steps, nats per token; null without steps."""
    validation_loss: float | None
    """Loss on the validation split after the last step, nats per token."""
    unseen_loss: float | None = None
    """Loss on the next windows of the training text. These are new, but the run has read other
    windows of the same documents. Absent if the run has read all of the text."""
    resumes: int
    """How often the run was continued from a checkpoint."""
    best: Best | None = None
    """The content of the folder ``best/``; only if the recipe asks for it (keep_best)."""


class Retrained(Part):
    """The second training of a run whose weights were lost.

    The record of the first training is unchanged.
    """

    finished: str | None
    """When that training ended. ISO 8601, UTC."""
    commit: str | None
    """Git commit of the code that trained it the second time."""
    hardware: str
    """Device that trained it the second time."""
    validation_loss: float | None
    """At its end, to be compared with that in its own record."""


class Parent(Part):
    """The run from whose weights this one started; null if there is none."""

    study: str
    """Its study."""
    run: str
    """Its folder."""
    config_hash: Hash
    """Its configuration."""
    step: int
    """Its optimizer steps before those weights."""
    tokens: int
    """Tokens that those weights were trained on, including those of its own parents."""
    stream_step: int
    """Step of the stream of text at which this run started."""
    retrained: Retrained | None = None
    """Only if its weights were lost: the training that produced them a second time."""


class Conversion(Scored):
    """Perplexity of the same targets before a run with a parent was trained."""

    created: Created
    windows_wanted: int
    """Windows asked for; the corpus may have fewer."""
    before: dict[Tokens, Cell]
    """The weights under the encoding they were trained with, by length in tokens."""
    converted: dict[Tokens, Cell]
    """The same weights under this run's encoding, by length in tokens."""


class RunRecord(Process, Record):
    """A training run: its recipe, code, machine, text and results."""

    study: str
    """Folder that the run belongs to."""
    run: str
    """Folder of the run: encoding, seed, configuration hash."""
    status: Status
    """State of the run."""
    reason: str | None
    """Why the run is failed or interrupted; null otherwise."""
    signal: str | None = None
    """The signal that interrupted it, such as SIGTERM; only of interrupted runs."""
    pe: str
    """Encoding, as the registry spells it."""
    seed: int
    """Seed of initial weights and data order."""
    recipe: dict[str, Any]
    """Every field of pe.recipes.recipe.Recipe."""
    config_hash: Hash
    """First 8 hex digits of the SHA-256 of the recipe, without its name and the fields for
    evaluation, logging and saving."""
    sources: dict[str, str] = {}
    """By module, SHA-256 (16 digits) of all code that determines the result of the encoding
    (`pe.encodings.core.source`). Not in older records."""
    sessions: list[Session] = []
    """The processes whose steps led to the result, in order. The fields command, code and hardware
    are those of the last one. Not in older records."""
    data: Data | None
    model: Model | None
    training: Training | None
    parent: Parent | None = None
    conversion: Conversion | None = None
    notes: list[str] = []
    """What was removed from the record later, and why."""

    def all_sessions(self) -> list[Session]:
        """Return `sessions`, or the single session that a record without this field had."""
        if self.sessions or "sessions" in self.model_fields_set:
            return self.sessions
        return [Session(created=self.created, step=0, code=self.code, hardware=self.hardware)]

    @property
    def commits(self) -> list[str]:
        """The commits of all sessions, in order."""
        known = [session.code.commit for session in self.sessions] or [self.code.commit]
        return [commit for commit in dict.fromkeys(known) if commit is not None]
