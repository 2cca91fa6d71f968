"""Sweeps of learning rates: the best run of each encoding, and edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pe.figures import rates as figures_rates
from pe.results import sweeps


@dataclass
class Tried:
    """A complete run, as far as a sweep looks at it."""

    pe: str
    rate: float
    loss: float
    multiple: float = 1.0
    status: str = "complete"
    study: str = "rates"
    perplexity: dict[str, float] = field(default_factory=lambda: {"8": 20.0, "16": 900.0})

    @property
    def name(self) -> str:
        return f"{self.pe}-{self.rate}-{self.multiple}"

    def read(self) -> dict[str, Any]:
        recipe = {
            "pe": self.pe, "learning_rate": self.rate, "encoding_rate": self.multiple, "seed": 0,
            "context_length": 8, "vocab_size": 100,
        }  # fmt: skip
        return {
            "pe": self.pe, "status": self.status, "recipe": recipe,
            "training": {"validation_loss": self.loss} if self.status == "complete" else None,
        }  # fmt: skip

    def evaluation(self) -> dict[str, Any]:
        cells = {n: {"value": v, "reason": None} for n, v in self.perplexity.items()}
        return {"lengths": [8, 16], "perplexity": cells}


def test_the_best_of_each_encoding_and_whether_it_is_at_an_edge() -> None:
    runs = [
        Tried("rope", 1e-3, 3.9), Tried("rope", 6e-3, 4.0), Tried("rope", 3e-3, 3.5),
        Tried("t5", 1e-3, 3.8, 10.0), Tried("t5", 3e-3, 3.6, 10.0), Tried("t5", 6e-3, 4.0),
        Tried("nope", 1e-3, 4.0), Tried("alibi", 3e-3, 9.9, status="failed"),
    ]  # fmt: skip
    found = {sweep.pe: sweep for sweep in sweeps.sweeps(runs)}
    assert list(found) == ["rope", "t5", "nope"], "the lowest loss first, and complete runs alone"
    assert (found["rope"].best.loss, found["rope"].edge) == (3.5, "")
    assert (found["t5"].best.loss, found["t5"].edge) == (3.6, "highest"), "among the same multiple"
    assert found["nope"].edge == "only"


def test_the_table_marks_the_best_and_prints_no_digits_above_the_vocabulary() -> None:
    runs = [Tried("rope", 1e-3, 3.9), Tried("rope", 3e-3, 3.5)]
    lines = sweeps.table(runs, {runs[0].name: "/page"}).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0][:4] == ["[RoPE](/page)", "0.001", "× 1", "3.900"]
    assert cells[1][3] == "**3.500** (highest rate)"
    assert cells[1][4:] == ["20.0", "worse than guessing"]


def test_the_figure_has_the_encodings_with_several_rates_and_fills_the_best() -> None:
    runs = [
        Tried("rope", 1e-3, 3.5), Tried("rope", 3e-3, 3.4), Tried("rope", 6e-3, 4.2),
        Tried("t5", 1e-3, 3.7, 10.0), Tried("t5", 3e-3, 3.6, 10.0), Tried("t5", 6e-3, 4.0),
        Tried("pope", 6e-3, 3.3),
    ]  # fmt: skip
    (axes,) = figures_rates.by_rate(runs).axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]  # type: ignore[arg-type]
    assert lines == [
        ([1e-3, 3e-3, 6e-3], [3.5, 3.4, 4.2]), ([3e-3], [3.4]),
        ([1e-3, 3e-3], [3.7, 3.6]), ([3e-3], [3.6]),
    ]  # fmt: skip
    assert axes.get_legend_handles_labels()[1] == ["RoPE", "T5"]
    assert [line.get_markerfacecolor() == "none" for line in axes.lines] == [True, False] * 2
    assert sorted(map(id, figures_rates.shown(runs))) == sorted(map(id, runs[:5]))
