"""Many small models at a time: seeds and learning rates of one encoding on one task.

Models of one shape differ in their numbers alone. Their parameters are stacked, a forward and
backward pass runs over all of them (`torch.func`), and one update serves all, each with its own
rate. On a GPU, which small models leave idle, many cost little more than one; on a CPU they cost as
many times as much, less what calling torch costs. What is trained is `PEForCausalLM`, the decoder
of every other run, under the same hooks of the encoding.

A model depends on its seed and rate alone, whoever is beside it: initial weights by (seed, name of
the parameter), examples by (seed, number). AdamW (arXiv:1711.05101) with beta 0.9 and 0.999, at a
constant rate after a warmup, gradients clipped for each model by itself. The loss is the mean over
the positions at which something is asked, of the cross-entropy among the task's answers, in nats.

Cost, on one core of an AMD EPYC with AVX-512 (2026-11-29, 56 GFLOP/s in products of matrices): the
default settings on ``k_back``, 0.4 million parameters at 4,096 tokens per step, take 0.27 s per
step and 80 to 100 s for 300 steps with scoring, so four encodings one after the other took 340 s.
Products of matrices are two thirds of it, and more models add as much each. Where calling torch is
what takes time it is otherwise: of models of width 16 at 128 tokens, 24 take 41 ms per step and one
takes 14 ms.

M models, B examples, T tokens, A answers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from pe import devices
from pe._errors import PositionError
from pe.model import PEConfig, PEForCausalLM
from pe.model.initialize import draw_weights
from pe.model.rng import seed_step
from pe.tasks.core.base import Batch, Task
from pe.tasks.core.draws import Int
from pe.tasks.core.scoring import IGNORE, Score, score
from pe.tasks.measure.settings import Settings

BETAS, EPSILON = (0.9, 0.999), 1e-8
ALL = slice(None)
ATTENTION = 2**31
"""Most attention weights of a layer at a time; more are computed in groups of models."""


class Member(NamedTuple):
    """What distinguishes one of the models."""

    seed: int
    learning_rate: float


class Result(NamedTuple):
    """One model after training."""

    member: Member
    losses: list[float]
    """Mean loss of each step's batch, before its update."""
    scores: dict[str, Score | None]
    """By split; None where the encoding has no such positions."""


class Answers(NamedTuple):
    """What one model answered."""

    score: Score
    loss: float
    """Mean cross-entropy over the positions that are asked about, in nats."""
    right: Int
    """(T,) right answers at each position."""
    asked: Int
    """(T,) questions at each position."""


