"""Score a trained model on fixed windows of text.

    perplexity(L) = exp( - mean over windows w and the last K targets t of log p(t | L tokens) )

Every window lies inside one document. Its last K targets are scored in a window of L inputs, where
L is for example 1 to 16 times the training context. The targets are the same for all L, so the
numbers differ by context alone. All tokens have equal weight in means. Windows begin inside a
document, as most training windows do. If the recipe asks for a first token, it replaces the first
input.

All evaluation goes through a `Scorer`, so that the perplexities of a run, of the weights from which
it started, of its extensions and of a search are measured on the same targets and in one precision.
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
from pe.data import TokenData, evaluation_windows
from pe.model import PEForCausalLM
from pe.model.loss import token_losses
from pe.model.rng import same_draws
from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.training.start import check_text, text_for

POSITION_BINS = 32
"""The most bins of positions in a record."""
LOGITS_OF = 4096
"""The number of tokens whose logits are held at once."""
Log = Callable[[str], None]
NO_CELL = {"value": None, "nll": None, "window_nll": None}
"""The record of a length without a value; the reason is missing."""
NOT_FINITE = "no value: the loss is not finite"


class NotFinite(ArithmeticError):
    """A model's logits are not finite, so they name no token."""

    reason = "the logits are not finite"

    def __init__(self) -> None:
        super().__init__(self.reason)


def text_of(run: Run) -> TokenData:
    """Return the prepared corpus of a trained run.

    Raises:
        RunError: the text or the tokenizer has changed since the run was trained.
    """
    data = text_for(run.recipe)
    check_text(data, run.read()["data"], str(run.directory), "train it again in another study")
    return data


class Scorer:
    """Scores a model on fixed windows of a split.

    Args:
        lengths: context lengths in tokens. Empty: those of the recipe.
        split: ``"test"``, or ``"validation"`` to fit or to search something.
        windows: the most windows. 0: as many as the recipe says.
        float32_residual: keep the residual stream in float32 under autocast, as transformers' own
            models do. In training it is bfloat16.

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
        """Return a scorer of another model on the same targets, at other ``lengths`` if given."""
        other = copy.copy(self)
        other.model, other.lengths = model, list(lengths) or self.lengths
        return other

    def precision(self) -> dict[str, str]:
        """Return the types of matrix products and of the residual stream, for the record."""
        narrow = devices.narrow(self.recipe.precision, self.model.device)
        products = "bfloat16" if narrow else "float32"
        return {"products": products, "residual": "float32" if self.float32_residual else products}

    @torch.no_grad()
    def apply(self, texts: np.ndarray, read: Callable[[Tensor, slice], Tensor]) -> np.ndarray:
        """Run the model on texts, in batches of `pe.devices.tokens_per_batch` tokens.

        If an encoding draws random positions, every batch gets the same ones, so the result does
        not depend on the size of batches.

        Args:
            texts: (N, T + 1) token ids. The model reads all but the last token of each text.
            read: called with the last hidden states (n, T, hidden) of some texts and the slice that
                says which; it returns the results of these, (n, ...).

        Returns:
            (N, ...), the results of all texts.

        Raises:
            PositionError: the encoding has fewer than T positions.
        """
        inner, device, results = self.model.model, self.model.device, []
        size, before = max(1, self.tokens_per_batch // texts.shape[1]), inner.float32_residual
        inner.float32_residual = self.float32_residual
        try:
            for start in range(0, len(texts), size):
                some = slice(start, start + size)
                ids = torch.tensor(texts[some, :-1], device=device)  # a copy, also on the CPU
                if self.recipe.first_token:
                    ids[:, 0] = self.data.end_id
                with devices.autocast(self.recipe.precision, device), same_draws(device):
                    hidden = inner(input_ids=ids, use_cache=False).last_hidden_state
                    results.append(read(hidden, some).cpu().numpy())
        finally:
            inner.float32_residual = before
        return np.concatenate(results)

    def losses(self, length: int) -> np.ndarray:
        """Return the loss of every target of every window in nats, (windows, length) float64.

        A window with end e has inputs tokens[e-length-1 : e-1] and targets tokens[e-length : e].

        Raises:
            PositionError: the encoding has fewer than ``length`` positions.
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
        """Return the mean loss of the scored targets in windows of ``length``, in nats."""
        return float(self._targets(self.losses(length)).mean())

    def _targets(self, losses: np.ndarray) -> np.ndarray:
        """Return the last losses of each window, (windows, target_tokens).

        They are those of the same tokens at each length.
        """
        return losses[:, -self.recipe.target_tokens :]

    def perplexities(
        self, temperatures: Mapping[int, float] | None = None, log: Log = lambda text: None
    ) -> dict[str, Any]:
        """Measure perplexity at each length.

        A length beyond the positions of the encoding gets a reason in place of a value.

        Args:
            temperatures: by length, the length temperature that replaces the model's own.
            log: called with a line of text per length.

        Returns:
            Three entries of evaluation.json: ``perplexity`` of the targets, ``window_perplexity``
            of whole windows, and ``loss_by_position`` at the longest length that has a value.
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
                last[str(length)] = whole[str(length)] = NO_CELL | {"reason": no_value(error)}
                continue
            last[str(length)] = cell(self._targets(losses))
            whole[str(length)] = cell(losses)
            if np.isfinite(losses).all():
                positions = by_position(losses)
        return {"perplexity": last, "window_perplexity": whole, "loss_by_position": positions}

    @contextlib.contextmanager
    def temperature(self, c: float | None) -> Iterator[None]:
        """Give the model the length temperature ``c`` in this block; None keeps its own."""
        config = self.model.config
        before = config.length_temperature
        config.length_temperature = before if c is None else c
        try:
            yield
        finally:
            config.length_temperature = before


def no_value(error: PositionError | NotFinite) -> str:
    """Return the reason that a record has in place of a value."""
    return f"no value: {error.reason}"


def cell(losses: np.ndarray) -> dict[str, Any]:
    """Return the record of one length: perplexity, mean loss in nats, and loss of each window.

    Args:
        losses: (windows, tokens), in nats.
    """
    nll = float(losses.mean())
    if not math.isfinite(nll):
        return NO_CELL | {"reason": NOT_FINITE}
    per_window = [round(float(x), 6) for x in losses.mean(axis=1)]
    return {
        # Far beyond its context a model can have losses whose exponential overflows.
        "value": round(math.exp(nll), 4) if nll < 700 else None,
        "nll": round(nll, 6),
        "window_nll": per_window,
        "reason": None if nll < 700 else "the perplexity is too large for a number",
    }


def by_position(losses: np.ndarray) -> dict[str, Any]:
    """Return the mean loss in equal bins of positions: their edges, and a loss in nats per bin.

    Args:
        losses: (windows, length), in nats.
    """
    length = losses.shape[1]
    bins = min(POSITION_BINS, length)  # so that none is empty
    edges = [round(i * length / bins) for i in range(bins + 1)]
    means = losses.mean(axis=0)
    nll = [round(float(means[a:b].mean()), 6) for a, b in itertools.pairwise(edges)]
    return {"length": length, "edges": edges, "nll": nll}
