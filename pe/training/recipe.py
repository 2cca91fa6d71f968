"""Recipe: everything that defines a training run, as one frozen dataclass of plain JSON values.

Two runs with equal recipes (seed included) are the same experiment: `config_hash` names it. The
evaluation settings and the recipe's own name are left out of the hash, because changing how a
model is judged does not change the model. This module imports no torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pe._errors import unknown

SCHEDULES = ("cosine", "wsd")
PRECISIONS = ("auto", "float32", "bfloat16")
COMPILE = ("auto", "on", "off")
JOINT_NORMS = ("", "q", "k", "qk")
START_STATES = ("weights", "all")
# These say how a run is judged or watched; they do not change the weights it ends with.
NOT_IDENTITY = (
    "name",
    "evaluation_lengths",
    "target_tokens",
    "evaluation_windows",
    "log_every",
    "validate_every",
    "checkpoint_every",
    "keep_steps",
    "keep_states",
    "retrieval_samples",
    "fit_temperature",
)
# Fields that came later, with the value all runs before them had: left out of the hash where they
# have it, so that those runs keep their names.
LATER = {
    "joint_norm": "", "softmax_scale": 0.0, "start_from": "", "start_step": 0,
    "start_state": "weights", "retrieval_share": 0.0,
    "deterministic": False, "encoding_rate": 1.0, "embedding_std": 0.02,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run. Lengths are in tokens, rates per optimizer step."""

    name: str = "custom"
    pe: str = "rope"
    """Encoding, as the registry spells it: ``"rope"``, ``"rope+alibi"`` ..."""
    pe_options: dict[str, Any] = field(default_factory=dict)
    """Options of the encoding, for example ``{"factor": 8.0}`` for YaRN."""
    seed: int = 0
    """Draws initial weights and the order of the training windows."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    qk_norm: bool = False
    """RMS-normalise queries and keys for each head before they are rotated."""
    joint_norm: str = ""
    """RMS-normalise queries (``"q"``), keys (``"k"``) or both (``"qk"``) over all heads."""
    softmax_scale: float = 0.0
    """Factor of the logits; 0: 1/sqrt(head_dim)."""
    embedding_std: float = 0.02
    """Standard deviation of the initial token embeddings; hidden_size**-0.5 is that of papers
    which add positions to embeddings multiplied by sqrt(hidden_size)."""

    corpus: str = "stdlib"
    """Name of a corpus, or a path to .txt, .jsonl, .parquet files."""
    tokenizer: str = "bpe"
    """``"bpe"`` trains a byte-level BPE on the training split; otherwise a tokenizer's path."""
    vocab_size: int
    context_length: int
    """Tokens in a training window."""
    reset_positions: bool = False
    """Restart positions at 0 at each document inside a window."""
    mask_documents: bool = False
    """Forbid attention from one document into another inside a window."""
    retrieval_share: float = 0.0
    """Share of the training windows that hide a number and ask for it (`pe.data.retrieval`)."""

    start_from: str = ""
    """A run whose weights to begin with (its name in the same study, ``study/run``, or a path);
    its encoding becomes ``pe``. Schedule and optimizer begin anew, the text goes on."""
    start_step: int = 0
    """The step of ``start_from`` after which its weights are taken; 0: its last one."""
    start_state: str = "weights"
    """``"weights"``, with a fresh optimizer, or ``"all"``: a branch, which goes on as that run."""
    steps: int
    batch_size: int
    """Windows in an optimizer step, over all processes."""
    micro_batch_size: int = 0
    """Windows in one forward pass of one process; 0: as many as there are."""
    learning_rate: float
    min_learning_rate: float
    encoding_rate: float = 1.0
    """The encoding's own parameters learn at this multiple of the learning rate. Adam moves a
    number by about the rate a step, so a table of biases may need more to get anywhere."""
    warmup_steps: int
    schedule: str = "cosine"
    decay_steps: int = 0
    """Length of the final decay of the ``wsd`` schedule."""
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0
    precision: str = "auto"
    """``auto``: bfloat16 autocast on CUDA, float32 elsewhere."""
    compile: str = "auto"
    """``auto``: torch.compile on CUDA, off elsewhere."""

    deterministic: bool = False
    """The same bits from run to run on the same machine (`pe.devices.deterministic`); slower."""

    checkpoint_every: int = 100
    keep_steps: tuple[int, ...] = ()
    """Steps after which the weights are kept for good, for other runs to start from."""
    keep_states: tuple[int, ...] = ()
    """The same with optimizer and random states, for branches."""
    log_every: int = 10
    validate_every: int = 100
    """Steps between validation losses; 0: only at the end."""

    evaluation_lengths: tuple[int, ...] = ()
    target_tokens: int = 256
    """The same last tokens are scored at every context length."""
    evaluation_windows: int = 64
    retrieval_samples: int = 0
    """Prompts for each length and depth of each retrieval task; 0: none."""
    fit_temperature: bool = False
    """Evaluate a second time with a temperature fitted on validation text."""

    def __post_init__(self) -> None:
        for name in ("evaluation_lengths", "keep_steps", "keep_states"):
            numbers: Any = getattr(self, name)
            if isinstance(numbers, list):  # as JSON has it
                object.__setattr__(self, name, tuple(numbers))
        problems = list(_type_problems(self)) or list(_value_problems(self))
        if problems:
            raise ValueError("; ".join(problems))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """The inverse of `to_dict`; unknown fields raise ValueError."""
        names = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise unknown("recipe field", name, names)
        return cls(**values)

    def config_hash(self) -> str:
        """Eight hex digits that identify the training run."""
        values = {
            name: value
            for name, value in self.to_dict().items()
            if name not in NOT_IDENTITY and not (name in LATER and value == LATER[name])
        }
        if "start_from" in values:  # wherever that run's folder is, its name says what it is
            values["start_from"] = Path(self.start_from).name
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def run_name(self) -> str:
        """``pope-s0-1a2b3c4d``: encoding, seed, hash; safe as a folder name."""
        pe = re.sub(r"[^A-Za-z0-9_.-]+", "_", self.pe)
        return f"{pe}-s{self.seed}-{self.config_hash()}"

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


