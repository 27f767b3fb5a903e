"""Compares the noise of an observed run, and the orders and stops that runs draw, with the event that is charged.

Axes: P parameters, T steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.train.descent import Floats, State
from dprecipe.mechanisms.pnsgd.train.observed_run import SeenAttempt, SeenRun
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.audit.results import Correlation, Distance, Equality, Frequency, TestEvidence, Variance

Found = tuple[str, str, TestEvidence]

ORDERS, ORDERED = 4_000, 5
"""Number of random orders that are drawn, and of records in each."""
SAMPLE = 50_000
"""Number of draws of noise whose distribution is compared; the scale is measured on all."""


def _scores(plan: Plan, seen: SeenRun, attempt: SeenAttempt) -> Floats:
    """Returns the noise of each step, (T, P): standard normal numbers if it has the distribution and the scale of the
    charged event."""
    from scipy import special

    own, short = plan.as_plan_of(PnsgdPlan), seen.own
    claims = {
        (stage.learning_rate, stage.noise_scale): multiplier * own.descent.proven.gradient_sensitivity
        for stage, (_, multiplier, _, _) in zip(own.stages, own.event.stages, strict=True)
    }
    ends = np.cumsum([stage.steps for stage in short.stages])
    scores = []
    for step in attempt.steps:
        stage = short.stages[int(np.searchsorted(ends, step.number, side="right"))]
        claimed = claims[stage.learning_rate, stage.noise_scale] / own.descent.batch_size
        scores.append(step.noise / (-stage.learning_rate * claimed))
    noise: Floats = np.array(scores)
    if own.descent.family == "gaussian":
        return noise
    return np.asarray(-np.sign(noise) * special.ndtri(np.exp(-np.abs(noise)) / 2))


def compare_noise(plan: Plan, seen: SeenRun) -> Iterator[Found]:
    """Tests the noise of an observed run: its scale, its distribution, its independence, after a resume too."""
    from scipy import stats

    tables = [_scores(plan, seen, attempt) for attempt in seen.attempts]
    z_TP = np.concatenate(tables)
    numbers = z_TP.reshape(-1)
    family = plan.as_plan_of(PnsgdPlan).descent.family
    yield (
        "noise_scale",
        "the noise of a step has the scale that the charged event claims",
        Variance(sum_squares=float(np.square(numbers).sum()), degrees=numbers.size),
    )
    sample = numbers[:SAMPLE]
    yield (
        "noise_distribution",
        f"the noise of a step is {family}",
        Distance(statistic=float(stats.kstest(sample, "norm").statistic), sample=sample.size),
    )
    pairs = {
        "noise_steps": ("the noise of a step is independent of that of the step before", z_TP[0:-1:2], z_TP[1::2]),
        "noise_parameters": ("the noise of a parameter is independent of that of the next",
                             z_TP[:, 0:-1:2], z_TP[:, 1::2]),
    }  # fmt: skip
    if len(tables) > 1:
        numbers_of = [{step.number: row for row, step in enumerate(a.steps)} for a in seen.attempts]
        again = [number for number in numbers_of[0] if number in numbers_of[1]]
        one, other = (tables[side][[numbers_of[side][number] for number in again]] for side in (0, 1))
        text = "a resumed run draws new noise for the steps that a crash took"
        pairs["noise_resumed"] = (text, one, other)
        rows = min(map(len, tables))
        text = "a resumed run draws other noise than the attempt before"
        pairs["noise_attempts"] = (text, tables[0][:rows], tables[1][:rows])
    for name, (text, one, other) in pairs.items():
        count = min(one.size, other.size)
        if count:
            product = float(one.reshape(-1)[:count] @ other.reshape(-1)[:count])
            yield name, text, Correlation(sum_products=product, pairs=count)


def compare_draws(plan: Plan) -> Iterator[Found]:
    """Tests orders and lengths of runs, as every run draws them."""
    own = plan.as_plan_of(PnsgdPlan)
    permuted, random_stop = own.descent.order == "permuted", own.descent.stop == "random"
    steps = own.event.steps
    start = np.zeros(1)
    states = [
        State.fresh(start, ORDERED, steps, Secrets(), permuted=permuted, random_stop=random_stop)
        for _ in range(ORDERS if permuted or random_stop else 1)
    ]
    orders = [list(range(ORDERED)) if state.order is None else state.order.tolist() for state in states]
    wrong = sum(sorted(order) != list(range(ORDERED)) for order in orders)
    wrong += 0 if permuted else sum(order != list(range(ORDERED)) for order in orders)
    yield (
        "order",
        "an order has each record once" if permuted else "the records are taken in the order of the file",
        Equality(differing=wrong, compared=len(orders)),
    )
    if permuted:
        for name, text, hits, share in (
            ("order_first", "the first record comes first as often as any other",
             sum(order[0] == 0 for order in orders), 1 / ORDERED),
            ("order_last", "the first record comes last as often as any other",
             sum(order[-1] == 0 for order in orders), 1 / ORDERED),
            ("order_neighbours", "two records that are neighbours in the file are so in the order as often as others",
             sum(abs(order.index(0) - order.index(1)) == 1 for order in orders), 2 / ORDERED),
        ):  # fmt: skip
            yield name, text, Frequency(successes=hits, trials=len(orders), expected=share)
    if random_stop:
        half = steps // 2
        early, end = sum(state.stop <= half for state in states), sum(state.stop == steps for state in states)
        for name, text, hits, share in (
            ("stop_half", "a random stop is in the first half of the steps as often as uniform numbers are", early,
             half / steps),
            ("stop_last", "a random stop is the last step as often as any other", end, 1 / steps),
        ):  # fmt: skip
            yield name, text, Frequency(successes=hits, trials=len(states), expected=share)
