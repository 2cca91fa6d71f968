"""pretrained.json: a model that somebody else trained."""

from __future__ import annotations

from typing import Any, Literal

from pe.runs.models.evaluation import Measures
from pe.runs.models.parts import Lengths, Part, Process, Record, Seconds, TargetTokens
from pe.runs.models.run import Data


class PretrainedSettings(Part):
    """The settings of an experiment with a model that somebody else trained."""

    model: str
    """Name of its folder or gguf file."""
    pe: str
    """Encoding that it is given, as the registry spells it."""
    options: dict[str, Any]
    """Options of the encoding."""
    corpus: str
    """Name or path of the text."""
    lengths: Lengths
    windows: int
    """Windows asked for at each length."""
    target_tokens: TargetTokens
    prompts: int
    """Prompts that hide a number, for each task and length."""
    steps: int
    """Optimizer steps under the new encoding; 0: none."""
    context_length: int
    """Tokens in a training window."""
    batch_size: int
    """Windows in an optimizer step."""
    learning_rate: float
    """At its peak; a cosine leads to a tenth of it."""
    seed: int
    """Of the order of training windows and of new parameters."""


class Host(Part):
    """The model before `pe.adapt`."""

    type: str
    """transformers' name of its kind."""
    parameters: int
    """All parameters, a tied head counted once."""
    training_length: int
    """Number of tokens of the longest texts for which it was trained."""
    known_from: str
    """Where the training length is stated."""


class Outcome(Measures):
    """Measurements of one variant of the model."""

    no_needles: str | None
    """Why retrieval was not measured; null if it was, at lengths that have room for it."""
    seconds: Seconds
    taken_from: str | None = None
    """The record of the same study from which it was copied; null if it was measured here."""
    sample: str | None
    """A greedy continuation of the first tokens of the test split; null if the logits are not
    finite."""


class Step(Part):
    """One logged step of a training."""

    step: int
    """Optimizer steps so far."""
    loss: float
    """Mean since the line before, nats per token."""
    learning_rate: float
    """Of that step."""


class TrainingSpeed(Part):
    """Speed and memory of the training."""

    tokens_per_second: float | None
    """Of the median step."""
    seconds: Seconds
    """In all steps of the last process."""
    compiled: bool
    """Whether decoder layers were compiled."""
    peak_memory_gib: float | None
    """Peak device memory (CUDA) or resident memory (CPU) in GiB."""


class PretrainedRecord(Process, Record):
    """A model that somebody else trained, before and after `pe.adapt`."""

    study: str
    """Folder that the record belongs to."""
    run: str
    """Folder of the record."""
    status: Literal["running", "complete"]
    """complete: all measurements are there."""
    settings: PretrainedSettings
    data: Data
    host: Host
    windows: int
    """Windows at each length, each inside one test document."""
    precision: dict[str, str]
    """Types of matrix products and of weights."""
    transformers_settings: dict[str, Any] | None
    """rope_parameters that stand for the new encoding; null where it works through hooks."""
    outcomes: dict[str, Outcome]
    """By variant: untouched, adapted, trained."""
    training: list[Step]
    """Of the variant trained."""
    training_speed: TrainingSpeed | None = None
    """Null where nothing was trained. Not in older records."""
    peak_memory_gib: float | None
    """Peak device memory (CUDA) or resident memory (CPU) in GiB."""
