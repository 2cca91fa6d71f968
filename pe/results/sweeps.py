"""A sweep of learning rates: the best rate of each encoding, and whether it is at an edge.

Runs are compared by their validation loss at the end, one seed each. A best rate that is the
highest or the lowest of those tried is an edge: the best of all may lie beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pe.results import quantities
from pe.results.markdown import linked, pipe
from pe.results.quantities import NOT_EVALUATED, RunLike, label


@dataclass(frozen=True)
class Sweep:
    """The complete runs of one encoding, by ascending rate and multiple."""

    pe: str
    runs: tuple[RunLike, ...]

    @property
    def best(self) -> RunLike:
        """The run with the lowest validation loss."""
        return min(self.runs, key=loss)

    @property
    def edge(self) -> str:
        """``"lowest"``, ``"highest"`` or ``"only"`` if the best rate is at an edge, else ``""``.

        Among the runs whose own parameters learn at the same multiple as those of the best.
        """
        multiple = setting(self.best)[1]
        rates = sorted(setting(run)[0] for run in self.runs if setting(run)[1] == multiple)
        if len(rates) == 1:
            return "only"
        best = setting(self.best)[0]
        return {rates[0]: "lowest", rates[-1]: "highest"}.get(best, "")


def loss(run: RunLike) -> float:
    """Return the validation loss at the end of training, in nats per token."""
    return float(run.read()["training"]["validation_loss"])


def setting(run: RunLike) -> tuple[float, float]:
    """Return the peak learning rate, and its multiple for the encoding's own parameters."""
    recipe = run.read()["recipe"]
    return recipe["learning_rate"], recipe.get("encoding_rate", 1.0)


def sweeps(runs: Sequence[RunLike]) -> list[Sweep]:
    """Return the complete runs by encoding, the encoding with the lowest loss first."""
    by_encoding: dict[str, list[RunLike]] = {}
    for run in runs:
        if run.read()["status"] == "complete":
            by_encoding.setdefault(run.read()["pe"], []).append(run)
    listed = [Sweep(pe, tuple(sorted(tried, key=setting))) for pe, tried in by_encoding.items()]
    return sorted(listed, key=lambda sweep: loss(sweep.best))


def table(runs: Sequence[RunLike], links: Mapping[str, str] | None = None) -> str:
    """Write a line for each run.

    The best of each encoding is bold, with a note if it is at an edge.

    Args:
        links: by a run's name, the address of its page.
    """
    multiples = quantities.multiples(runs)
    heads = ["encoding", "peak rate", "own parameters", "validation loss"]
    lines = []
    for sweep in sweeps(runs):
        for run in sweep.runs:
            rate, multiple = setting(run)
            best = run is sweep.best
            name = linked(label(sweep.pe), (links or {}).get(run.name))
            shown = f"**{loss(run):.3f}**" if best else f"{loss(run):.3f}"
            note = f" ({sweep.edge} rate)" if best and sweep.edge else ""
            perplexities = [quantities.value(run, f"ppl@{at}")[0] for at in multiples]
            limit = quantities.vocabulary(run)
            cells = [quantities.perplexity(v, limit) if v else NOT_EVALUATED for v in perplexities]
            lines.append([name, f"{rate:g}", f"× {multiple:g}", shown + note, *cells])
    return pipe([*heads, *multiples], lines)