def _type_problems(recipe: Recipe) -> typing.Iterator[str]:
    hints = typing.get_type_hints(Recipe)
    for f in dataclasses.fields(recipe):
        value, wanted = getattr(recipe, f.name), hints[f.name]
        origin = typing.get_origin(wanted) or wanted
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(recipe, f.name, float(value))
            continue
        right = isinstance(value, origin) and not (wanted is int and isinstance(value, bool))
        if not right or (wanted is float and not math.isfinite(value)):
            yield f"{f.name}: expected {_word(origin)}, got {value!r}"


def _word(kind: type) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}
    words |= {dict: "a dictionary", tuple: "a list of whole numbers"}
    return words[kind]


def _value_problems(r: Recipe) -> typing.Iterator[str]:
    positive = "hidden_size num_hidden_layers num_attention_heads num_key_value_heads "
    positive += "intermediate_size vocab_size context_length steps batch_size learning_rate "
    positive += "checkpoint_every log_every target_tokens evaluation_windows grad_clip "
    positive += "encoding_rate embedding_std"
    for name in positive.split():
        if getattr(r, name) <= 0:
            yield f"{name}: expected more than 0, got {getattr(r, name)!r}"
    least_zero = "seed micro_batch_size warmup_steps decay_steps weight_decay validate_every "
    least_zero += "softmax_scale start_step retrieval_share retrieval_samples"
    for name in least_zero.split():
        if getattr(r, name) < 0:
            yield f"{name}: expected 0 or more, got {getattr(r, name)!r}"
    if r.hidden_size % max(r.num_attention_heads, 1):
        yield (f"hidden_size: {r.hidden_size} does not divide into {r.num_attention_heads} heads")
    elif r.num_attention_heads % max(r.num_key_value_heads, 1):
        yield (
            f"num_attention_heads: {r.num_attention_heads} is not a multiple of "
            f"num_key_value_heads {r.num_key_value_heads}"
        )
    for name, choices in (
        ("schedule", SCHEDULES),
        ("precision", PRECISIONS),
        ("compile", COMPILE),
        ("joint_norm", JOINT_NORMS),
        ("start_state", START_STATES),
    ):
        if getattr(r, name) not in choices:
            yield str(unknown(name, getattr(r, name), choices))
    if r.retrieval_share > 1:
        yield f"retrieval_share: expected at most 1, got {r.retrieval_share!r}"
    if not 0 <= r.min_learning_rate <= r.learning_rate:
        yield (
            f"min_learning_rate: expected 0 to learning_rate {r.learning_rate}, "
            f"got {r.min_learning_rate}"
        )
    if r.warmup_steps + r.decay_steps > r.steps:
        yield (
            f"steps: {r.steps} is less than warmup_steps {r.warmup_steps} + decay_steps "
            f"{r.decay_steps}"
        )
    if r.micro_batch_size and r.batch_size % r.micro_batch_size:
        yield (f"micro_batch_size: {r.micro_batch_size} does not divide batch_size {r.batch_size}")
    if r.start_step and not r.start_from:
        yield f"start_step: {r.start_step} of which run? give start_from as well"
    if r.start_state == "all" and not (r.start_from and r.start_step):
        yield "start_state: all of which run and step? give start_from and start_step as well"
    for name in ("keep_steps", "keep_states"):
        for step in getattr(r, name):
            if type(step) is not int or not 0 < step <= r.steps:
                yield f"{name}: {step!r} is no whole number from 1 to steps {r.steps}"
    for length in r.evaluation_lengths:
        if type(length) is not int or length < r.target_tokens:
            yield (
                f"evaluation_lengths: {length!r} is not a whole number of at least target_tokens "
                f"{r.target_tokens}"
            )
