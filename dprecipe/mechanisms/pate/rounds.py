"""Rounds of queries with constants of their own: their events, and the most that these cost.

A round has its number of queries, and noise of its own for its checks and its answers. One Gaussian filter limits Σ μ²
of all rounds, so it need not be known in advance how many queries of each round are answered.

Source: Papernot et al. 2018, section 4.2 and appendix A (Interactive-GNMax).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.schema import InteractiveGnMax, Pate, VotingRound
from dprecipe.privacy.events import Charge, Event


def split_queries(queries: int, rounds: int) -> tuple[int, ...]:
    """Splits `queries` into `rounds` rounds of about the same size."""
    edges = [round(queries * number / rounds) for number in range(rounds + 1)]
    return tuple(end - first for first, end in itertools.pairwise(edges))


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a recipe that gives them constants of their own."""

    parts: tuple[VotingRound, ...]
    selection_multiplier: float
    """The noise of checks in rounds that state none."""

    @staticmethod
    def of(spec: Pate) -> Rounds | None:
        """Returns the rounds of a recipe; None where all have the same constants, or there is only one round."""
        aggregator, selection = spec.aggregator, spec.selection
        if not isinstance(aggregator, InteractiveGnMax) or isinstance(aggregator.interaction.rounds, int):
            return None
        return Rounds(aggregator.interaction.rounds, 0.0 if selection is None else float(selection.noise.multiplier))

    @property
    def min_queries(self) -> int:
        """The fewest queries: those of all rounds but the last, and one more."""
        return sum(part.queries or 0 for part in self.parts[:-1]) + 1

    def sizes(self, queries: int) -> tuple[int, ...]:
        """Returns the queries of each round; one each where `queries` are too few for the rounds."""
        if queries < self.min_queries:
            return (1,) * len(self.parts)
        return (*(part.queries or 1 for part in self.parts[:-1]), queries - self.min_queries + 1)

    def events(self, multiplier: float) -> Iterator[tuple[NoisyThreshold, NoisyMax]]:
        """Yields the check and the answer of each round. Answers have noise `multiplier` in rounds that state none."""
        for part in self.parts:
            check = self.selection_multiplier if part.selection_multiplier is None else part.selection_multiplier
            yield (
                NoisyThreshold(check),
                NoisyMax("gaussian", multiplier if part.multiplier is None else part.multiplier),
            )

    def charges(self, multiplier: float, queries: int, answers: int) -> tuple[Charge, ...]:
        """Returns the most that `queries` queries release when `answers` of them are answered: those that cost most."""
        counts: Counter[Event] = Counter()
        pairs = list(zip(self.sizes(queries), self.events(multiplier), strict=True))
        for size, (check, _) in pairs:
            counts[check] += size
        left = answers
        for size, (_, answer) in sorted(pairs, key=lambda pair: pair[1][1].noise_multiplier):
            counts[answer] += min(size, left)
            left -= min(size, left)
        return _listed(counts)

    def part(self, multiplier: float, queries: int, answers: int, share: float) -> tuple[Charge, ...]:
        """Returns about this share of all rounds' checks and answers, and at least one of each."""
        counts: Counter[Event] = Counter()
        for size, (check, answer) in zip(self.sizes(queries), self.events(multiplier), strict=True):
            checks = max(1, int(size * share))
            counts[check] += checks
            counts[answer] += max(1, checks * answers // queries)
        return _listed(counts)


def _listed(counts: Counter[Event]) -> tuple[Charge, ...]:
    """Lists checks first, then answers, each in the order of the rounds."""
    ordered = sorted(counts.items(), key=lambda item: not isinstance(item[0], NoisyThreshold))
    return tuple(Charge(event, count) for event, count in ordered if count)
