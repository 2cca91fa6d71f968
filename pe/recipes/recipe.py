"""Recipe: everything that defines a training run, as one frozen, validated dataclass
of plain JSON values.

Two runs with equal recipes (seed included) are the same experiment: `config_hash` names it. The
evaluation settings and the recipe's own name are left out of the hash, because changing how a
model is judged does not change the model. This module imports no torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from pe._errors import LAST_SEED, explain, unknown

LONGEST_NAME = 80
"""Characters of an encoding in the name of a run's folder; file systems allow 255 in all."""
NOT_IDENTITY = (
    "name", "evaluation_lengths", "target_tokens", "evaluation_windows", "log_every",
    "validate_every", "checkpoint_every", "keep_steps", "keep_states", "retrieval_samples",
    "fit_temperature", "keep_best", "activation_checkpointing", "fsdp",
)  # fmt: skip
"""Fields that do not change the final weights: how a run is evaluated, logged and saved."""
NEW_FIELD_DEFAULTS = {
    "joint_norm": "", "softmax_scale": 0.0, "start_from": "", "start_step": 0,
    "start_state": "weights", "retrieval_share": 0.0,
    "deterministic": False, "encoding_rate": 1.0, "embedding_std": 0.02,
    "first_token": False, "retrieval_tasks": (), "separator": "", "dropout": 0.0,
    "tune": "all",
}  # fmt: skip
"""Fields that were added later, with the value that earlier runs had. A field with this value is
left out of the hash, so that earlier runs keep their names."""

NOTEBOOK_PARAMETERS = (
    "pe", "seed", "steps", "corpus", "context_length", "batch_size", "learning_rate", "pe_options",
)  # fmt: skip
"""Fields that are parameters of train.ipynb; all others go into its parameter ``overrides``."""

Count = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def _tuple(value: Any) -> Any:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


FROM_LIST = BeforeValidator(_tuple)
"""A list, as JSON has it, becomes a tuple, and so does a single number or name."""
Counts = Annotated[tuple[Count, ...], FROM_LIST]


def _word(value: Any) -> Any:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


SWITCH = BeforeValidator(_word)
"""YAML reads ``on`` and ``off`` as True and False."""

Class = TypeVar("Class", bound=type)


def _explained(cls: Class) -> Class:
    """Make a validated dataclass report all mistakes in one line: field, expectation, value."""
    validate: Callable[..., None] = vars(cls)["__init__"]

    def __init__(self: Any, **values: Any) -> None:
        try:
            validate(self, **values)
        except ValidationError as error:
            names = [f.name for f in dataclasses.fields(cls)]
            raise ValueError("; ".join(explain(error, "recipe field", names))) from None

    setattr(cls, "__init__", __init__)  # noqa: B010 (mypy refuses the plain assignment)
    return cls


