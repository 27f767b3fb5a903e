"""A recipe's queries as arithmetic: their events, how many fit the budget, and how much noise makes them fit.

Source: Papernot et al. 2018, Algorithms 1 and 2; the accountants and the filter cite theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.stages import find_overspent_stages
from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.pate import rules
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.rounds import Rounds, split_queries
from dprecipe.mechanisms.pate.schema import InteractiveGnMax, Pate
from dprecipe.mechanisms.pate.votes_rules import count_pool
from dprecipe.noisy_sum import solve
from dprecipe.privacy import rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.screen import keeps

MULTIPLIER = "mechanism.aggregator.noise.multiplier"
SELECTION_MULTIPLIER = "mechanism.aggregator.selection.noise.multiplier"
QUERIES = "mechanism.queries.max"
MAX_NOISE = 1e6
"""The largest noise multiplier of a recipe: see `dprecipe.noise.schema`."""
LARGE_EPSILON = 10.0
"""The largest ε that a remedy suggests: more would promise little."""

_INSIDE = 1 - 1e-9
"""The share of a budget's largest μ that is used, so that rounding in sums can't exceed the budget."""
_CLOSE = 1e-6
"""Relative precision of that μ when there are paid steps: composing it with them takes time."""


class PateRun:
    """A recipe's queries as arithmetic."""

    def __init__(self, spec: Pate, facts: Facts) -> None:
        self.spec, self.facts = spec, facts
        noise, selection = spec.aggregator.noise, spec.selection
        self.family = noise.family
        self.multiplier = None if noise.multiplier == "auto" else noise.multiplier
        self.queries = None if spec.queries.max == "auto" else spec.queries.max
        self.selection_multiplier = None if selection is None else float(selection.noise.multiplier)
        self.budget, self.relation = facts.budget, Neighbouring(facts.budget.neighbouring)
        self.cap = math.inf if facts.cap is None else facts.cap

    @property
    def sanitising(self) -> tuple[Charge, ...]:
        """The charge for publishing the data-dependent ε; empty where it stays private."""
        chosen = self.spec.sanitize
        if chosen is None:
            return ()
        return (Charge(SanitisedCost(chosen.beta, chosen.multiplier, chosen.scale_multiplier), 1),)

    @cached_property
    def others(self) -> tuple[Charge, ...]:
        """The charges besides the votes: paid steps of preprocessing, and publishing the data-dependent ε."""
        return (*self.facts.stage_charges, *self.sanitising)

    def answers(self, queries: int) -> int:
        """Returns the most of `queries` queries that can be answered."""
        max_answers = self.spec.queries.answers
        return queries if max_answers is None or self.selection_multiplier is None else min(max_answers, queries)

    @cached_property
    def rounds(self) -> Rounds | None:
        """The rounds that have constants of their own; None: all queries have the same."""
        return Rounds.of(self.spec)

    def list_rounds(
        self, multiplier: float, queries: int
    ) -> Iterator[tuple[int, tuple[NoisyThreshold, NoisyMax], float | None]]:
        """Yields, for each round of an interaction, its queries, its check and answer, and the threshold it states."""
        if not isinstance(self.spec.aggregator, InteractiveGnMax) or self.selection_multiplier is None:
            return
        count = self.spec.aggregator.interaction.rounds
        if self.rounds is not None:
            thresholds = [part.threshold for part in self.rounds.parts]
            yield from zip(self.rounds.sizes(queries), self.rounds.events(multiplier), thresholds, strict=True)
        elif isinstance(count, int):
            pair = NoisyThreshold(self.selection_multiplier), NoisyMax(self.family, multiplier)
            yield from ((size, pair, None) for size in split_queries(queries, count))

    def votes(self, multiplier: float, queries: int, answers: int) -> tuple[Charge, ...]:
        """Returns the most that `queries` queries release when `answers` of them are answered."""
        if self.rounds is not None:
            return self.rounds.charges(multiplier, queries, answers)
        answered = Charge(NoisyMax(self.family, multiplier), answers)
        if self.selection_multiplier is None:
            return (answered,)
        return Charge(NoisyThreshold(self.selection_multiplier), queries), answered

    def check(self) -> list[Finding]:
        """Checks that the recipe's numbers keep the budget.

        Counts all queries where every one is answered, else the first alone.
        """
        if math.isinf(self.cap) or self.multiplier is None:
            return []
        queries = 1 if self.queries is None or self.selection_multiplier is not None else self.queries
        charges = (*self.votes(self.multiplier, queries, queries), *self.others)
        if keeps(charges, self.cap, self.budget.delta, self.relation, self.budget.accountant):
            return []
        return [self._overspent(self.multiplier, queries)]

    def solve(self) -> tuple[float, int, dict[str, float | int]]:
        """Returns the multiplier, the number of queries, and which of them was solved for.

        Raises:
            PlanRefused: as `plan`.
        """
        multiplier, queries = self.multiplier, self.queries
        if multiplier is not None and queries is not None:
            refused = self.check()
            if refused:
                raise PlanRefused(refused)
            return multiplier, queries, {}
        if math.isinf(self.cap):
            raise PlanRefused([_two_free_variables()])
        if queries is not None:
            multiplier = self._solved_multiplier(queries)
            return multiplier, queries, {MULTIPLIER: multiplier}
        if multiplier is not None:
            queries = self._solved_queries(multiplier)
            return multiplier, queries, {QUERIES: queries}
        raise PlanRefused([_two_free_variables()])

    def _solved_multiplier(self, queries: int) -> float:
        multiplier = self.min_multiplier(queries)
        if multiplier is None:
            raise PlanRefused([self._too_tight(queries)])
        if not multiplier >= solve.MIN_NOISE:
            raise PlanRefused([solve.too_loose(f"is met with noise of {multiplier:g} votes, hardly any noise")])
        return multiplier

    def _solved_queries(self, multiplier: float) -> int:
        queries, pool = self.max_queries_within(multiplier), count_pool(self.spec, self.facts.data)
        if queries == 0:
            raise PlanRefused([self._overspent(multiplier, 1)])
        if pool is not None:
            return min(queries, pool)
        if queries > rules.MAX_QUERIES:
            raise PlanRefused([solve.too_loose(f"holds more than {rules.MAX_QUERIES:,} queries at this noise")])
        return queries

    def plan_votes(self, multiplier: float, queries: int) -> tuple[Charge, ...]:
        """Returns the events that the run is planned to release.

        Where not all of them fit: those of the queries that fit even if every one is answered, and one event for what
        the budget leaves beyond them.
        """
        from dprecipe.mechanisms.pate.theory.filter import GaussianFilter

        answers = self.answers(queries)
        everything = self.votes(multiplier, queries, answers)
        if self.rounds is not None:
            return self._plan_rounds(self.rounds, multiplier, queries, answers)
        if math.isinf(self.cap) or self.selection_multiplier is None:
            return everything
        budget = GaussianFilter(self.limit)
        if budget.holds(everything):
            return everything
        max_queries = self.max_queries_within(multiplier)
        guaranteed = self.votes(multiplier, max_queries, min(answers, max_queries))
        rest = budget.rest(guaranteed)
        return guaranteed if rest is None else (*guaranteed, Charge(rest, 1))

    def _plan_rounds(self, rounds: Rounds, multiplier: float, queries: int, answers: int) -> tuple[Charge, ...]:
        """Does as `plan_votes`, with each event of the rounds at least once: a ledger may hold any of them."""
        from dprecipe.mechanisms.pate.theory.filter import GaussianFilter, sum_filter

        most = sum_filter(rounds.charges(multiplier, queries, answers))
        budget = GaussianFilter(most if math.isinf(self.cap) else min(most, self.limit))
        held, over = 0.0, 2.0  # a share that fits, and one that doesn't; a share of 1 is all queries
        while over - held > 0.25 / queries:
            share = min(1.0, (held + over) / 2)
            fits = budget.holds(rounds.part(multiplier, queries, answers, share))
            held, over = (share, over) if fits else (held, share)
            if held == 1.0:
                break
        guaranteed = rounds.part(multiplier, queries, answers, held)
        rest = budget.rest(guaranteed)
        return guaranteed if rest is None else (*guaranteed, Charge(rest, 1))

    @cached_property
    def limit(self) -> float:
        """The largest Σ μ² of the votes' Gaussian events that fits the budget, together with paid steps and what is
        published; 0: nothing fits."""
        from dprecipe.mechanisms.pate.events import FilterRest
        from dprecipe.privacy import gdp

        budget, cap = self.budget, self.cap
        high = gdp.mu_for(cap, budget.delta)
        if budget.accountant == "pld" and not self.others:
            return (high * _INSIDE) ** 2
        if self.others and self._epsilon(self.others) > cap:
            return 0.0
        low, min_multiplier = 0.0, 1e-9 * high  # by another accountant, next to nothing may fit
        precision = _CLOSE if self.facts.stages else 1e-12
        while high - low > precision * high and high > min_multiplier:
            middle = (low + high) / 2
            within = (Charge(FilterRest(1 / middle), 1), *self.others)
            if self._epsilon(within) <= cap:
                low = middle
            else:
                high = middle
        return (low * _INSIDE) ** 2

    def min_multiplier(self, queries: int) -> float | None:
        """Finds the least noise, in six digits, with which `queries` queries fit if as many are answered as can be.

        None: no noise is enough.
        """
        if self.family == "laplace":
            return _in_range(self._min_laplace(queries))
        if self.rounds is not None:
            return self._min_of_rounds(queries)
        return self._min_gaussian(2 * self.answers(queries), queries * self._check_square)

    def _min_of_rounds(self, queries: int) -> float | None:
        """Does as `min_multiplier`, for the rounds that state no noise; None where no noise of theirs is enough."""
        if self._sum(MAX_NOISE, queries) > self.limit:
            return None
        low, high = 1e-3, MAX_NOISE
        while high > low * (1 + 1e-9):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._sum(middle, queries) <= self.limit else (middle, high)
        return _in_range(rounding.round_up(high))

    def _sum(self, multiplier: float, queries: int) -> float:
        """Returns Σ μ² of `queries` queries, with the answers that cost most."""
        from dprecipe.mechanisms.pate.theory.filter import sum_filter

        return sum_filter(self.votes(multiplier, queries, self.answers(queries)))

    def _min_laplace(self, queries: int) -> float:
        from dprecipe.privacy import calibrate

        budget = self.budget
        try:
            return calibrate.noise_multiplier(
                lambda scale: (*self.votes(scale, queries, queries), *self.others),
                self.cap,
                budget.delta,
                self.relation,
                budget.accountant,
            )
        except calibrate.CalibrationError as error:
            return math.inf if error.reason == "too_tight" else error.tried

    def _min_gaussian(self, squares: float, beside: float) -> float | None:
        """Finds the least noise σ for which `squares` / σ² + `beside` is within the limit of μ²; None: none is."""
        left = self.limit - beside
        return _in_range(rounding.round_up(math.sqrt(squares / left))) if left > 0 else None

    def max_queries_within(self, multiplier: float) -> int:
        """Finds the most queries that fit even if as many are answered as can be; 0: not one fits."""
        if self.family == "laplace":
            from dprecipe.privacy import calibrate

            budget = self.budget
            event = NoisyMax(self.family, multiplier)
            try:
                return calibrate.calibrate_count(
                    event, self.cap, budget.delta, self.relation, budget.accountant, self.others
                )
            except calibrate.CalibrationError as error:
                return int(error.tried)
        if self.rounds is not None:
            return self._max_of_rounds(self.rounds, multiplier)
        check, answer = self._check_square, 2 / multiplier**2
        pairs = int(self.limit / (check + answer))
        answers = self.answers(pairs)
        return pairs if answers == pairs else int((self.limit - answers * answer) / check)

    def _max_of_rounds(self, rounds: Rounds, multiplier: float) -> int:
        """Does as `max_queries_within`, for rounds: the last one takes what the others leave."""
        low, high = rounds.min_queries, 2 * rules.MAX_QUERIES + rounds.min_queries
        if self._sum(multiplier, low) > self.limit:
            return 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._sum(multiplier, middle) <= self.limit else (low, middle)
        return low

    @property
    def _check_square(self) -> float:
        """The μ² of one check; 0 where there is none."""
        return 0.0 if self.selection_multiplier is None else 1 / self.selection_multiplier**2

    def _epsilon(self, charges: Sequence[Charge]) -> float:
        from dprecipe.privacy import accountants

        return accountants.epsilon(charges, self.budget.delta, self.relation, self.budget.accountant)

    def _overspent(self, multiplier: float, queries: int) -> Finding:
        """Says by how much the budget is overspent, and which single change would mend it."""
        if (finding := find_overspent_stages(self.facts)) is not None:
            return finding
        max_queries, min_multiplier = self.max_queries_within(multiplier), self.min_multiplier(queries)
        cost, one = self.cost(multiplier, queries, queries), self.cost(multiplier, 1, 1)
        remedies = [f"lower {QUERIES} to {max_queries}"] if max_queries else []
        if min_multiplier is not None:
            remedies.append(f"set {MULTIPLIER} to {min_multiplier:.6g}")
        elif (check_multiplier := self._min_selection(multiplier)) is not None:
            remedies.append(f"set {SELECTION_MULTIPLIER} to {check_multiplier:.6g}")
        if self.sanitising and self.limit == 0:
            remedies.append("raise mechanism.sanitize.multiplier and mechanism.sanitize.scale_multiplier")
        if not max_queries and cost <= LARGE_EPSILON:
            remedies.append(f"raise budget.epsilon to {cost:.6g}")
        spends = f"spends ε = {cost if max_queries else one:.4g} of {self.cap:g} at δ = {self.budget.delta:g}"
        return Finding(
            "P102" if max_queries else "P106",
            spends if max_queries else f"not even one query fits: one query {spends}",
            ", or ".join(remedies) or "raise budget.epsilon or budget.delta",
            "budget.epsilon",
        )

    def cost(self, multiplier: float, queries: int, answers: int) -> float:
        """Returns ε of `queries` queries and `answers` of them answered, rounded up."""
        charges = (*self.votes(multiplier, queries, answers), *self.others)
        return rounding.round_up(self._epsilon(charges))

    def _min_selection(self, multiplier: float) -> float | None:
        """Finds the least noise of the check with which one query fits; None: no noise is enough."""
        if self.selection_multiplier is None or self.rounds is not None:
            return None
        return self._min_gaussian(1, 2 / multiplier**2)

    def _too_tight(self, queries: int) -> Finding:
        if (finding := find_overspent_stages(self.facts)) is not None:
            return finding
        if self.selection_multiplier is None or self.limit == 0:
            return Finding(
                "P106",
                "no noise of the votes meets this budget: the run's other releases spend more",
                ("raise the multipliers of mechanism.sanitize, or " if self.sanitising else "")
                + ("raise the noise of the paid steps of data.preprocess, or " if self.facts.stages else "")
                + "raise budget.epsilon or budget.delta",
                "budget.epsilon",
            )
        if self.rounds is not None:
            return Finding(
                "P106",
                f"no noise of the answers meets this budget: the checks of {queries:,} queries, and the rounds that "
                "state their own noise, spend more",
                "raise the multipliers of mechanism.aggregator.interaction.rounds, or lower their queries",
                "budget.epsilon",
            )
        half = int(self.limit * self.selection_multiplier**2 / 2)
        check_multiplier = self._min_gaussian(queries, self.limit / 2)
        remedies = [f"lower {QUERIES} to {half}"] if half else []
        remedies += [] if check_multiplier is None else [f"set {SELECTION_MULTIPLIER} to {check_multiplier:.6g}"]
        return Finding(
            "P106",
            f"no noise of the answers meets this budget: the {queries:,} checks by themselves spend more (with these "
            "remedies checks take half of it)",
            ", or ".join(remedies) or "raise budget.epsilon or budget.delta",
            "budget.epsilon",
        )


def _in_range(multiplier: float) -> float | None:
    """Returns the multiplier if a recipe may state it; None: it is too large."""
    return multiplier if multiplier <= MAX_NOISE else None


def _two_free_variables() -> Finding:
    return Finding(
        "R302",
        "more than one of noise, queries and budget is `auto`: one of them can be solved from the other two",
        f"give a number to all but one of {MULTIPLIER}, {QUERIES} and budget.epsilon",
        MULTIPLIER,
    )
