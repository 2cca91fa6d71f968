"""LongRoPE's search: factors for a trained model, by evolution (arXiv:2402.13753).

Fitness is the perplexity of the run's model, with a candidate's factors in place of the model's
frequencies and nothing trained, on validation text of ``factor`` times the training length. Test
text is never read. Candidates are made by `pe.evaluation.longrope.evolution`.

LongRoPE2 (arXiv:2502.20082) reads the perplexity of answers instead: numbers that the text hides
and then asks for. Most tokens of a text follow from those just before them, whatever the factors
are; an answer follows from its needle alone.

Every evaluation is written to longrope-<factor>x.json beside run.json as soon as it is made, so a
search that is stopped goes on where it was and ends as if it had not been. A search by needles has
a file of its own, longrope-<factor>x-<needles>.json.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe.data import TokenData
from pe.data.needles import NeedleText, Prompt
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.core.parts import part_classes
from pe.encodings.longrope import LongRoPE
from pe.encodings.rope import RoPE
from pe.evaluation.load import holder, load_model
from pe.evaluation.longrope.evolution import (
    REACHES,
    Candidate,
    Evolution,
    Factors,
    Scored,
    bounded_seeds,
    critical_frequency,
    seeds,
)
from pe.evaluation.retrieval import answer_states, prompts
from pe.evaluation.scorer import Scorer, text_of
from pe.model import PEForCausalLM
from pe.model.convert import convert
from pe.model.loss import token_losses
from pe.recipes.recipe import Recipe
from pe.runs import SCHEMA_VERSION, Run, RunError
from pe.runs.provenance import code, hardware, now
from pe.training.progress import Progress

NEEDLE_SEED = 20_250_228
"""Of hidden numbers and where they lie: others than those of the evaluation."""


def search_longrope(
    run: Run,
    factor: float,
    *,
    iterations: int = 40,
    population: int = 64,
    seed: int = 0,
    windows: int = 16,
    magnitude: str | float = "su",
    spec: str = "longrope",
    needles: str | None = None,
    critical: int | None = None,
    quiet: bool = False,
) -> list[float]:
    """Search factors with which the model of ``run`` reads ``factor`` times its training length.

    Put them on the model with ``pe.convert(model, "longrope", factor=factor, long_factor=found)``.

    Args:
        iterations: generations after the first; more than are recorded go on from there.
        population: size of the first generation. The better half of all so far have children, a
            quarter as many by mutation and a quarter by crossover.
        seed: of all random choices.
        windows: how many stretches of validation text are scored, at most; with needles, how many
            texts that hide numbers.
        magnitude: as `longrope` takes it; the same for all candidates.
        spec: what the model is converted to, ``"longrope+alibi"`` for example.
        needles: LongRoPE2's search: a retrieval task such as ``"multikey"``
            (`pe.data.needles.NEEDLE_TASKS`). Fitness is the perplexity of the answers' digits, and
            factors are at least ``factor`` from the critical frequency on. None: LongRoPE's.
        critical: with needles, the critical frequency, counted from 0. None: the last one that
            completed a turn in training. The authors find that an earlier one may be better.

    Returns:
        The best factors so far, one per frequency. By LongRoPE's rules they are never worse than
        YaRN's on the text searched on; by LongRoPE2's YaRN's are raised to ``factor`` from the
        critical frequency on before they are a seed.

    Raises:
        RunError: the run is not complete, its checkpoint is not on this machine, or
            longrope-<factor>x.json holds a search with other settings.
        ValueError: no validation document is long enough, the model has no frequencies to slow, or
            ``critical`` is none of them or has no needles beside it.
    """
    _check(factor, iterations, population, spec)
    settings: dict[str, Any] = {
        "pe": spec, "factor": float(factor), "magnitude": magnitude, "population": population,
        "seed": seed, "windows": windows,
    }  # fmt: skip
    if needles is not None:
        if population <= REACHES:
            raise ValueError(
                f"population {population}: expected at least {REACHES + 1}, the seeds of a search "
                "by needles"
            )
        settings |= {"needles": needles, "critical": critical}
    elif critical is not None:
        raise ValueError(
            f"critical {critical}: has no effect without needles; name a retrieval task, such as "
            "needles='multikey'"
        )
    record = run.read()
    if record["status"] != "complete":
        raise RunError(f"{run.directory} is {record['status']}; train it before searching")
    with run.lock():
        data = text_of(run)
        fitness = Fitness.of(run.recipe, load_model(holder(run)), data, settings)
        return list(_Search(run, settings, fitness, Progress(enabled=not quiet)).run_to(iterations))


def _check(factor: float, iterations: int, population: int, spec: str) -> None:
    if not (math.isfinite(factor) and factor > 1):
        raise ValueError(f"factor: expected a finite number above 1, got {factor!r}")
    if iterations < 0 or population < 4:
        raise ValueError(
            f"iterations {iterations}, population {population}: expected at least 0 and 4"
        )
    if "longrope" not in part_classes(spec):
        raise ValueError(f"{spec!r} has no longrope in it; try 'longrope+{spec}'")


@dataclass
class Fitness:
    """A model whose factors can be exchanged, on validation text of the length searched for."""

    scorer: Scorer
    length: int
    prompts: Sequence[Prompt] = ()
    """Texts that hide numbers; () where all of a text counts."""

    @classmethod
    def of(
        cls, recipe: Recipe, model: PEForCausalLM, data: TokenData, settings: dict[str, Any]
    ) -> Fitness:
        longer = convert(
            model, settings["pe"], factor=settings["factor"], magnitude=settings["magnitude"]
        ).eval()
        length = math.ceil(settings["factor"] * _transforms(longer)[0].original_length)
        windows = settings["windows"]
        scorer = Scorer(longer, data, recipe, [length], split="validation", windows=windows)
        hidden: Sequence[Prompt] = ()
        if settings.get("needles") is not None:
            text = NeedleText(settings["needles"], data.tokenizer)
            hidden = prompts(text, scorer.split, length, windows, seed=NEEDLE_SEED)
        return cls(scorer, length, hidden)

    def rules(self, settings: dict[str, Any]) -> Evolution:
        """How candidates are made for the spectrum that the model has."""
        model, factor = self.scorer.model, settings["factor"]
        rope = next(m for m in model.modules() if isinstance(m, RoPE) and len(m.transforms))
        spectrum = base_frequencies(rope.rotary_dim, rope.theta)
        length, critical = _transforms(model)[0].original_length, None
        if self.prompts:
            critical = settings["critical"]
            if critical is None:
                critical = critical_frequency(spectrum.dim, spectrum.theta, length)
            if not 0 < critical < len(spectrum.inv_freq):
                raise ValueError(
                    f"critical {critical}: expected one of the frequencies 1 to "
                    f"{len(spectrum.inv_freq) - 1}"
                )
            first: list[Candidate] = bounded_seeds(spectrum, factor, length, critical)
        else:
            first = seeds(spectrum, factor, length)
        return Evolution(first, factor, settings["population"], settings["seed"], critical)

    def nll(self, factors: Factors) -> float:
        """Mean loss of the last targets of each window, or of the answers' digits; the model's
        factors are exchanged."""
        for transform in _transforms(self.scorer.model):
            assert transform.factors is not None
            transform.factors = (factors, transform.factors[1])
        return self._of_answers() if self.prompts else self.scorer.nll(self.length)

    def _of_answers(self) -> float:
        texts, weight = np.stack([p.ids for p in self.prompts]), self.scorer.model.lm_head.weight
        places = np.stack([p.places for p in self.prompts])
        answers = np.take_along_axis(texts, places, 1)

        def read(hidden: Tensor, some: slice) -> Tensor:
            targets = torch.from_numpy(answers[some]).to(hidden.device)
            states = answer_states(hidden, places[some])
            return token_losses(states.flatten(0, 1), weight, targets.flatten()).view_as(targets)

        return float(self.scorer.apply(texts, read).astype(np.float64).mean())


def _transforms(model: PEForCausalLM) -> list[LongRoPE]:
    return [m for m in model.modules() if isinstance(m, LongRoPE)]


class _Search:
    """One search and its record."""

    def __init__(
        self, run: Run, settings: dict[str, Any], fitness: Fitness, progress: Progress
    ) -> None:
        self.run, self.fitness, self.progress = run, fitness, progress
        self.suffix = f"-{settings['factor']:g}x"
        if fitness.prompts:
            self.suffix += f"-{settings['needles']}"
        settings = settings | {
            "length": fitness.length, "target_tokens": run.recipe.target_tokens,
            "windows_found": len(fitness.prompts or fitness.scorer.ends),
            "data": fitness.scorer.data.fingerprint,
        }  # fmt: skip
        self.rules = fitness.rules(settings)
        self.state = run.part("longrope", self.suffix) or {
            "schema": SCHEMA_VERSION, "created": now(), "code": code(),
            "hardware": hardware()["name"], "seconds": 0.0, "settings": settings, "history": [],
            "best": None,
        }  # fmt: skip
        if self.state["settings"] != settings:
            known = self.state["settings"]
            other = ", ".join(
                f"{k} {known.get(k)}" for k in settings if known.get(k) != settings[k]
            )
            raise RunError(
                f"{self._path()} is of a search with other settings ({other}); go on with those, "
                "or move the file away"
            )

    def _path(self) -> str:
        return str(self.run.directory / f"longrope{self.suffix}.json")

    def run_to(self, iterations: int) -> Factors:
        """The best factors of all generations up to this one."""
        recorded = [(tuple(e["factors"]), e["nll"]) for e in self.state["history"]]
        known: list[Scored] = []
        for number in range(iterations + 1):
            new: list[Scored] = []
            for candidate in self.rules.generation(number, known):
                place = len(known) + len(new)
                if place >= len(recorded):
                    nll = self._evaluated(number, candidate)
                elif recorded[place][0] == candidate.factors:
                    nll = recorded[place][1]
                else:
                    raise RunError(
                        f"{self._path()}: candidate {place} is not the one that this version of pe "
                        "makes from the seed; move the file away to search again"
                    )
                new.append(Scored(candidate.factors, math.inf if nll is None else nll))
            known += new
        return min(known, key=lambda scored: scored.nll).factors

    def _evaluated(self, number: int, candidate: Candidate) -> float | None:
        begun, best = time.perf_counter(), self.state["best"]
        nll: float | None = self.fitness.nll(candidate.factors)
        nll = nll if nll is not None and math.isfinite(nll) else None
        entry = {
            "generation": number, "origin": candidate.origin, "nll": nll,
            "perplexity": None if nll is None or nll > 700 else math.exp(nll),
            "factors": list(candidate.factors),
        }  # fmt: skip
        self.state["history"].append(entry)
        if best is None or (nll is not None and (best["nll"] is None or nll < best["nll"])):
            self.state["best"] = entry
        self.state["seconds"] = round(self.state["seconds"] + time.perf_counter() - begun, 3)
        self.run.write_part("longrope", self.state, self.suffix)
        count, best = len(self.state["history"]), self.state["best"]
        shown = f"{best['perplexity']:.4g}" if best["perplexity"] else "none"
        self.progress.show(f"generation {number}, {count} candidates, best perplexity {shown}")
        return nll
