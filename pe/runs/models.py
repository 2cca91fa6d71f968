"""The files of a record, field by field: the docstring of a field is its documentation.

JSON is validated against these models when it is read and when it is written; the tables in the
book are generated from them (`fields`). A field that came later has a default, so that older
records load. What several files hold is described once: with its type, or by the docstring of its
part.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

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
    """What all parts of a record have in common: no other fields, no conversion of types."""

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
    """Whether tracked files differed from the commit, or pe/ held files that it lacks. Null where
    git was not asked; older records say false there, too."""
    version: str
    """Version of pe."""
    source: Literal["git", "told", "unknown"] = "unknown"
    """How the commit is known: asked of git, or told in $PE_COMMIT. Not in older records."""
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
    """Versions of Python and of the packages that matter."""
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
        description="By length: the same last target_tokens of every window, seen with `length` "
        "tokens up to the last target's predecessor."
    ),
]


class Scored(Part):
    """Which text was scored."""

    lengths: Lengths
    target_tokens: TargetTokens
    windows: int
    """Windows, each inside one test document."""


# ---------------------------------------------------------------- run.json


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


# ---------------------------------------------------------------- evaluation.json


WindowPerplexity = Annotated[
    dict[Tokens, Cell], Field(description="By length: all tokens of the window but the first.")
]


class LossByPosition(Part):
    """Mean loss along the window, at the longest length that has a value."""

    length: int | None
    """Tokens of the windows."""
    edges: list[int]
    """Bin edges, one more than values: bin i holds the tokens predicted from positions edges[i] to
    edges[i+1]-1."""
    nll: list[float]
    """Nats per token in each bin."""


Number = TypeVar("Number")


class Answers(Part, Generic[Number]):
    """Prompts, or single digits, that were answered right."""

    exact: Number
    """Prompts with all digits right, chosen among the ten digits."""
    greedy: Number
    """Prompts with all digits right, chosen from the whole vocabulary."""
    digits: Number
    """Single digits right, chosen among the ten."""


class Controls(Part):
    """The same prompts where the answer cannot be read, over all depths."""

    removed: Answers[int]
    """The needle removed."""
    another: Answers[int]
    """The needle stating another number."""


class RetrievalCell(Answers[list[int] | None]):
    """One length of prompt and answer, in tokens: counts by depth, null where there are none."""

    controls: Controls | None
    reason: Reason


class Retrieval(Part):
    """Numbers hidden in test text: how many prompts (or single digits) were answered right. Only
    where the recipe asks for it."""

    samples: int
    """Prompts for each length and depth."""
    depths: list[float]
    """Share of the text before the number."""
    digits: int
    """Digits of an answer."""
    tasks: dict[str, dict[Tokens, RetrievalCell]]
    """By task, and by length in tokens."""


class NeedleCell(Part):
    """One length of prompt and answers, in tokens."""

    prompts: str | None
    """1 for each prompt whose answers are all right and 0 for the others, in an order that is the
    same for every model; null where the model cannot be run."""
    numbers: float | None = None
    """Share of the numbers that are right."""
    digits: float | None = None
    """Share of the digits that are right, each chosen among the ten; chance 0.1."""
    controls: dict[str, int] | None = None
    """Prompts that are right where the answer cannot be read: ``removed`` and ``another``."""
    reason: Reason


class Needles(Part):
    """The same for recipes with retrieval_tasks: numbers of seven digits, hits of each prompt."""

    count: int
    """Prompts for each task and length."""
    seed: int
    """Of the prompts."""
    digits: int
    """Digits of a number."""
    tasks: dict[str, dict[Tokens, NeedleCell]]
    """By task, and by length in tokens."""


class Measures(Part):
    """How a model does by context length."""

    perplexity: Perplexity
    window_perplexity: WindowPerplexity
    loss_by_position: LossByPosition
    retrieval: Retrieval | None = None
    needles: Needles | None = None


class Fit(Part):
    """A length temperature fitted on validation text."""

    value: float
    """c in the factor 1 + c ln(n / L) of the logits of a query that sees n > L tokens."""
    nll: float
    """Mean loss on the validation windows with it, nats per token."""
    nll_without: float
    """The same at c = 0."""
    lengths: list[int]
    """Context lengths it was fitted on, in tokens."""
    windows: int
    """Validation windows."""
    trials: list[list[float]]
    """Every [c, nll] that was tried."""
    at_bound: bool = False
    """Whether the search ended at an end of its range: the best c may lie beyond. Not in older
    records."""


class Tempered(Part):
    """The same measurements with a length temperature fitted on validation text, where the recipe
    asks for it."""

    fit: Fit | None
    """That of the shortest length; null where no length lies beyond the training context."""
    fits: dict[Tokens, Fit] = {}
    """By length beyond the training context: the fit that is used at that length. Not in older
    records, which used one fit over all lengths."""
    reason: str | None
    """Why there is no fit."""
    perplexity: Perplexity = {}
    window_perplexity: WindowPerplexity = {}
    loss_by_position: LossByPosition | None = None
    retrieval: Retrieval | None = None
    needles: Needles | None = None


class Precision(Part):
    """Types of matrix products and of the residual stream."""

    products: str
    """Type of matrix products, such as bfloat16."""
    residual: str
    """Type of the residual stream."""


class Evaluation(Measures, Scored, Record):
    """How a trained model does at context lengths it may never have seen."""

    created: Created
    code: Code | None = None
    """The code that evaluated. Not in older records."""
    windows_wanted: int | None = None
    """Windows that the recipe asked for; the corpus may have fewer. Not in the oldest records."""
    precision: Precision | None = None
    """Types of matrix products and of the residual stream. Not in older records: those of the
    recipe, the residual stream as the products."""
    seconds: Seconds
    tempered: Tempered | None = None


# ---------------------------------------------------------------- extension.json


class ExtensionCell(Computed):
    """One conversion."""

    pe: str
    """Encoding the model was converted to."""
    options: dict[str, Any]
    """Its options; empty where ``by_length`` has them."""
    by_length: dict[Tokens, dict[str, Any]] | None = None
    """Options at each length beyond the training length, where the factor equals the length."""
    retrained: Retrained | None = None
    """Only where the run's weights were lost and this is measured on those of a second training."""
    perplexity: Perplexity
    needles: Needles | None = None
    """Where the recipe names retrieval tasks; not in older records."""


