"""A trained model, a text, and everything by which the one is judged on the other.

All evaluation goes through a `Scorer`, so that perplexities of a run, of the weights it began with,
of its extensions and of a search are of the same target tokens in the same precision.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pe import devices
from pe._errors import PositionError
from pe.data import TokenData, evaluation_windows, prepare
from pe.evaluation.perplexity import by_position, cell, no_cell, window_losses
from pe.model import PEForCausalLM
from pe.runs import Run
from pe.training.recipe import Recipe
from pe.training.start import check_text

Log = Callable[[str], None]


def text_of(run: Run) -> TokenData:
    """The corpus of a trained run, prepared.

    Raises:
        RunError: it is no longer the text that the run was trained on.
    """
    r, trained_on = run.recipe, run.read()["data"]["fingerprint"]
    data = prepare(r.corpus, r.vocab_size, r.tokenizer)
    check_text(data, trained_on, str(run.directory), "train it again in another study")
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

    def of(self, model: PEForCausalLM) -> Scorer:
        """The same for another model."""
        other = copy.copy(self)
        other.model = model
        return other

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """The precision in which the model runs."""
        inner = self.model.model
        before, inner.float32_residual = inner.float32_residual, self.float32_residual
        try:
            with devices.autocast(self.recipe.precision, self.model.device):
                yield
        finally:
            inner.float32_residual = before

    def precision(self) -> dict[str, str]:
        """Types of matrix products and of the residual stream, as a record has them."""
        narrow = devices.narrow(self.recipe.precision, self.model.device)
        products = "bfloat16" if narrow else "float32"
        return {"products": products, "residual": "float32" if self.float32_residual else products}

    def losses(self, length: int) -> np.ndarray:
        """Loss of every target of every window behind ``length`` tokens, (windows, length) nats.

        Raises:
            PositionError: the encoding has fewer positions.
        """
        return window_losses(
            self.model, self.split, self.ends, length, self.tokens_per_batch, self.autocast
        )

    def _targets(self, losses: np.ndarray) -> np.ndarray:
        """(windows, target_tokens): the last ones, of the same tokens at each length."""
        return losses[:, -self.recipe.target_tokens :]

    def nll(self, length: int) -> float:
        """Mean loss of the target tokens behind ``length`` tokens, in nats per token."""
        return float(self._targets(self.losses(length)).mean())

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
                last[str(length)] = whole[str(length)] = no_cell(error.reason)
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
