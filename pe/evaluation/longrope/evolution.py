"""The candidates of LongRoPE's search: seeds, mutation and crossover. No model is needed here.

A candidate is a factor lambda_i per frequency i = 0 .. d/2-1, by which the frequency is divided.
Factors lie between 1 and 1 + s and never fall from one frequency to the next, because a slower
frequency has covered less of the circle in training (arXiv:2402.13753). Mutation draws factors from
a grid.

LongRoPE2 (arXiv:2502.20082) has a critical frequency c: the last one that completed a rotation in
training, or an earlier one. From c on, lambda_i is at least s, since otherwise angles would occur
that training did not show, and at most 2s. Its seeds follow NTK up to c. The lower bound and the
seeds are those of the search script in the first author's fork of the published code
(J-shang/LongRoPE), which leaves the upper bound to the caller. That script searches only the
factors from c on and computes those below by NTK's rule; here all factors are searched.

Every generation has its own random generator, seeded by (seed, generation). So the candidates
depend only on the seed and on the losses so far, and a search that is resumed makes the same ones.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pe.encodings.core.frequencies import Frequencies
from pe.encodings.longrope import yarn_factors
from pe.encodings.yarn import YaRN, rotations_index

Factors = tuple[float, ...]
GRID = 100
"""The number of steps of the grid between 1 and 2."""
MUTATED, VISITED, SWAPPED = 0.3, 0.3, 0.5
"""Probabilities: that a mutation draws a new factor, that a crossover considers a factor of the
father, and that it then takes this factor."""
REACHES = 8
"""The number of LongRoPE2's seeds besides YaRN's factors."""
TRIES = 20
"""The most attempts to make a child that was not evaluated before."""


class Candidate(NamedTuple):
    """A set of factors, (d/2,), and how it was made."""

    factors: Factors
    origin: str


class Scored(NamedTuple):
    """A candidate and its mean loss in nats, which is infinity if the loss is not finite."""

    factors: Factors
    nll: float


def seeds(spectrum: Frequencies, factor: float, original_length: int) -> list[Candidate]:
    """Return LongRoPE's seeds: PI, NTK, YaRN, and the blend with which the authors' code begins.

    YaRN blends frequencies by a ramp g: g w + (1 - g) w / s. The authors' code blends factors by
    the same ramp: g + (1 - g) s.
    """
    dim, pairs = spectrum.dim, len(spectrum.inv_freq)
    yarn = YaRN(original_length, factor)
    low, high = yarn.ramp_bounds(dim, spectrum.theta)
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(pairs)]
    factors_of = {
        "pi": [factor] * pairs,
        "ntk": [factor ** (i / max(pairs - 1, 1)) for i in range(pairs)],
        "yarn": yarn_factors(dim, spectrum.theta, original_length, factor),
        "blend": [1 + r * (factor - 1) for r in ramp],
    }
    # Rounding makes factors that should be equal equal to the last bit, so that they rise.
    return [Candidate(tuple(round(f, 9) for f in fs), name) for name, fs in factors_of.items()]


def critical_frequency(dim: int, theta: float, original_length: int) -> int:
    """Return the index of the last frequency that rotates fully in ``original_length`` tokens.

    It is at least 1, so that there is a frequency before it, and less than ``dim`` / 2.
    """
    index = math.ceil(rotations_index(1.0, dim, theta, original_length)) - 1
    return min(max(index, 1), dim // 2 - 1)


def bounded_seeds(
    spectrum: Frequencies, factor: float, original_length: int, critical: int
) -> list[Candidate]:
    """Return LongRoPE2's seeds.

    The first one is YaRN's factors, raised to at least s from the critical frequency c on. The
    others are t^(i/c) up to c, and from there t, plus t / 640 for each further frequency; t rises
    from s in steps of s / 16. In the authors' search for s = 64 the steps are 4 and 0.1.
    """
    pairs = len(spectrum.inv_freq)
    yarn = yarn_factors(spectrum.dim, spectrum.theta, original_length, factor)
    factors_of = {"yarn": [f if i < critical else max(f, factor) for i, f in enumerate(yarn)]}
    for step in range(REACHES):
        reach = factor * (1 + step / 16)
        below = [reach ** (i / critical) for i in range(critical)]
        factors_of[f"ntk to {reach:g}"] = below + [
            reach * (1 + i / 640) for i in range(pairs - critical)
        ]
    return [Candidate(tuple(round(f, 9) for f in fs), name) for name, fs in factors_of.items()]


def rises(factors: Sequence[float]) -> bool:
    """Return whether no factor is smaller than the one before it."""
    return all(a <= b for a, b in itertools.pairwise(factors))


@dataclass(frozen=True)
class Evolution:
    """The rules by which one search makes candidates."""

    seeds: list[Candidate]
    factor: float
    """s: by how much the model's training length is extended."""
    population: int
    """The size of generation 0."""
    seed: int
    critical: int | None = None
    """The index of LongRoPE2's critical frequency; None for LongRoPE's rules."""

    @property
    def highest(self) -> float:
        """The upper bound of all factors."""
        return 1 + self.factor if self.critical is None else 2 * self.factor

    def least(self, index: int) -> float:
        """Return the lower bound of the factor of this frequency."""
        return self.factor if self.critical is not None and index >= self.critical else 1.0

    @property
    def parents(self) -> int:
        """The number of best candidates from which children are made."""
        return max(self.population // 2, 2)

    @property
    def children(self) -> int:
        """The number of mutations, and also of crossovers, in a generation."""
        return max(self.population // 4, 1)

    def generation(self, number: int, earlier: Sequence[Scored]) -> Iterator[Candidate]:
        """Yield the candidates of generation ``number``.

        Generation 0 consists of the seeds and of mutations of them, each seed in turn.

        Args:
            earlier: the candidates of all generations before this one.
        """
        rng = random.Random(f"{self.seed}:{number}")
        seen = {scored.factors for scored in earlier}
        candidates = self._first(rng, seen) if number == 0 else self._next(rng, seen, earlier)
        for candidate in candidates:
            if candidate.factors not in seen:
                seen.add(candidate.factors)
                yield candidate

    def _first(self, rng: random.Random, seen: set[Factors]) -> Iterator[Candidate]:
        yield from self.seeds
        for index in range(self.population - len(self.seeds)):
            seed = self.seeds[index % len(self.seeds)]
            yield from self._mutations(rng, seen, seed.factors, f"mutation of {seed.origin}")

    def _next(
        self, rng: random.Random, seen: set[Factors], earlier: Sequence[Scored]
    ) -> Iterator[Candidate]:
        # The sort is stable, so of equal losses the earlier candidate is preferred.
        best = sorted(earlier, key=lambda scored: scored.nll)[: self.parents]
        for _ in range(self.children):
            yield from self._mutations(rng, seen, rng.choice(best).factors, "mutation")
        for _ in range(self.children):
            mother, father = rng.choice(best).factors, rng.choice(best).factors
            child = next((c for c in self._crossed(rng, mother, father) if c not in seen), None)
            if child is not None:
                yield Candidate(child, "crossover")
            else:
                yield from self._mutations(rng, seen, mother, "mutation")

    def _mutations(
        self, rng: random.Random, seen: set[Factors], parent: Factors, origin: str
    ) -> Iterator[Candidate]:
        """Yield a mutation that is not in ``seen``, or nothing if `TRIES` attempts make none."""
        for _ in range(TRIES):
            child = self.mutated(rng, parent)
            if child not in seen:
                yield Candidate(child, origin)
                return

    def mutated(self, rng: random.Random, parent: Factors) -> Factors:
        """Return ``parent`` with some factors drawn from the grid between their neighbours.

        The factors are drawn from the first to the last, so the left neighbour may be a new one.
        """
        genes = list(parent)
        for i in range(len(genes)):
            if rng.random() >= MUTATED:
                continue
            low = max(genes[i - 1], self.least(i)) if i else 1.0
            high = genes[i + 1] if i + 1 < len(genes) else self.highest
            first, last = math.ceil(low * GRID - 1e-9), math.floor(high * GRID + 1e-9)
            if first <= last:
                genes[i] = min(max(rng.randint(first, last) / GRID, low), high)
        return tuple(genes)

    def _crossed(self, rng: random.Random, mother: Factors, father: Factors) -> Iterator[Factors]:
        """Yield ``mother`` with more and more factors of ``father`` while the factors rise."""
        if mother == father:
            return
        for _ in range(TRIES):
            genes = list(mother)
            for i, gene in enumerate(father):
                if rng.random() < VISITED and rng.random() < SWAPPED:
                    genes[i] = gene
                    if rises(genes):
                        yield tuple(genes)