class Many:
    """Models that are trained together.

    Args:
        task: what they learn. pe, pe_options: the encoding, as `pe.encoding` spells it.
        members: seed and rate of each.
        settings: None: `Settings()`.
        make_batch: where examples of training come from, by (seed, first, count); None: the task.

    Raises:
        ValueError: no members, or what `PEConfig` refuses.
    """

    def __init__(
        self,
        task: Task,
        pe: str,
        members: Sequence[Member],
        settings: Settings | None = None,
        pe_options: dict[str, Any] | None = None,
        make_batch: Callable[[int, int, int], Batch] | None = None,
    ) -> None:
        if not members:
            raise ValueError("members: expected at least one seed and rate")
        self.task, self.members, self.settings = task, list(members), settings or Settings()
        self.device = devices.choose()
        devices.keep_memory(self.device)
        self._make_batch = make_batch or task.batch
        self.step_number = 0
        self.config = PEConfig(
            vocab_size=task.vocab_size,
            hidden_size=self.settings.width,
            intermediate_size=self.settings.feedforward,
            num_hidden_layers=self.settings.layers,
            num_attention_heads=self.settings.heads,
            max_position_embeddings=task.longest("train"),
            pe=pe,
            pe_options=pe_options,
            attention_backend="dense",  # a product of matrices, which runs over models as it is
        )
        models = []
        for member in self.members:
            models.append(PEForCausalLM(self.config).to(self.device))
            draw_weights(models[-1], member.seed, std=self.config.initializer_range)
        self._model = models[0]
        stacked, _ = stack_module_state(models)
        self.parameters: dict[str, Tensor] = {
            name: value.detach().requires_grad_() for name, value in stacked.items()
        }
        """(M, ...) by the name of the parameter."""
        self._moments = [
            {name: torch.zeros_like(value) for name, value in self.parameters.items()}
            for _ in BETAS
        ]
        rates = [member.learning_rate for member in self.members]
        self._rates = torch.tensor(rates, device=self.device)
        self._answers = torch.tensor(task.answers, device=self.device)

    def logits(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        draw: tuple[int, int] = (1, 0),
        rows: slice = ALL,
    ) -> Tensor:
        """(M, B, T) token ids, of each model its own -> (M, B, T, A) logits of the answers.

        Args:
            rows: which of the models; tokens, mask and logits are then of these alone.
            mask: (M, B, T), 0 at padding. Needed where there is padding and the encoding looks at
                the length, or draws as many positions; others see nothing of what follows a token.
                Models are then computed one after the other: positions that differ from row to row
                are looked at, and `torch.func.vmap` has none to show.
            draw: two numbers that decide what an encoding draws, the same for all models.
        """

        def one(parameters: dict[str, Tensor], tokens: Tensor, mask: Tensor | None) -> Tensor:
            arguments = {"input_ids": tokens, "attention_mask": mask, "use_cache": False}
            weights = (parameters,)
            with devices.autocast(self.settings.precision, self.device):
                out: Tensor = functional_call(self._model, weights, kwargs=arguments).logits
            return out[..., self._answers]

        seed_step(*draw, 0)
        if mask is None:
            every = vmap(lambda p, t: one(p, t, None), randomness="same")
            together: Tensor = every({n: p[rows] for n, p in self.parameters.items()}, tokens)
            return together
        outputs = []
        for place, index in enumerate(range(len(self.members))[rows]):
            seed_step(*draw, 0)
            of_one = {name: value[index] for name, value in self.parameters.items()}
            outputs.append(one(of_one, tokens[place], mask[place]))
        return torch.stack(outputs)

    def groups(self, examples: int, length: int) -> list[slice]:
        """Models that are computed together, so that their attention fits `ATTENTION` numbers."""
        each = examples * self.settings.heads * length**2
        size = max(1, ATTENTION // each)
        return [slice(first, first + size) for first in range(0, len(self.members), size)]

    def _on_device(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor | None]:
        """Tokens (M, B, T) of batches of several widths, and a mask if one is needed."""
        width = max(batch.tokens.shape[1] for batch in batches)
        tokens = np.stack([_padded(batch.tokens, width, 0) for batch in batches])
        sizes = np.stack([batch.sizes for batch in batches])
        looks = any(enc.length_dependent or enc.random for enc in self._model.model.encodings)
        mask = None
        if looks and (sizes < width).any():
            mask = torch.from_numpy(np.arange(width) < sizes[..., None]).long().to(self.device)
        return torch.from_numpy(tokens).to(self.device), mask

    def losses(self, batches: Sequence[Batch], rows: slice = ALL) -> Tensor:
        """(M,) loss of each model on its batch; differentiable by `parameters`.

        Args:
            rows: which of the models; batches and losses are then of these alone.
        """
        tokens, mask = self._on_device(batches)
        wanted = self._classes(batches, tokens.shape[-1])
        each = _cross_entropy(self.logits(tokens, mask, (0, self.step_number), rows), wanted)
        return each.sum(dim=1) / (wanted != IGNORE).flatten(1).sum(dim=1)

    def _classes(self, batches: Sequence[Batch], width: int) -> Tensor:
        """(M, B, width) places of the targets among the answers, `IGNORE` where none is."""
        targets = np.stack([_padded(batch.targets, width, IGNORE) for batch in batches])
        place = np.full(self.task.vocab_size, IGNORE)
        place[list(self.task.answers)] = np.arange(len(self.task.answers))
        classes = np.where(targets == IGNORE, IGNORE, place[np.maximum(targets, 0)])
        return torch.from_numpy(classes).to(self.device)

    def batches(self, step: int) -> list[Batch]:
        """What each model sees at a step: the next examples of its seed."""
        size = self.settings.batch_size
        made = {
            seed: self._make_batch(seed, step * size, size)
            for seed in {member.seed for member in self.members}
        }
        return [made[member.seed] for member in self.members]

    def step(self) -> Tensor:
        """Train one step; (M,) losses before it."""
        batches, losses = self.batches(self.step_number), []
        longest = max(batch.tokens.shape[1] for batch in batches)
        for rows in self.groups(self.settings.batch_size, longest):
            losses.append(self.losses(batches[rows], rows))
            losses[-1].sum().backward()  # no parameter is shared: each gradient is of its model
        self._update()
        self.step_number += 1
        return torch.cat(losses).detach()

    @torch.no_grad()
    def _update(self) -> None:
        """AdamW, after clipping the gradients of each model to a norm."""
        number, settings = self.step_number + 1, self.settings
        gradients = {n: p.grad for n, p in self.parameters.items() if p.grad is not None}
        squares = torch.stack([g.flatten(1).square().sum(dim=1) for g in gradients.values()])
        factor = (settings.clip / (squares.sum(dim=0).sqrt() + 1e-6)).clamp(max=1.0)
        warm = min(1.0, number / (settings.warmup_steps + 1))
        for name, gradient in gradients.items():
            shape = (-1, *[1] * (gradient.dim() - 1))
            rate = (self._rates * warm).view(shape)
            parameter = self.parameters[name]
            gradient *= factor.view(shape)
            first, second = (moments[name] for moments in self._moments)
            first.lerp_(gradient, 1 - BETAS[0])
            second.lerp_(gradient.square(), 1 - BETAS[1])
            size = (second / (1 - BETAS[1] ** number)).sqrt_().add_(EPSILON)
            if settings.weight_decay:
                parameter -= rate * settings.weight_decay * parameter
            parameter -= rate / (1 - BETAS[0] ** number) * first / size
            self.parameters[name].grad = None

    def score(
        self, split: str, examples: int = 640, seed: int = 0, length: int | None = None
    ) -> list[Score]:
        """Scores of all models on the same examples of a split; arguments as `answers`."""
        return [one.score for one in self.answers(split, examples, seed, length)]

    @torch.no_grad()
    def answers(
        self, split: str, examples: int = 640, seed: int = 0, length: int | None = None
    ) -> list[Answers]:
        """What all models answer to the same examples of a split.

        Args:
            length: None: the lengths of the split. seed: of the examples.

        Raises:
            PositionError: the encoding has no such positions.
        """
        size, members = self.settings.batch_size, len(self.members)
        scores: list[list[Score]] = []
        nll = np.zeros(members)
        width = self.task.longest(split) if length is None else self.task.max_tokens(length)
        right, asked = np.zeros((members, width), dtype=int), np.zeros(width, dtype=int)
        for first in range(0, examples, size):
            count = min(size, examples - first)
            batch = self.task.batch(seed, first, count, split, length)
            there = batch.targets != IGNORE
            here = there.shape[1]
            asked[:here] += there.sum(axis=0)
            scores.append([])
            for rows in self.groups(count, here):
                copies = [batch] * len(self.members[rows])
                tokens, mask = self._on_device(copies)
                logits = self.logits(tokens, mask, (1, first), rows)
                wanted = self._classes(copies, here)
                nll[rows] += _cross_entropy(logits, wanted).double().sum(dim=1).cpu().numpy()
                best = self._answers[logits.argmax(dim=-1)].cpu().numpy()
                scores[-1] += [score(predicted, batch.targets) for predicted in best]
                right[rows, :here] += ((best == batch.targets) & there).sum(axis=1)
        totals = [Score(*map(sum, zip(*own, strict=True))) for own in zip(*scores, strict=True)]
        return [
            Answers(totals[m], float(nll[m] / totals[m].tokens), right[m], asked)
            for m in range(members)
        ]

    def only(self, indices: Sequence[int]) -> Many:
        """Some of the models, to be scored; they share their numbers with these."""
        few = copy.copy(self)
        few.members = [self.members[index] for index in indices]
        few.parameters = {name: p.detach()[list(indices)] for name, p in self.parameters.items()}
        return few

    def model(self, index: int) -> PEForCausalLM:
        """One of the models, by itself."""
        alone = PEForCausalLM(self.config)
        state = {name: value[index].detach() for name, value in self.parameters.items()}
        alone.load_state_dict(state, strict=False)  # the head is the embedding
        alone.to(self.device).eval()
        return alone


def _cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """(M, B, T, A) and (M, B, T) -> (M, B * T), 0 where nothing is asked."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    each = cross_entropy(
        logits.flatten(0, -2), wanted.flatten(), ignore_index=IGNORE, reduction="none"
    )
    return each.view(len(wanted), -1)


def _padded(rows: Any, width: int, value: int) -> Any:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=value)


def train_many(
    task: Task,
    pe: str,
    seeds: Sequence[int] = (0,),
    learning_rates: Sequence[float] = (3e-3,),
    settings: Settings | None = None,
    pe_options: dict[str, Any] | None = None,
    examples: int = 640,
    on_progress: Callable[[int, list[float]], bool | None] | None = None,
) -> list[Result]:
    """Train an encoding on a task, for each seed at each rate, and score every split.

    Args:
        examples: per split. on_progress: called after each step with its number, counted from 1,
            and the loss of each model; training ends early where it returns True.

    Returns:
        One result per seed and rate: all rates of the first seed, then of the second.

    Raises:
        ValueError: see `Many`.
    """
    members = [Member(seed, rate) for seed in seeds for rate in learning_rates]
    many = Many(task, pe, members, settings, pe_options)
    history = []
    for number in range(1, many.settings.steps + 1):
        history.append(many.step().tolist())
        if on_progress is not None and on_progress(number, history[-1]):
            break
    scores = {split: _scores(many, split, examples) for split in task.splits if split != "train"}
    return [
        Result(
            member,
            [losses[index] for losses in history],
            {split: found[index] for split, found in scores.items()},
        )
        for index, member in enumerate(members)
    ]


def _scores(many: Many, split: str, examples: int) -> list[Score | None]:
    try:
        return list(many.score(split, examples))
    except PositionError:
        return [None] * len(many.members)
