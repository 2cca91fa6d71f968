"""metrics.jsonl: losses leave the device in bunches, so that logging never stalls it.

Model FLOPs utilisation (MFU) is counted as in `pe.training.flops`; a layer with a window counts for
the share of keys that it shows.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pe._errors import Explained
from pe._files import write_atomically
from pe.encodings.core.key_range import shown_share
from pe.model.decoder import PEModel
from pe.runs import Run, writing


def layers_shown(decoder: PEModel, context_length: int) -> float:
    """How many layers that see all keys would do the arithmetic of its attention."""
    shares = [shown_share(enc, context_length) for enc in decoder.encodings]  # type: ignore[arg-type]
    return sum(shares[number] for number in decoder.encoding_of)


def perplexity(loss: float) -> float | None:
    """exp of a loss in nats, or None where that is no number of JSON."""
    return round(math.exp(loss), 4) if loss < 700 else None


class NonFiniteLoss(RuntimeError, Explained):
    """Training produced a loss, a gradient or weights that are no numbers."""


class Metrics:
    """Collects the steps since the last `flush` and writes one line for them.

    ``loss`` is the mean over those steps, ``grad_norm`` and ``lr`` those of the last one;
    ``tokens`` are those of the steps, ``total_tokens`` all that the run was trained on.
    """

    def __init__(self, run: Run, writes: bool, flops_per_token: float, peak: float | None) -> None:
        self.path: Path = run.directory / "metrics.jsonl"
        self.writes, self.flops, self.peak = writes, flops_per_token, peak
        self.lines: list[dict[str, Any]] = []
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def start_at(self, step: int, lines: list[dict[str, Any]]) -> None:
        """Drop lines of steps that will be repeated."""
        self.lines = [line for line in lines if line["step"] <= step]
        if self.writes:
            text = "".join(json.dumps(line) + "\n" for line in self.lines)
            with writing(self.path):
                write_atomically(self.path, text)

    def add(self, loss: Tensor, grad_norm: Tensor) -> None:
        """Loss (summed over processes later) and gradient norm of one step, still on the device."""
        self._losses.append(loss)
        self._norms.append(grad_norm)

    def flush(
        self,
        step: int,
        total_tokens: int,
        lr: float,
        tokens: int,
        seconds: float,
        reduce: Any,
        last_good: str,
    ) -> dict[str, Any]:
        """Write the line for the steps up to ``step``; ``seconds`` is what they took.

        Raises:
            NonFiniteLoss: names the step and the last good checkpoint.
        """
        losses = reduce(torch.stack(self._losses)).tolist()
        norms = torch.stack(self._norms).tolist()
        count = len(losses)
        for index, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise NonFiniteLoss(
                    f"loss {loss} and gradient norm {norm} at step {step - count + index + 1}; "
                    f"{last_good}; try a lower learning_rate or a longer warmup"
                )
        self._losses, self._norms = [], []
        rate = tokens / seconds
        line = {
            "step": step,
            "loss": round(statistics.fmean(losses), 6),
            "grad_norm": round(norms[-1], 6),
            "lr": lr,
            "tokens": tokens,
            "total_tokens": total_tokens,
            "tokens_per_second": round(rate, 1),
            "mfu": None if self.peak is None else round(rate * self.flops / self.peak, 4),
            "seconds": round(seconds, 4),
        }
        self._write(line)
        return line

    def validation(self, step: int, total_tokens: int, loss: float) -> None:
        """Write a validation line.

        Raises:
            NonFiniteLoss: the loss is no number.
        """
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"validation loss {loss} after step {step}")
        line = {"step": step, "total_tokens": total_tokens, "validation_loss": round(loss, 6)}
        self._write(line | {"validation_perplexity": perplexity(loss)})

    def validated(self, step: int) -> float | None:
        """The validation loss of this step, if it was written down."""
        lines = (x for x in self.lines if x["step"] == step and "validation_loss" in x)
        return next((x["validation_loss"] for x in lines), None)

    def _write(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        if self.writes:
            with writing(self.path), open(self.path, "a") as file:
                file.write(json.dumps(line) + "\n")

    def mfu(self) -> float | None:
        """MFU at `speed`, or None where the device's peak is not known."""
        return None if self.peak is None else round(self.speed() * self.flops / self.peak, 4)

    def speed(self) -> float:
        """Median tokens/s over the logged intervals; the first, which warms up, is left out."""
        rates: list[float] = [
            x["tokens_per_second"] for x in self.lines if "tokens_per_second" in x
        ]
        return statistics.median(rates[1:] or rates)

    def final_loss(self, steps: int) -> float:
        """Mean training loss of the lines in the last tenth of the run."""
        lines = [x for x in self.lines if "loss" in x]
        recent = [x["loss"] for x in lines if x["step"] > 0.9 * steps]
        return statistics.fmean(recent or [lines[-1]["loss"]])
