"""LongRoPE's evolutionary search for the factors of a trained model (arXiv:2402.13753).

A candidate is a factor per frequency (`pe.evaluation.longrope.evolution`). The model's frequencies
are divided by these factors, nothing is trained, and the candidate's fitness is the perplexity on
validation text of ``factor`` times the training length. Test text is never read.

LongRoPE2 (arXiv:2502.20082) uses the perplexity of answers instead, which are numbers that the text
hides and asks for. Most tokens of a text can be predicted from those just before them, whatever the
factors are. An answer can be predicted only from its needle.

Every evaluation is written at once to longrope-<factor>x.json beside run.json, so a search that was
stopped can be resumed and has the same result. A search by needles has its own file,
longrope-<factor>x-<needles>.json.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe._errors import LAST_SEED, whole
from pe.data import TokenData
from pe.data.needles import NeedleText, Prompt
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.core.parts import part_classes
from pe.encodings.longrope import LongRoPE
from pe.encodings.rope import RoPE
from pe.evaluation.load import complete_record, holder, load_model
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
from pe.runs import SCHEMA_VERSION, Folder, Run, RunError, checked
from pe.runs.provenance import code, hardware, now
from pe.training.progress import Progress

NEEDLE_SEED = 20_250_228
"""The seed of hidden numbers and their depths, which differ from those of the evaluation."""


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

    ``pe.convert(model, "longrope", factor=factor, long_factor=factors)`` uses them.

    Args:
        iterations: number of generations after the first one. If some are recorded already, the
            search continues after them.
        population: size of the first generation. In later ones, children are made from the best
            ``population / 2`` candidates so far: ``population / 4`` by mutation and as many by
            crossover.
        seed: of all random choices.
        windows: the most windows of validation text that are scored; with needles, the number of
            texts that hide numbers.
        magnitude: an option of `longrope`, the same for all candidates.
        spec: the encoding to which the model is converted, for example ``"longrope+alibi"``.
        needles: a retrieval task (`pe.data.needles.NEEDLE_TASKS`) such as ``"multikey"``, for
            LongRoPE2's search: fitness is the perplexity of the answers' digits, and from the
            critical frequency on factors are at least ``factor``. None: LongRoPE's search.
        critical: with needles, the index of the critical frequency. None: the last frequency that
            completed a rotation in training. The authors find that an earlier one may be better.
        quiet: show no progress.

    Returns:
        The best factors so far, (d/2,). In LongRoPE's search they are at least as good as YaRN's on
        the text of the search, because those are a seed. In LongRoPE2's search YaRN's factors are
        first raised to ``factor`` from the critical frequency on.

    Raises:
        RunError: the run is not complete, its checkpoint is not on this machine, or the file has a
            search with other settings.
        ValueError: no validation document is long enough, the model has no frequencies, or
            ``critical`` is not one of them or is given without needles, or a number is none or out
            of its range.
    """
    checked(run)
    settings: dict[str, Any] = {
        "pe": spec, "factor": factor, "magnitude": magnitude, "population": population,
        "seed": seed, "windows": windows,
    }  # fmt: skip
    _check(settings, iterations)
    settings["factor"] = float(factor)
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
    complete_record(run, "searching for factors of")
    with run.lock():
        data = text_of(run)
        longer = convert(load_model(holder(run)), spec, factor=factor, magnitude=magnitude).eval()
        progress = Progress(enabled=not quiet)
        return list(search_factors(run, longer, data, run.recipe, progress, settings, iterations))


def search_factors(
    folder: Folder,
    model: PEForCausalLM,
    data: TokenData,
    recipe: Recipe,
    progress: Progress,
    settings: Mapping[str, Any],
    iterations: int,
) -> Factors:
    """Do the search of `search_longrope` for a model that has LongRoPE already.

    Args:
        folder: gets the record; the caller holds its lock.
        settings: ``pe``, ``factor``, ``magnitude``, ``population``, ``seed`` and ``windows``, and
            for a search by needles ``needles`` and ``critical``.

    Returns:
        The best factors, (d/2,).
    """
    _check(settings, iterations)
    fitness = Fitness.of(recipe, model, data, settings)
    return _Search(folder, settings, fitness, progress).run_to(iterations)


