"""Write metrics.jsonl, and compute speed and model FLOPs utilisation (MFU).

Losses stay on the device until a line is due, and are then read together, so that logging does not
make the device wait. MFU is counted as in `pe.training.flops`; a layer with a window counts for the
share of keys that it sees.
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
    """Return the number of layers, one with a window counting for the share of keys it sees."""
    shares = [shown_share(enc, context_length) for enc in decoder.encodings]  # type: ignore[arg-type]
    return sum(shares[number] for number in decoder.encoding_of)


def perplexity(loss: float) -> float | None:
    """Return exp(loss) for a loss in nats, or None if it is too large for a float."""
    return round(math.exp(loss), 4) if loss < 700 else None


class NonFiniteLoss(RuntimeError, Explained):
    """A loss, a gradient or weights became NaN or infinite in training."""


class Metrics:
    """Collects the steps since the last `flush` and writes one line for them.

    In a line, ``loss`` is the mean over those steps in nats, ``grad_norm`` and ``lr`` are those of
    the last step, ``tokens`` are the tokens of those steps, and ``total_tokens`` are all tokens
    that the run was trained on.

    Args:
        writes: whether this process writes the file; all others only count.
        flops_per_token: see `flops_per_token`. peak: FLOP/s of all devices together, or None.
    """

    def __init__(self, run: Run, writes: bool, flops_per_token: float, peak: float | None) -> None:
        self.path: Path = run.directory / "metrics.jsonl"
        self.writes, self.flops, self.peak = writes, flops_per_token, peak
        self.lines: list[dict[str, Any]] = []
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def start_at(self, step: int, lines: list[dict[str, Any]]) -> None:
        """Keep the ``lines`` up to ``step``; drop later ones, whose steps will be repeated."""
        self.lines = [line for line in lines if line["step"] <= step]
        if self.writes:
            text = "".join(json.dumps(line) + "\n" for line in self.lines)
            with writing(self.path):
                write_atomically(self.path, text)

    def add(self, loss: Tensor, grad_norm: Tensor) -> None:
        """Add the loss and the gradient norm of one step, both still on the device.

        The loss is this process's part; `flush` combines the parts of all processes.
        """
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
        """Write the line for the steps since the last one, and return it.

        Args:
            step: the number of steps done. tokens, seconds: of the steps since the last line.
            reduce: takes losses, (steps,), and returns their mean over processes.
            last_good: says which checkpoint is the last good one, for the message of an error.

        Raises:
            NonFiniteLoss: a loss or gradient is not finite; names the step and the checkpoint.
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
        """Write a line with a validation loss in nats.

        Raises:
            NonFiniteLoss: the loss is NaN or infinite.
        """
        if not math.isfinite(loss):
            raise NonFiniteLoss(
                f"validation loss {loss} after step {step}; try a lower learning_rate or a longer "
                "warmup"
            )
        line = {"step": step, "total_tokens": total_tokens, "validation_loss": round(loss, 6)}
        self._write(line | {"validation_perplexity": perplexity(loss)})

    def validated(self, step: int) -> float | None:
        """Return the validation loss of this step, or None if it was not measured."""
        lines = (x for x in self.lines if x["step"] == step and "validation_loss" in x)
        return next((x["validation_loss"] for x in lines), None)

    def _write(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        if self.writes:
            with writing(self.path), open(self.path, "a") as file:
                file.write(json.dumps(line) + "\n")

    def mfu(self) -> float | None:
        """Return the MFU at `speed`, or None if the device's peak is not known."""
        return None if self.peak is None else round(self.speed() * self.flops / self.peak, 4)

    def speed(self) -> float:
        """Return the median tokens/s of all lines but the first, which includes warming up."""
        rates: list[float] = [
            x["tokens_per_second"] for x in self.lines if "tokens_per_second" in x
        ]
        return statistics.median(rates[1:] or rates)

    def final_loss(self, steps: int) -> float:
        """Return the mean training loss, in nats, of the lines in the last tenth of the run."""
        lines = [x for x in self.lines if "loss" in x]
        recent = [x["loss"] for x in lines if x["step"] > 0.9 * steps]
        return statistics.fmean(recent or [lines[-1]["loss"]])
