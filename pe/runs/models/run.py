"""run.json: how a run was made."""

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
    """Which tokenizer."""
    tokenizer_fingerprint: str | None = None
    """SHA-256 (16 digits) of the tokenizer's files. Not in older records."""
    vocab_size: int
    """Entries of the vocabulary."""


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
    """What training did."""

    steps: int
    """Optimizer steps."""
    tokens: int
    """Tokens trained on."""
    passes: float
    """Tokens trained on over tokens of the training split."""
    wall_seconds: float | None
    """Seconds spent in the training steps that led to the result, over all sessions. Null where it
    was not measured rightly; notes say why."""
    tokens_per_second: float | None
    """Median of tokens over seconds of the logged intervals, the first left out; null like
    wall_seconds."""
    mfu: float | None
    """Model FLOPs utilisation, 0 to 1; null where the device's peak is not known."""
    peak_memory_gib: float | None
    """Peak device memory (CUDA) or resident memory (CPU) in GiB."""
    final_loss: float | None
    """Mean training loss of the last tenth of the steps, nats per token; null without steps."""
    validation_loss: float | None
    """Loss on the validation split after the last step, nats per token."""
    unseen_loss: float | None = None
    """Loss on the next windows of the training text, which were not trained on and lie in documents
    that were; only where the text was not gone through."""
    resumes: int
    """How often the run was continued from a checkpoint."""
    best: Best | None = None
    """What the folder ``best/`` holds; only where the recipe asks for it (keep_best)."""


class Retrained(Part):
    """The weights were lost, and the run was trained a second time from its recipe to have them.

    Its own record stayed as it was.
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
    """The run whose weights this one began with, if it did."""

    study: str
    """Its study."""
    run: str
    """Its folder."""
    config_hash: Hash
    """Its configuration."""
    step: int
    """Its optimizer steps before those weights."""
    tokens: int
    """Tokens that those weights were trained on, those of its parent included."""
    stream_step: int
    """First step of the data stream that this run takes."""
    retrained: Retrained | None = None
    """Only where its weights were lost: the training that made them a second time."""


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
    """What was run, on what, and what came of it."""

    study: str
    """Folder that the run belongs to."""
    run: str
    """Folder of the run: encoding, seed, configuration hash."""
    status: Status
    """Whether it is running, or how it ended."""
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
    """First 8 hex digits of the SHA-256 of the recipe without its name and the fields that say how
    it is judged, logged and saved."""
    sources: dict[str, str] = {}
    """By module, SHA-256 (16 digits) of all in it that decides the encoding's result
    (`pe.encodings.core.source`). Not in older records."""
    sessions: list[Session] = []
    """The processes whose steps led to the result, in order; command, code and machine above are
    those of the last one. Not in older records."""
    data: Data | None
    model: Model | None
    training: Training | None
    parent: Parent | None = None
    conversion: Conversion | None = None
    notes: list[str] = []
    """What was struck out of the record later, and why."""

    def all_sessions(self) -> list[Session]:
        """`sessions`; of an older record the one that it stands for, if it trained at all."""
        if self.sessions or "sessions" in self.model_fields_set:
            return self.sessions
        return [Session(created=self.created, step=0, code=self.code, hardware=self.hardware)]

    @property
    def commits(self) -> list[str]:
        """Every commit that trained, first to last."""
        known = [session.code.commit for session in self.sessions] or [self.code.commit]
        return [commit for commit in dict.fromkeys(known) if commit is not None]
