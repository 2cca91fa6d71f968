"""How LongRoPE's search makes candidates: seeds, mutation, crossover. Knows nothing of models.

A candidate is one factor per frequency, lambda_0 .. lambda_(d/2-1), by which it is slowed, from 1
to 1 + s and never falling from a frequency to the next, since a slower one has seen less
of the circle (arXiv:2402.13753). New genes lie on a grid.

LongRoPE2 (arXiv:2502.20082) bounds the factors by a critical frequency c, the last one that
completed a turn in training or an earlier one: lambda_i is at least s from c on, where angles would
be new otherwise, and may be as much as 2s. Its seeds follow NTK up to c. Rules and seeds are those
of the search script in the first author's fork of the published code (J-shang/LongRoPE), which
leaves the upper bound to the caller.

Every generation has its own random generator, seeded by (seed, generation). So what is made
depends on the seed and on what was evaluated before, and a search that was stopped makes the same
candidates again.
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
"""Steps of the grid between 1 and 2."""
MUTATED, VISITED, SWAPPED = 0.3, 0.3, 0.5
REACHES = 8
"""How many seeds LongRoPE2 begins with beside YaRN's, from s on in steps of s / 16."""
TRIES = 20
"""Attempts at a child that nobody has evaluated, before another way is taken."""


class Candidate(NamedTuple):
    """One set of factors, and how it came about."""

    factors: Factors
    origin: str


class Scored(NamedTuple):
    """A candidate with its mean loss; infinity where it is no number."""

    factors: Factors
    nll: float


def seeds(spectrum: Frequencies, factor: float, original_length: int) -> list[Candidate]:
    """PI, NTK, YaRN, and the blend of factors that the authors' code begins with.

    YaRN blends frequencies, g w + (1 - g) w / s; that code blends factors by the same ramp,
    g + (1 - g) s.
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
    # Rounded, so that equal factors are equal to the last bit, and the factors rise.
    return [Candidate(tuple(round(f, 9) for f in fs), name) for name, fs in factors_of.items()]


def critical_frequency(dim: int, theta: float, original_length: int) -> int:
    """The last frequency that completes a turn in ``original_length`` tokens, counted from 0.

    At least 1, so that one remains before it, and one of the ``dim`` / 2 that there are.
    """
    index = math.ceil(rotations_index(1.0, dim, theta, original_length)) - 1
    return min(max(index, 1), dim // 2 - 1)


def bounded_seeds(
    spectrum: Frequencies, factor: float, original_length: int, critical: int
) -> list[Candidate]:
    """LongRoPE2's: t^(i/c) up to the critical frequency c, then t and a little more for each.

    t goes from s on in steps of s / 16, and a little is t / 640: 4 and 0.1 in the authors' search
    for s = 64. The first seed is YaRN's factors, raised to s from c on.
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
    """Whether no factor is below the one before it."""
    return all(a <= b for a, b in itertools.pairwise(factors))


@dataclass(frozen=True)
class Evolution:
    """The rules of one search."""

    seeds: list[Candidate]
    factor: float
    population: int
    seed: int
    critical: int | None = None
    """From this frequency on factors are at least ``factor`` (LongRoPE2); None: 1 is enough."""

    @property
    def highest(self) -> float:
        """What no factor exceeds."""
        return 1 + self.factor if self.critical is None else 2 * self.factor

    def least(self, index: int) -> float:
        """What the factor of this frequency is at least."""
        return self.factor if self.critical is not None and index >= self.critical else 1.0

    @property
    def parents(self) -> int:
        """How many of the best have children."""
        return max(self.population // 2, 2)

    @property
    def children(self) -> int:
        """How many mutations, and how many crossovers, a generation has."""
        return max(self.population // 4, 1)

    def generation(self, number: int, known: Sequence[Scored]) -> Iterator[Candidate]:
        """Candidates number ``number``; ``known`` are those of all generations before it.

        Generation 0 is the seeds and mutations of them, each seed in turn.
        """
        rng = random.Random(f"{self.seed}:{number}")
        seen = {scored.factors for scored in known}
        made = self._first(rng, seen) if number == 0 else self._next(rng, seen, known)
        for candidate in made:
            if candidate.factors not in seen:
                seen.add(candidate.factors)
                yield candidate

    def _first(self, rng: random.Random, seen: set[Factors]) -> Iterator[Candidate]:
        yield from self.seeds
        for index in range(self.population - len(self.seeds)):
            seed = self.seeds[index % len(self.seeds)]
            yield from self._mutations(rng, seen, seed.factors, f"mutation of {seed.origin}")

    def _next(
        self, rng: random.Random, seen: set[Factors], known: Sequence[Scored]
    ) -> Iterator[Candidate]:
        best = sorted(known, key=lambda scored: scored.nll)[: self.parents]  # stable: first wins
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
        """One mutation that nobody has seen, or nothing if that is hard to find."""
        for _ in range(TRIES):
            child = self.mutated(rng, parent)
            if child not in seen:
                yield Candidate(child, origin)
                return

    def mutated(self, rng: random.Random, parent: Factors) -> Factors:
        """Some genes, drawn again from the grid between their neighbours, the left one first."""
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
        """The mother, with more and more genes of the father's as long as the factors rise."""
        if mother == father:
            return
        for _ in range(TRIES):
            genes = list(mother)
            for i, gene in enumerate(father):
                if rng.random() < VISITED and rng.random() < SWAPPED:
                    genes[i] = gene
                    if rises(genes):
                        yield tuple(genes)
