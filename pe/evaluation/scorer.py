"""A trained model, a text, and everything by which the one is judged on the other.

    perplexity(L) = exp( - mean over windows w and the last K targets t of log p(t | L tokens) )

Every window lies inside one document. Its last K targets are scored with L inputs in front of and
among them, L from 1 to 16 times the training context, so the numbers differ by context alone. Means
weigh each token the same. Windows begin inside a document, as most training windows do; where the
recipe asks for a first token, it takes the place of the first input.

All evaluation goes through a `Scorer`, so that perplexities of a run, of the weights it began with,
of its extensions and of a search are of the same target tokens in the same precision.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe import devices
from pe._errors import PositionError
from pe.data import TokenData, evaluation_windows, prepare
from pe.model import PEForCausalLM
from pe.model.loss import token_losses
from pe.model.rng import same_draws
from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.training.start import check_text

POSITION_BINS = 32
LOGITS_OF = 4096
"""Tokens for which logits are made at a time."""
Log = Callable[[str], None]


def text_of(run: Run) -> TokenData:
    """The corpus of a trained run, prepared.

    Raises:
        RunError: the text or the tokenizer is no longer what the run was trained on.
    """
    r, recorded = run.recipe, run.read()["data"]
    data = prepare(r.corpus, r.vocab_size, r.tokenizer, separator=r.separator)
    check_text(data, recorded, str(run.directory), "train it again in another study")
    return data


class Scorer:
    """Scores one model on fixed windows of one split.

    Args:
        lengths: context lengths in tokens; default: those of the recipe.
        split: ``"test"``, or ``"validation"`` for whatever is fitted or searched.
        windows: how many, at most; default: as many as the recipe says.
        float32_residual: under autocast, keep the residual stream in float32, as transformers'
            own models do. Training carries it in bfloat16.

    Raises:
        ValueError: no document of the split is longer than the longest length.
    """

    def __init__(
        self,
        model: PEForCausalLM,
        data: TokenData,
        recipe: Recipe,
        lengths: Sequence[int] = (),
        *,
        split: str = "test",
        windows: int = 0,
        float32_residual: bool = False,
    ) -> None:
        self.model, self.data, self.recipe = model, data, recipe
        self.lengths = sorted(lengths or recipe.evaluation_lengths)
        self.split = getattr(data, split)
        self.ends = evaluation_windows(
            self.split, self.lengths[-1], recipe.target_tokens,
            windows or recipe.evaluation_windows,
        )  # fmt: skip
        self.tokens_per_batch = devices.tokens_per_batch(model.device)
        self.float32_residual = float32_residual

    def of(self, model: PEForCausalLM, lengths: Sequence[int] = ()) -> Scorer:
        """The same for another model, at some of the lengths: the targets stay."""
        other = copy.copy(self)
        other.model, other.lengths = model, list(lengths) or self.lengths
        return other

    def precision(self) -> dict[str, str]:
        """Types of matrix products and of the residual stream, as a record has them."""
        narrow = devices.narrow(self.recipe.precision, self.model.device)
        products = "bfloat16" if narrow else "float32"
        return {"products": products, "residual": "float32" if self.float32_residual else products}

    @torch.no_grad()
    def apply(self, texts: np.ndarray, read: Callable[[Tensor, slice], Tensor]) -> np.ndarray:
        """Give texts to the model, as many at once as fit in a batch.

        Where positions are random, all texts get the same ones, however many run at once.

        Args:
            texts: (N, T + 1) token ids; the model reads all but the last of each.
            read: makes what is wanted, (n, ...), of the last hidden states (n, T, hidden) of some
                texts; the slice says of which.

        Raises:
            PositionError: the encoding has fewer than T positions.
        """
        inner, device, results = self.model.model, self.model.device, []
        size, before = max(1, self.tokens_per_batch // texts.shape[1]), inner.float32_residual
        inner.float32_residual = self.float32_residual
        try:
            for start in range(0, len(texts), size):
                some = slice(start, start + size)
                ids = torch.from_numpy(texts[some, :-1]).to(device)
                if self.recipe.first_token:
                    ids[:, 0] = self.data.end_id
                with devices.autocast(self.recipe.precision, device), same_draws(device):
                    hidden = inner(input_ids=ids, use_cache=False).last_hidden_state
                    results.append(read(hidden, some).cpu().numpy())
        finally:
            inner.float32_residual = before
        return np.concatenate(results)

    def losses(self, length: int) -> np.ndarray:
        """Loss of every target of every window: float64 (windows, length), nats.

        A window with end e has inputs tokens[e-length-1 : e-1] and targets tokens[e-length : e].

        Raises:
            PositionError: the encoding has fewer positions.
        """
        tokens = self.split.tokens
        texts = np.stack(
            [np.asarray(tokens[e - length - 1 : e], dtype=np.int64) for e in self.ends]
        )

        def read(hidden: Tensor, some: slice) -> Tensor:
            targets = torch.from_numpy(texts[some, 1:]).to(hidden.device)
            flat = zip(
                hidden.flatten(0, 1).split(LOGITS_OF), targets.reshape(-1).split(LOGITS_OF),
                strict=True,
            )  # fmt: skip
            parts = [token_losses(h, self.model.lm_head.weight, t) for h, t in flat]
            return torch.cat(parts).view(targets.shape)

        return self.apply(texts, read).astype(np.float64)

    def nll(self, length: int) -> float:
        """Mean loss of the target tokens behind ``length`` tokens, in nats per token."""
        return float(self._targets(self.losses(length)).mean())

    def _targets(self, losses: np.ndarray) -> np.ndarray:
        """(windows, target_tokens): the last ones, of the same tokens at each length."""
        return losses[:, -self.recipe.target_tokens :]

    def perplexities(
        self, temperatures: Mapping[int, float] | None = None, log: Log = lambda text: None
    ) -> dict[str, Any]:
        """Three parts of evaluation.json: perplexity of targets and of windows, loss by position.

        A length for which the encoding has no position gets no value, and the reason.

        Args:
            temperatures: by length, where the model shall have another than its own.
        """
        last: dict[str, Any] = {}
        whole: dict[str, Any] = {}
        positions: dict[str, Any] = {"length": None, "edges": [0], "nll": []}
        for length in self.lengths:
            log(f"evaluating at {length:,} tokens")
            try:
                with self.temperature((temperatures or {}).get(length)):
                    losses = self.losses(length)
            except PositionError as error:
                nothing = {"value": None, "nll": None, "window_nll": None}
                last[str(length)] = nothing | {"reason": no_value(error)}
                whole[str(length)] = last[str(length)]
                continue
            last[str(length)] = cell(self._targets(losses))
            whole[str(length)] = cell(losses)
            positions = by_position(losses)
        return {"perplexity": last, "window_perplexity": whole, "loss_by_position": positions}

    @contextlib.contextmanager
    def temperature(self, c: float | None) -> Iterator[None]:
        """The model with another length temperature inside the block; None: with its own."""
        config = self.model.config
        before = config.length_temperature
        config.length_temperature = before if c is None else c
        try:
            yield
        finally:
            config.length_temperature = before


def no_value(error: PositionError) -> str:
    """What a record says in place of a value."""
    return f"no value: {error.reason}"


def cell(losses: np.ndarray) -> dict[str, Any]:
    """Record of one length from (windows, tokens) losses."""
    nll = float(losses.mean())
    per_window = [round(float(x), 6) for x in losses.mean(axis=1)]
    return {
        # A model far beyond its context can reach losses whose exponential is no float.
        "value": round(math.exp(nll), 4) if nll < 700 else None,
        "nll": round(nll, 6),
        "window_nll": per_window,
        "reason": None if nll < 700 else "the perplexity is too large for a number",
    }


def by_position(losses: np.ndarray, bins: int = POSITION_BINS) -> dict[str, Any]:
    """Mean loss in equal bins of positions, from (windows, length) losses."""
    length = losses.shape[1]
    bins = min(bins, length)  # no empty ones
    edges = [round(i * length / bins) for i in range(bins + 1)]
    means = losses.mean(axis=0)
    nll = [round(float(means[a:b].mean()), 6) for a, b in itertools.pairwise(edges)]
    return {"length": length, "edges": edges, "nll": nll}