class Extension(Scored, Record):
    """A trained rotary model extended without training, by method and factor.

    The windows are those of evaluation.json.
    """

    cells: dict[str, ExtensionCell]
    """By method and factor, such as yarn@4 and yarn@length."""


# ---------------------------------------------------------------- longrope-<factor>x.json


class Candidate(Part):
    """One vector of factors and its loss."""

    generation: int
    """0: the seeds and their mutations."""
    origin: str
    """A seed's name (pi, ntk, yarn, blend), mutation or crossover."""
    nll: float | None
    """Mean negative log likelihood in nats per token; null where it is no number."""
    perplexity: float | None
    """exp(nll)."""
    factors: list[float]
    """By how much each frequency is slowed."""


class SearchSettings(Part):
    """What the search was asked for, and what follows from that."""

    pe: str
    """Encoding that the model is converted to."""
    factor: float
    """How many training lengths are read."""
    magnitude: str | float
    """LongRoPE's option, for all candidates."""
    population: int
    """Size of the first generation."""
    seed: int
    """Of all random choices."""
    windows: int
    """Windows asked for."""
    length: int
    """Tokens of a window."""
    target_tokens: TargetTokens
    windows_found: int
    """Windows that the corpus has, each inside one validation document."""
    data: str
    """Fingerprint of the texts."""


class Search(Computed, Record):
    """A search for LongRoPE's factors: every candidate and its loss."""

    settings: SearchSettings
    history: list[Candidate]
    """Every candidate in the order of evaluation."""
    best: Candidate | None
    """The candidate with the least loss; the first of equals."""


# ---------------------------------------------------------------- speed.json


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


# ---------------------------------------------------------------- pretrained.json


class PretrainedSettings(Part):
    """What was asked of a model that somebody else trained."""

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
    """The model as it was."""

    type: str
    """transformers' name of its kind."""
    parameters: int
    """All parameters, a tied head counted once."""
    training_length: int
    """Tokens of the longest texts that it is meant for."""
    known_from: str
    """How the training length is known."""


class Outcome(Measures):
    """How one variant of the model does."""

    no_needles: str | None
    """Why no hidden numbers were looked for; null where they were, at lengths with room for them."""
    seconds: Seconds
    sample: str
    """A continuation of the first tokens of the test split, without drawing (greedy)."""


class Step(Part):
    """One logged step of a training."""

    step: int
    """Optimizer steps so far."""
    loss: float
    """Mean since the line before, nats per token."""
    learning_rate: float
    """Of that step."""


class PretrainedRecord(Process, Record):
    """A model that somebody else trained, before and after `pe.adapt`."""

    study: str
    """Folder that the record belongs to."""
    run: str
    """Folder of the record."""
    status: Literal["running", "complete"]
    """Whether all that was asked for is there."""
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
    peak_memory_gib: float | None
    """Peak device memory (CUDA) or resident memory (CPU) in GiB."""


# ---------------------------------------------------------------- task-ENCODING.json


class TaskAnswers(Part):
    """How many answers of one model were right."""

    tokens_right: int
    """Right tokens among those that were asked for."""
    tokens: int
    """Tokens that were asked for."""
    examples_right: int
    """Examples of which every token is right."""
    examples: int
    """Examples that were asked."""
    loss: float | None
    """Mean cross-entropy among the task's answers, in nats per token; null where it is no number,
    as after a training that diverged."""