@_explained
@dataclass(
    frozen=True,
    kw_only=True,
    config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False),
)
class Recipe:
    """One training run. Lengths are in tokens, rates per optimizer step.

    Raises:
        ValueError: fields are unknown or wrong, or settings of the evaluation do not fit, which
            would otherwise be noticed only after training; the message names all of them.
    """

    name: str = "custom"
    pe: str = "rope"
    """Encoding, as the registry spells it: ``"rope"``, ``"rope+alibi"`` ..."""
    pe_options: dict[str, Any] = field(default_factory=dict)
    """Options of the encoding, for example ``{"factor": 8.0}`` for YaRN."""
    seed: Annotated[int, Field(ge=0, lt=LAST_SEED + 1)] = 0
    """Draws initial weights and the order of the training windows."""

    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    intermediate_size: Count
    qk_norm: bool = False
    """RMS-normalise queries and keys for each head before they are rotated."""
    joint_norm: Literal["", "q", "k", "qk"] = ""
    """RMS-normalise queries (``"q"``), keys (``"k"``) or both (``"qk"``) over all heads."""
    softmax_scale: NonNegative = 0.0
    """Factor of the logits; 0: 1/sqrt(head_dim)."""
    dropout: Fraction = 0.0
    """Probability of a 0 among the embeddings and among what each block adds to the residual stream
    (`pe.model.PEConfig`). Drawn by seed, step and process, so that a resumed run draws the same."""
    embedding_std: Positive = 0.02
    """Standard deviation of the initial token embeddings; hidden_size**-0.5 is that of papers
    which add positions to embeddings multiplied by sqrt(hidden_size)."""

    corpus: str = "stdlib"
    """Name of a corpus, or a path to .txt, .jsonl, .parquet files."""
    separator: str = ""
    """What lies between the documents of a .txt file: ``"<|endoftext|>"``, or ``"blank-lines"`` for
    one blank line or more; empty: a file is one document."""
    tokenizer: str = "bpe"
    """``"bpe"`` trains a byte-level BPE on the training split; otherwise a tokenizer's path."""
    vocab_size: Count
    context_length: Count
    """Tokens in a training window."""
    reset_positions: bool = False
    """Restart positions at 0 at each document inside a window."""
    mask_documents: bool = False
    """Forbid attention from one document into another inside a window. In a compiled step, a
    sliding window beside a bias of the distance then needs a mask of all queries and keys."""
    retrieval_share: Share = 0.0
    """Share of the training windows that hide a number and ask for it (`pe.data.needles`)."""
    retrieval_tasks: Annotated[tuple[str, ...], FROM_LIST] = ()
    """Tasks of `pe.data.needles`, for training (`retrieval_share`) and for evaluation
    (`retrieval_samples`). Empty: the needle and passkey of older records."""
    first_token: bool = False
    """Begin each window with the end-of-text token, in training and in evaluation."""

    start_from: str = ""
    """A run whose weights to begin with (its name in the same study, ``study/run``, or a path);
    its encoding becomes ``pe``. Schedule and optimizer are new; the stream of text continues."""
    start_step: Natural = 0
    """The step of ``start_from`` after which its weights are taken; 0: its last one."""
    start_state: Literal["weights", "all"] = "weights"
    """``"weights"``, with a new optimizer, or ``"all"``: a branch, which continues that run."""
    tune: Literal["all", "encoding"] = "all"
    """What is trained: all weights, or only the encoding's parameters, while all others stay as in
    ``start_from``."""
    steps: Natural
    """Optimizer steps. 0, with ``start_from``: the other run's weights are evaluated under ``pe``
    without training."""
    batch_size: Count
    """Windows in an optimizer step, over all processes."""
    micro_batch_size: Natural = 0
    """Windows in one forward pass of one process, at most; 0: as many as it has."""
    learning_rate: Positive
    min_learning_rate: NonNegative
    encoding_rate: Positive = 1.0
    """Factor of the learning rate for the encoding's parameters. Adam changes a parameter by about
    the learning rate per step, which may be too little for a table of biases. `pe.recipe` takes
    ``"declared"`` for the factor that the encoding declares."""
    warmup_steps: Natural
    schedule: Literal["cosine", "wsd"] = "cosine"
    decay_steps: Natural = 0
    """Length of the final decay of the ``wsd`` schedule."""
    weight_decay: NonNegative = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    grad_clip: Positive = 1.0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """``auto``: bfloat16 autocast on CUDA, float32 elsewhere."""
    compile: Annotated[Literal["auto", "on", "off"], SWITCH] = "auto"
    """``auto``: torch.compile on CUDA, off elsewhere."""

    activation_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping what it computed: less
    memory, more time, the same result."""
    fsdp: bool = False
    """Divide weights, gradients and optimizer among the processes of the run (PE_PROCESSES): less
    memory for each, the same result up to the order of sums."""
    deterministic: bool = False
    """The same bits from run to run on the same machine (`pe.devices.deterministic`); slower."""

    checkpoint_every: Count = 100
    keep_steps: Counts = ()
    """Steps after which the weights are kept for good, for other runs to start from."""
    keep_states: Counts = ()
    """Steps after which weights, optimizer and random states are kept, for branches."""
    log_every: Count = 10
    validate_every: Natural = 100
    """Steps between validation losses; 0: only at the end."""
    keep_best: bool = False
    """Also keep the weights with the least validation loss, in the run's folder ``best/``."""

    evaluation_lengths: Annotated[Counts, Field(min_length=1)]
    target_tokens: Count = 256
    """The same last tokens are scored at every context length."""
    evaluation_windows: Count = 64
    retrieval_samples: Natural = 0
    """Prompts for each length and depth of each retrieval task; 0: none."""
    fit_temperature: bool = False
    """Evaluate a second time with a temperature fitted on validation text."""

    @model_validator(mode="after")
    def _fields_fit(self) -> Recipe:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """Make a recipe of what `to_dict` returned. Unknown fields raise ValueError."""
        return cls(**values)

    def config_hash(self) -> str:
        """Return eight hex digits that identify the training run."""
        values = {
            name: value
            for name, value in self.to_dict().items()
            if name not in NOT_IDENTITY
            and not (name in NEW_FIELD_DEFAULTS and getattr(self, name) == NEW_FIELD_DEFAULTS[name])
        }
        if "start_from" in values:  # wherever that run's folder is, its name says what it is
            values["start_from"] = Path(self.start_from).name
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def run_name(self) -> str:
        """Return ``pope-s0-1a2b3c4d``: encoding, cut if it is long, seed, hash.

        It is safe as a folder name.
        """
        pe = re.sub(r"[^A-Za-z0-9_.-]+", "_", self.pe)[:LONGEST_NAME]
        return f"{pe}-s{self.seed}-{self.config_hash()}"

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


