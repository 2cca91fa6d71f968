"""Continue the training of a transformers model under its present encoding.

Weights and AdamW's moments are float32; products are bfloat16 on a GPU. Where torch.compile is
asked for, each decoder layer is compiled by itself: all layers share the compiled code, and the
hooks of a layer are compiled with it. The state is saved from time to time, and when a signal asks
to stop. The same call then continues from it, until `Recalibration.forget` removes it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pe import devices
from pe.data import Batches
from pe.model.loss import CHUNK_LOGITS, summed_loss
from pe.pretrained.judged import Judged
from pe.recipes.recipe import Recipe
from pe.training.build import build_optimizer, set_rate
from pe.training.metrics import NonFiniteLoss
from pe.training.schedule import learning_rate
from pe.training.stop import StopSignal

MICRO_TOKENS = 2**15
"""Tokens in one forward and backward pass on a GPU; a step of more takes several."""
SAVE_SECONDS = 240.0
"""Seconds between two saved states."""
STATE = "state.pt"
LINES = 50
"""Number of logged lines per training."""


class Recalibration:
    """One training of ``model``.

    Args:
        recipe: steps, rates, precision and ``compile``.
        folder: where the state is saved, and found by the next call.
        on_line: gets each logged line (`pe.runs.models.pretrained.Step`).
    """

    def __init__(
        self,
        model: Any,
        batches: Batches,
        recipe: Recipe,
        folder: Path,
        on_line: Callable[[dict[str, Any]], None] = lambda line: None,
    ) -> None:
        self.model, self.batches, self.recipe = model, batches, recipe
        self.file, self.on_line = folder / STATE, on_line
        self.judged, self.optimizer = Judged(model), build_optimizer(model, recipe)
        self.device = model.device
        on_gpu = self.device.type == "cuda"
        self.micro_tokens = MICRO_TOKENS if on_gpu else MICRO_TOKENS // 2
        self.chunk = CHUNK_LOGITS if on_gpu else CHUNK_LOGITS // 16
        self.compiled = devices.compiles(recipe.compile, self.device)
        self.seconds: list[float] = []
        """Duration of each step that this process made."""
        self.step = 0
        """Number of steps that are done."""

    def run(self) -> dict[str, Any]:
        """Take all steps that are left, and return how fast they were.

        Raises:
            NonFiniteLoss: the loss is not a finite number.
            KeyboardInterrupt: a signal asked to stop; the state is saved.
        """
        r, losses = self.recipe, self._restore()
        every, saved = max(1, r.steps // LINES), time.monotonic()
        layers = self.model.get_decoder().layers if self.compiled else ()
        for layer in layers:
            layer.compile()
        self.model.train()
        try:
            with StopSignal() as stop:
                while self.step < r.steps:
                    if stop.name:
                        self._save(losses)
                        raise KeyboardInterrupt(f"stopped by {stop.name}")
                    losses.append(self._step())
                    if self.step % every == 0 or self.step == r.steps:
                        self._log(losses)
                        losses = []
                    if time.monotonic() - saved > SAVE_SECONDS and self.step < r.steps:
                        self._save(losses)
                        saved = time.monotonic()
        finally:
            self.model.eval()
            for layer in layers:
                layer._compiled_call_impl = None
        return self.speed()

    def forget(self) -> None:
        """Remove the saved state, which is of no use once the trained model has been measured."""
        self.file.unlink(missing_ok=True)

    def speed(self) -> dict[str, Any]:
        """Return the speed of the median step, so that compilation and pauses do not count."""
        pace = statistics.median(self.seconds) if self.seconds else None
        tokens = self.batches.batch_size * self.batches.context_length
        return {
            "tokens_per_second": round(tokens / pace, 1) if pace else None,
            "seconds": round(sum(self.seconds), 4),
            "compiled": self.compiled,
        }

    def _step(self) -> float:
        """Take one optimizer step and return its mean loss."""
        begun, r = time.perf_counter(), self.recipe
        set_rate(self.optimizer, learning_rate(r, self.step))
        batch = self.batches.at(self.step)
        rows = max(1, self.micro_tokens // self.batches.context_length)
        total = torch.zeros((), device=self.device)
        for first in range(0, self.batches.batch_size, rows):
            some = slice(first, first + rows)
            ids = torch.from_numpy(batch.input_ids[some].copy()).to(self.device)
            targets = torch.from_numpy(batch.targets[some].copy()).to(self.device)
            with devices.autocast(r.precision, self.device):
                hidden = self.judged.model(ids).last_hidden_state.flatten(0, 1)
                weight = self.judged.lm_head.weight
                loss = summed_loss(hidden, weight, targets.flatten(), self.chunk)
                loss = loss / batch.targets.size
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), r.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        mean = float(total)
        if not mean < float("inf"):
            raise NonFiniteLoss(f"the loss is {mean} after step {self.step}")
        self.seconds.append(time.perf_counter() - begun)
        return mean

    def _log(self, losses: list[float]) -> None:
        rate = learning_rate(self.recipe, self.step - 1)
        mean = sum(losses) / len(losses)
        self.on_line({"step": self.step, "loss": round(mean, 6), "learning_rate": rate})

    def _save(self, losses: list[float]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step, "losses": losses, "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip
        new = self.file.with_suffix(".tmp")
        torch.save(state, new)
        new.replace(self.file)

    def _restore(self) -> list[float]:
        """Load the saved state, if any, and return the losses that are not logged yet."""
        if not self.file.exists():
            return []
        state = torch.load(self.file, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        losses: list[float] = state["losses"]
        return losses