def _check(settings: Mapping[str, Any], iterations: int) -> None:
    factor, spec = settings["factor"], settings["pe"]
    if not (isinstance(factor, int | float) and math.isfinite(factor) and factor > 1):
        raise ValueError(f"factor: expected a finite number above 1, got {factor!r}")
    whole("iterations", iterations)
    whole("population", settings["population"], 4)
    whole("windows", settings["windows"], 1)
    whole("seed", settings["seed"], most=LAST_SEED)
    if "longrope" not in part_classes(spec):
        raise ValueError(f"{spec!r} has no longrope in it; try 'longrope+{spec}'")


@dataclass
class Fitness:
    """The loss of a model with given factors, on validation text of the extended length."""

    scorer: Scorer
    length: int
    """The extended length, in tokens."""
    prompts: Sequence[Prompt] = ()
    """Texts that hide numbers; empty for LongRoPE's search, which scores plain text."""

    @classmethod
    def of(
        cls, recipe: Recipe, longer: PEForCausalLM, data: TokenData, settings: Mapping[str, Any]
    ) -> Fitness:
        """Make the fitness of a model that has LongRoPE already."""
        length = math.ceil(settings["factor"] * _transforms(longer)[0].original_length)
        windows = settings["windows"]
        scorer = Scorer(longer, data, recipe, [length], split="validation", windows=windows)
        hidden: Sequence[Prompt] = ()
        if settings.get("needles") is not None:
            text = NeedleText(settings["needles"], data.tokenizer)
            hidden = prompts(text, scorer.split, length, windows, seed=NEEDLE_SEED)
        return cls(scorer, length, hidden)

    def rules(self, settings: Mapping[str, Any]) -> Evolution:
        """Return the rules by which candidates are made for the model's frequencies."""
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
        """Return the mean loss in nats with these factors, which the model keeps afterwards.

        The loss is that of the last targets of each window or, with prompts, of the answers.
        """
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
    """A search and its record."""

    def __init__(
        self, run: Folder, settings: Mapping[str, Any], fitness: Fitness, progress: Progress
    ) -> None:
        self.run, self.fitness, self.progress = run, fitness, progress
        self.suffix = f"-{settings['factor']:g}x"
        if fitness.prompts:
            self.suffix += f"-{settings['needles']}"
        settings = dict(settings) | {
            "length": fitness.length, "target_tokens": fitness.scorer.recipe.target_tokens,
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
            recorded = self.state["settings"]
            different = ", ".join(
                f"{k} {recorded.get(k)}" for k in settings if recorded.get(k) != settings[k]
            )
            raise RunError(
                f"{self._path()} is of a search with other settings ({different}); use those, or "
                "move the file away"
            )

    def _path(self) -> str:
        return str(self.run.directory / f"longrope{self.suffix}.json")

    def run_to(self, iterations: int) -> Factors:
        """Continue up to generation ``iterations`` and return the best factors of all so far."""
        recorded = [(tuple(e["factors"]), e["nll"]) for e in self.state["history"]]
        scored: list[Scored] = []
        for number in range(iterations + 1):
            new: list[Scored] = []
            for candidate in self.rules.generation(number, scored):
                index = len(scored) + len(new)
                if index >= len(recorded):
                    nll = self._evaluate(number, candidate)
                elif recorded[index][0] == candidate.factors:
                    nll = recorded[index][1]
                else:
                    raise RunError(
                        f"{self._path()}: candidate {index} is not the one that this version of pe "
                        "makes from the seed; move the file away to search again"
                    )
                new.append(Scored(candidate.factors, math.inf if nll is None else nll))
            scored += new
        return min(scored, key=lambda each: each.nll).factors

    def _evaluate(self, number: int, candidate: Candidate) -> float | None:
        """Measure a candidate of generation ``number`` and record it; None if it is not finite."""
        began, best = time.perf_counter(), self.state["best"]
        loss = self.fitness.nll(candidate.factors)
        nll = loss if math.isfinite(loss) else None
        entry = {
            "generation": number, "origin": candidate.origin, "nll": nll,
            "perplexity": None if nll is None or nll > 700 else math.exp(nll),
            "factors": list(candidate.factors),
        }  # fmt: skip
        self.state["history"].append(entry)
        if best is None or (nll is not None and (best["nll"] is None or nll < best["nll"])):
            self.state["best"] = entry
        self.state["seconds"] = round(self.state["seconds"] + time.perf_counter() - began, 3)
        self.run.write_part("longrope", self.state, self.suffix)
        count, best = len(self.state["history"]), self.state["best"]
        shown = f"{best['perplexity']:.4g}" if best["perplexity"] else "none"
        self.progress.show(f"generation {number}, {count} candidates, best perplexity {shown}")
        return nll