class TaskModel(Part):
    """One of the models: a seed at a learning rate."""

    seed: int
    """Draws the initial weights and the examples of training."""
    learning_rate: float
    """Constant after the warmup."""
    losses: list[float | None]
    """Loss of the batch at each step of `steps`; null where it is no number."""
    validation: TaskAnswers
    """On examples of their own, of the lengths of training; chooses the rate."""
    splits: dict[str, TaskAnswers | None]
    """By split, the answers on its examples; null where the encoding has no such positions."""


class TaskPlaces(Part):
    """Accuracy by position, of the models at the best rate."""

    starts: list[int]
    """First position of each group of positions, counted from 0."""
    shares: list[list[float | None]]
    """For each seed and group the share of right tokens; null where nothing is asked."""


class TaskRecord(Process, Record):
    """One encoding on one synthetic task: several seeds, each at several learning rates."""

    study: str
    """Folder that the experiment belongs to."""
    run: str
    """Folder of the experiment: the task and a hash of all settings but the encoding."""
    status: Literal["complete", "stopped"]
    """Stopped: somebody ended the training before its last step; scores are those of then."""
    task: str
    """Name of the task."""
    task_options: dict[str, Any]
    """All options of the task."""
    pe: str
    """The encoding."""
    sources: dict[str, str]
    """By module, SHA-256 (16 digits) of all in it that decides the encoding's result."""
    settings: dict[str, Any]
    """Sizes of the models and how they were trained (`pe.tasks.measure.settings.Settings`)."""
    seeds: list[int]
    """Seeds, each of which was trained at every rate."""
    learning_rates: list[float]
    """Learning rates, in order."""
    best_rate: float
    """The rate with the least loss in validation, in the mean over seeds."""
    parameters: int
    """Parameters of one model."""
    encoding_parameters: int
    """Those of its encoding."""
    chance: float
    """Token accuracy of uniform guesses among the answers."""
    baselines: dict[str, dict[str, float]]
    """Token accuracy of the task's trivial strategies, by name and split."""
    steps: list[int]
    """Steps, counted from 1, whose losses are recorded."""
    models: list[TaskModel]
    """All rates of the first seed, then of the second."""
    lengths: dict[Tokens, list[TaskAnswers] | None]
    """By length as the task counts it, the answers of the models at the best rate, a seed after the
    other; null where the encoding has no such positions."""
    positions: dict[str, TaskPlaces | None]
    """By split, accuracy by position."""
    seconds: Seconds


# ---------------------------------------------------------------- numerics.json


class NumericsRecord(Process, Record):
    """Numbers that are computed from an encoding's formula, without training."""

    run: str
    """Folder below runs/numerics/."""
    settings: dict[str, Any]
    """What all values have in common."""
    values: dict[str, dict[str, float]]
    """By encoding, with options as in ``rope@theta=10000``, and by quantity, with the length as in
    ``position-inversion@1024``."""
    seconds: Seconds


MODELS: dict[str, type[Record]] = {
    "run": RunRecord, "evaluation": Evaluation, "extension": Extension, "longrope": Search,
    "speed": SpeedRecord, "pretrained": PretrainedRecord, "task": TaskRecord,
    "numerics": NumericsRecord,
}  # fmt: skip


def fields(name: str) -> list[tuple[str, str, str]]:
    """(path, JSON type, meaning) of every field of a file; a part is spelled out where it is first.

    Args:
        name: of the file, a key of `MODELS`.
    """
    return list(_fields(MODELS[name], "", set()))


def _fields(part: type[Part], prefix: str, told: set[type]) -> Iterator[tuple[str, str, str]]:
    for name, field in part.model_fields.items():
        path, inner = prefix + (field.alias or name), _part_of(field.annotation)
        meaning = field.description or (inner and inner[0].__doc__) or ""
        yield path, _kind(field.annotation), " ".join(meaning.split())
        if inner and inner[0] not in told:
            told.add(inner[0])
            yield from _fields(inner[0], f"{path}{inner[1]}.", told)


def _part_of(kind: Any) -> tuple[type[Part], str] | None:
    """The part that a field holds, with the way there: ``.<tokens>`` of a mapping by length."""
    if isinstance(kind, type) and issubclass(kind, Part):
        return kind, ""
    steps = {list: "[]", dict: ".<tokens>" if get_args(kind)[:1] == (Tokens,) else ".<name>"}
    for inner in map(_part_of, get_args(kind)):
        if inner:
            return inner[0], steps.get(get_origin(kind), "") + inner[1]
    return None


def _kind(kind: Any) -> str:
    """A type in JSON's words."""
    words: dict[Any, str] = {
        int: "integer", float: "number", str: "string", bool: "boolean", list: "array",
        dict: "object", type(None): "null",
    }  # fmt: skip
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_kind, get_args(kind)))
    return words.get(get_origin(kind) or kind, "object")