def _problems(r: Recipe) -> Iterator[str]:
    """Yield values that do not fit those of other fields."""
    if r.hidden_size % r.num_attention_heads:
        yield f"hidden_size: {r.hidden_size} does not divide into {r.num_attention_heads} heads"
    elif r.num_attention_heads % r.num_key_value_heads:
        yield (
            f"num_attention_heads: {r.num_attention_heads} is not a multiple of "
            f"num_key_value_heads {r.num_key_value_heads}"
        )
    for name, value in r.pe_options.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            yield f"pe_options: {name}: expected what JSON can hold, without NaN, got {value!r}"
    if r.min_learning_rate > r.learning_rate:
        yield (
            f"min_learning_rate: expected 0 to learning_rate {r.learning_rate}, "
            f"got {r.min_learning_rate}"
        )
    if r.warmup_steps + r.decay_steps > r.steps:
        yield (
            f"steps: {r.steps} is less than warmup_steps {r.warmup_steps} + decay_steps "
            f"{r.decay_steps}"
        )
    if r.decay_steps and r.schedule == "cosine":
        yield (
            f"decay_steps: {r.decay_steps} has no effect under the schedule 'cosine', which decays "
            "from the warmup to the end; set schedule 'wsd', or decay_steps 0"
        )
    if r.retrieval_tasks:
        from pe.data.needles import NEEDLE_TASKS

        for task in r.retrieval_tasks:
            if task not in NEEDLE_TASKS:
                yield f"retrieval_tasks: {unknown('task', task, NEEDLE_TASKS)}"
        if not (r.retrieval_share or r.retrieval_samples):
            yield (
                "retrieval_tasks: no effect without retrieval_share (training) or "
                "retrieval_samples (evaluation)"
            )
    if r.micro_batch_size and r.batch_size % r.micro_batch_size:
        yield f"micro_batch_size: {r.micro_batch_size} does not divide batch_size {r.batch_size}"
    if r.start_step and not r.start_from:
        yield f"start_step: {r.start_step} has no effect without start_from; give it as well"
    if r.tune == "encoding" and not (r.start_from and r.steps):
        yield (
            "tune: 'encoding' keeps all other weights as another run has them; give start_from, "
            "and steps to train for"
        )
    if not r.steps and not (r.start_from and r.start_state == "weights"):
        yield "steps: expected at least 1, got 0; only a run with start_from may have none"
    for name in ("retrieval_share", "dropout"):
        if not r.steps and getattr(r, name):
            yield f"{name}: no effect without training steps; leave it out"
    if r.keep_best and not r.validate_every:
        yield (
            "keep_best: no effect with validate_every 0, where only the last weights are "
            "validated; set validate_every as well"
        )
    if r.start_state == "all" and not (r.start_from and r.start_step):
        yield "start_state: 'all' continues another run; give start_from and start_step as well"
    for name in ("keep_steps", "keep_states"):
        for step in getattr(r, name):
            if step > r.steps:
                yield f"{name}: {step!r} is not a step of the run; expected 1 to steps {r.steps}"
    for name in ("keep_steps", "keep_states", "evaluation_lengths"):
        numbers = getattr(r, name)
        for number in sorted({n for n in numbers if numbers.count(n) > 1}):
            yield f"{name}: {number} is there twice; give it once"
    yield from _evaluation_problems(r)


def _evaluation_problems(r: Recipe) -> Iterator[str]:
    """Yield lengths that leave no context before the targets, and settings without effect."""
    for name, length in (
        ("context_length", r.context_length),
        *(("evaluation_lengths", n) for n in r.evaluation_lengths),
    ):
        if length <= r.target_tokens:
            yield (
                f"{name}: {length} leaves no context before the {r.target_tokens} tokens that are "
                "scored; expected more than target_tokens"
            )
    if r.fit_temperature and max(r.evaluation_lengths) <= r.context_length:
        yield (
            "fit_temperature: has no effect where no evaluation length is above context_length "
            f"{r.context_length}"
        )
