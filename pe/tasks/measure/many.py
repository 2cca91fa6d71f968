"""Train many small models together: seeds and learning rates of one encoding on one task.

All models have the same shape. Their parameters are stacked, one forward and backward pass runs
over all models (`torch.func`), and one update changes all of them, each with its own learning rate.
One small model leaves a GPU idle, so many cost little more there. On a CPU the cost grows with the
number of models, except for the overhead of calling torch. The models are `PEForCausalLM`, the same
decoder with the same encodings as in all other runs.

A model depends only on its seed and its rate, not on the models beside it. Initial weights follow
from (seed, name of the parameter), and examples from (seed, number of the example). The optimizer
is AdamW (arXiv:1711.05101) with beta 0.9 and 0.999 at a constant rate after a warmup. Gradients are
clipped for each model separately. The loss is the cross-entropy among the answers of the task in
nats, averaged over the positions that ask for an answer.

All parameters lie in one tensor with a row per model, so the update takes a few operations. On a
GPU the whole step is recorded and replayed (`pe.tasks.measure.replay`), unless the encoding draws
positions or uses the length of each row.

Cost on one core of an AMD EPYC with AVX-512 (2026-11-29, 56 GFLOP/s in matrix products): with the
default settings on ``k_back``, which means 0.4 million parameters and 4,096 tokens per step, one
model takes 0.27 s per step and 80 to 100 s for 300 steps with scoring; four encodings took 340 s.
Two thirds are matrix products, so each further model adds as much. For smaller models the overhead
of calling torch dominates: with width 16 and 128 tokens per step, one model takes 14 ms per step,
and 24 models take 41 ms.

M models, B examples, T tokens, A answers.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy, pad

from pe import devices
from pe._recompute import kept
from pe.encodings.core.frequencies import cos_sin
from pe.model import PEConfig, PEForCausalLM
from pe.model.initialize import draw_weights
from pe.model.rng import seed_step
from pe.tasks.core.base import Batch, Task
from pe.tasks.core.draws import Int
from pe.tasks.core.scoring import IGNORE, Score, score
from pe.tasks.measure.cost import ATTENTION
from pe.tasks.measure.record import Settings
from pe.tasks.measure.replay import Replayed

BETAS, EPSILON = (0.9, 0.999), 1e-8
ALIGNED = 8
"""Sizes of rows of parameters are multiples of this."""
STRIDE = 16
"""The widths of recorded steps are multiples of this."""
ALL = slice(None)


class Member(NamedTuple):
    """A model: the models of one training differ only in these."""

    seed: int
    learning_rate: float


class Answers(NamedTuple):
    """Scores and loss of one model."""

    score: Score
    loss: float
    """Mean cross-entropy over the positions that ask for an answer, in nats."""
    right: Int
    """(T,) number of right answers at each position."""
    asked: Int
    """(T,) number of examples that ask for an answer at each position."""


class Many:
    """Models that are trained together.

    Args:
        task: the task to learn. pe: the encoding, as in `pe.encoding`.
        members: the seed and the rate of each model.
        settings: sizes and training.
        make_batch: returns training examples for (seed, first, count). None: `Task.batch`.

    Raises:
        ValueError: there are no members, or `PEConfig` refuses the encoding or the sizes.
    """

    def __init__(
        self,
        task: Task,
        pe: str,
        members: Sequence[Member],
        settings: Settings,
        make_batch: Callable[[int, int, int], Batch] | None = None,
    ) -> None:
        if not members:
            raise ValueError("members: expected at least one seed and rate")
        self.task, self.members, self.settings = task, list(members), settings
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
            attention_backend="dense",  # matrix products, which torch.func runs over models
        )
        models = []
        for member in self.members:
            models.append(PEForCausalLM(self.config).to(self.device))
            draw_weights(models[-1], member.seed, std=self.config.initializer_range)
        self._model = models[0]
        encodings = self._model.model.encodings
        self._random = any(enc.random for enc in encodings)
        self._uses_lengths = any(enc.length_dependent for enc in encodings)
        stacked, _ = stack_module_state(models)
        self._weights, self.parameters = _in_one(stacked)
        """Weights (M, P), and views of them by the name of the parameter, each (M, ...)."""
        self._moments = [torch.zeros_like(self._weights) for _ in BETAS]
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        self._updates = torch.zeros((), dtype=exact, device=self.device)
        rates = [member.learning_rate for member in self.members]
        self._rates = torch.tensor(rates, device=self.device)[:, None]
        self._answers = torch.tensor(task.answers, device=self.device)
        places = torch.full((task.vocab_size,), IGNORE)
        places[list(task.answers)] = torch.arange(len(task.answers))
        self._places = places.to(self.device)
        """For each token its index among the answers, or `IGNORE`."""
        self._replayed: Replayed | None = None
        if self.device.type == "cuda" and not (self._random or self._uses_lengths):
            self._replayed = Replayed(self._train)

    def logits(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        draw: tuple[int, int] = (1, 0),
        rows: slice = ALL,
    ) -> Tensor:
        """Compute logits of the answers (M, B, T, A), for token ids (M, B, T), a batch per model.

        Args:
            mask: (M, B, T), 0 at padding. It is needed if there is padding and the encoding uses
                the length of a row; other encodings are causal and do not see the padding. With a
                mask the models run one after the other, because the code for rows of different
                lengths branches on values, which `torch.func.vmap` does not allow.
            draw: two numbers that seed the random draws of an encoding, the same for all models.
            rows: the models to run. Tokens, mask and logits then have only these models.
        """

        def one(parameters: dict[str, Tensor], tokens: Tensor, mask: Tensor | None) -> Tensor:
            arguments = {"input_ids": tokens, "attention_mask": mask, "use_cache": False}
            weights = (parameters,)
            with devices.autocast(self.settings.precision, self.device):
                out: Tensor = functional_call(self._model, weights, kwargs=arguments).logits
            return out.index_select(-1, self._answers)

        if self._random:
            seed_step(*draw, 0)
        if mask is None:
            every = vmap(lambda p, t: one(p, t, None), randomness="same")
            with kept():
                together: Tensor = every({n: p[rows] for n, p in self.parameters.items()}, tokens)
            return together
        outputs = []
        for place, index in enumerate(range(len(self.members))[rows]):
            if self._random:
                seed_step(*draw, 0)
            of_one = {name: value[index] for name, value in self.parameters.items()}
            outputs.append(one(of_one, tokens[place], mask[place]))
        return torch.stack(outputs)

    def groups(self, examples: int, length: int) -> list[slice]:
        """Return slices of models whose attention together has at most `ATTENTION` numbers."""
        each = examples * self.settings.heads * length**2
        size = max(1, ATTENTION // each)
        return [slice(first, first + size) for first in range(0, len(self.members), size)]

    def _on_device(
        self, batches: Sequence[Batch], width: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return tokens, targets as indices among the answers (M, B, T), and a mask if needed.

        Args:
            width: T. None: the width of the widest batch.
        """
        width = width or max(batch.tokens.shape[1] for batch in batches)
        tokens = _padded([batch.tokens for batch in batches], width, 0)
        targets = _padded([batch.targets for batch in batches], width, IGNORE)
        sizes = np.stack([batch.sizes for batch in batches])
        mask = None
        if self._uses_lengths and (sizes < width).any():
            mask = self._moved(np.arange(width) < sizes[..., None]).long()
        asked = self._moved(targets)
        wanted = torch.where(asked == IGNORE, IGNORE, self._places[asked.clamp(min=0)])
        return self._moved(tokens), wanted, mask

    def _moved(self, values: Any) -> Tensor:
        """Copy an array to the device without waiting for a GPU."""
        host = torch.from_numpy(values)
        host = host.pin_memory() if self.device.type == "cuda" else host
        return host.to(self.device, non_blocking=True)

    def batches(self, step: int) -> list[Batch]:
        """Return the batch of each model at a step: the next examples of its seed."""
        size = self.settings.batch_size
        made = {
            seed: self._make_batch(seed, step * size, size)
            for seed in {member.seed for member in self.members}
        }
        return [made[member.seed] for member in self.members]

    def step(self) -> Tensor:
        """Train one step. Returns the (M,) losses before the update, on the device."""
        batches = self.batches(self.step_number)
        tokens, wanted, mask = self._on_device(batches, self._width(batches))
        if self._replayed is None:
            losses = self._train(tokens, wanted, mask)
        else:
            losses = self._replayed(tokens, wanted)
        self.step_number += 1
        return losses

    def _width(self, batches: Sequence[Batch]) -> int:
        """Return the width to which the batches of a step are padded.

        An encoding that draws positions draws one per column. So its width is always the same, and
        does not depend on the other models. A GPU records a step for each width, so there should be
        few of them.
        """
        longest = self.task.longest("train")
        if self._random:
            return longest
        widest: int = max(batch.tokens.shape[1] for batch in batches)
        return widest if self._replayed is None else min(longest, -(-widest // STRIDE) * STRIDE)

    @property
    def refusal(self) -> str:
        """Why torch cannot replay the step on this GPU; empty if it can or need not."""
        return "" if self._replayed is None else self._replayed.refusal

    def _train(self, tokens: Tensor, wanted: Tensor, mask: Tensor | None = None) -> Tensor:
        """Update all models once without waiting for the device; (M,) losses before it."""
        losses, total = [], torch.zeros_like(self._weights)
        with self._products():
            for rows in self.groups(*tokens.shape[1:]):
                inside = None if mask is None else mask[rows]
                logits = self.logits(tokens[rows], inside, (0, self.step_number), rows)
                each = _cross_entropy(logits, wanted[rows])
                losses.append(each.sum(dim=1) / (wanted[rows] != IGNORE).flatten(1).sum(dim=1))
                # Models share no parameter: the gradient of the sum contains that of each model.
                total += self._gradient(losses[-1].sum())
            self._update(total)
        return torch.cat(losses).detach()

    def _gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient (M, P) of all models, in the order of the parameters."""
        gradients = torch.autograd.grad(
            loss, list(self.parameters.values()), allow_unused=True, materialize_grads=True
        )
        together = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
        return pad(together, (0, self._weights.shape[1] - together.shape[1]))

    @torch.no_grad()
    def _update(self, gradient: Tensor) -> None:
        """Clip the gradient of each model (M, P) to a norm and apply AdamW."""
        settings, (first, second), number = self.settings, self._moments, self._updates
        number += 1
        norm = gradient.square().sum(dim=1, keepdim=True).sqrt()
        gradient = gradient * (settings.clip / (norm + 1e-6)).clamp(max=1.0)
        rate = self._rates * (number / (settings.warmup_steps + 1)).clamp(max=1.0)
        first.lerp_(gradient, 1 - BETAS[0])
        second.lerp_(gradient.square(), 1 - BETAS[1])
        size = (second / (1 - BETAS[1] ** number)).sqrt_().add_(EPSILON)
        if settings.weight_decay:
            self._weights -= rate * settings.weight_decay * self._weights
        self._weights -= rate / (1 - BETAS[0] ** number) * first / size

    @contextlib.contextmanager
    def _products(self) -> Iterator[None]:
        """Return a context in which a GPU multiplies matrices with the setting ``precision``."""
        before = torch.get_float32_matmul_precision()
        if self.settings.precision == "tf32" and self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    @torch.no_grad()
    def answers(
        self, split: str, examples: int = 640, seed: int = 0, length: int | None = None
    ) -> list[Answers]:
        """Return scores and losses of all models on the same examples of a split.

        A prediction from logits that are not finite is never right. The loss of that model is not
        finite either, which the record shows.

        Args:
            seed: seed of the examples. length: None: the lengths of the split.

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
                tokens, wanted, mask = self._on_device([batch] * len(self.members[rows]))
                with self._products():
                    logits = self.logits(tokens, mask, (1, first), rows)
                nll[rows] += _cross_entropy(logits, wanted).double().sum(dim=1).cpu().numpy()
                largest, index = logits.max(dim=-1)  # of a NaN, if there is one
                best = self._answers[index].where(largest.isfinite(), IGNORE).cpu().numpy()
                scores[-1] += [score(predicted, batch.targets) for predicted in best]
                right[rows, :here] += ((best == batch.targets) & there).sum(axis=1)
        totals = [Score(*map(sum, zip(*own, strict=True))) for own in zip(*scores, strict=True)]
        return [
            Answers(totals[m], float(nll[m] / totals[m].tokens), right[m], asked)
            for m in range(members)
        ]

    def only(self, indices: Sequence[int]) -> Many:
        """Return some of the models, for scoring only."""
        few = copy.copy(self)
        few.members = [self.members[index] for index in indices]
        few.parameters = {name: p.detach()[list(indices)] for name, p in self.parameters.items()}
        return few

    def model(self, index: int) -> PEForCausalLM:
        """Return one of the models as a `PEForCausalLM`."""
        alone = PEForCausalLM(self.config)
        state = {name: value[index].detach() for name, value in self.parameters.items()}
        alone.load_state_dict(state, strict=False)  # the head shares its weight with the embedding
        alone.to(self.device).eval()
        return alone


@torch.library.register_vmap("pe::cos_sin")
def _cos_sin_of_models(
    info: Any,
    batched: tuple[int | None, ...],
    positions: Tensor,
    inv_freq: Tensor,
    dtype: torch.dtype,
    period: Tensor | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Compute `cos_sin` for all models at once; the models are the first dimension."""
    inputs = (positions, inv_freq, period)
    places = (batched[0], batched[1], batched[3] if len(batched) > 3 else None)
    most = max(
        x.dim() - (place is not None)
        for x, place in zip(inputs, places, strict=True)
        if x is not None
    )

    def aligned(x: Tensor, place: int | None) -> Tensor:
        """Move the models to the front and insert dimensions up to those of the largest input."""
        if place is None:
            return x
        x = x.movedim(place, 0)
        return x.reshape(len(x), *(1,) * (most + 1 - x.dim()), *x.shape[1:])

    cycle = None if period is None else aligned(period, places[2])
    tables: tuple[Tensor, Tensor] = cos_sin(
        aligned(positions, places[0]), aligned(inv_freq, places[1]), dtype, cycle
    )
    return tables, (0, 0)


def _in_one(stacked: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Put tensors (M, ...) into one tensor (M, P), and return it and views that take gradients.

    Parameters whose size is a multiple of `ALIGNED` come first, and P is such a multiple, so that
    their rows begin at addresses which a GPU reads at full speed.
    """
    in_order = dict(sorted(stacked.items(), key=lambda item: item[1][0].numel() % ALIGNED > 0))
    sizes = [value[0].numel() for value in in_order.values()]
    rest = -sum(sizes) % ALIGNED
    together = torch.cat([value.detach().flatten(1) for value in in_order.values()], dim=1)
    flat = pad(together, (0, rest))
    views = {
        name: part.view(value.shape).detach().requires_grad_()
        for (name, value), part in zip(
            in_order.items(), flat[:, : sum(sizes)].split(sizes, dim=1), strict=True
        )
    }
    return flat, views


def _cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Compute losses (M, B * T) of logits (M, B, T, A), 0 where the target is `IGNORE`."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    each = cross_entropy(
        logits.flatten(0, -2), wanted.flatten(), ignore_index=IGNORE, reduction="none"
    )
    return each.view(len(wanted), -1)


def _padded(rows: Sequence[Int], width: int, value: int) -> Int:
    """Pad M arrays (B, up to width) and stack them to (M, B, width)."""
    whole = np.full((len(rows), len(rows[0]), width), value)
    for place, own in zip(whole, rows, strict=True):
        place[:, : own.shape[1]] = own
    return whole
