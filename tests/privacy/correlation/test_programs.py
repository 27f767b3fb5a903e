"""Small programs on neighbouring data, simulated: what an attacker gains is below the claim, whatever they adapt to.

The attacker knows all but the noise, and the coins of sampling. Losses are exact, so that δ is a mean of simulations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.correlation.series import column_of, inverse_of
from dprecipe.privacy.correlation.strategies import Strategy, make_bands
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian
from tests.privacy.correlation.families import dense, of

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
RUNS = 10_000
DEVIATIONS = 4.5
EPSILONS = (0.0, 0.3, 1.0, 2.0)

Move = Callable[[NDArray], NDArray]
"""The contribution of a unit, from the sums released so far, (runs, steps): a number from -1 to 1 for each run."""
MOVES: dict[str, Move] = {
    "constant": lambda seen: np.ones(len(seen)),
    "sign": lambda seen: np.sign(seen.sum(axis=1)),
    "threshold": lambda seen: np.where(seen.sum(axis=1) > 0.5, 1.0, -1.0),
    "smooth": lambda seen: np.tanh(seen[:, -1:].sum(axis=1)),
    "alternating": lambda seen: np.full(len(seen), (-1.0) ** seen.shape[1]),
}


def others(seen: NDArray) -> NDArray:
    """The sum of all other units, which depends on what was released, too."""
    return np.cos(seen).sum(axis=1)


def release(strategy: Strategy, noise: float, steps: int, unit: NDArray, move: Move, seed: int) -> NDArray:
    """The sums of many runs, (runs, steps); `unit`: True at the steps and in the runs where the unit takes part."""
    z_NT = np.random.default_rng(seed).normal(size=(len(unit), steps))
    w_NT = z_NT @ dense(inverse_of(strategy, steps)).T
    seen_NT = np.zeros((len(unit), 0))
    for t in range(steps):
        sums_N = others(seen_NT) + unit[:, t] * move(seen_NT) + noise * w_NT[:, t]
        seen_NT = np.column_stack([seen_NT, sums_N])
    return seen_NT


def log_density(
    strategy: Strategy, noise: float, seen_NT: NDArray, unit_T: NDArray, move: Move, sign: float = 1.0
) -> NDArray:
    """Log densities of the released sums, up to a constant, where the unit takes part at certain steps: C times what
    nothing but noise explains is white, and C has determinant 1."""
    steps = seen_NT.shape[1]
    known_NT = np.column_stack([others(seen_NT[:, :t]) + sign * unit_T[t] * move(seen_NT[:, :t]) for t in range(steps)])
    white_NT = (seen_NT - known_NT) @ dense(column_of(strategy, steps)).T
    result: NDArray = -(white_NT**2).sum(axis=1) / (2 * noise**2)
    return result


def estimate(loss_N: NDArray, epsilon: float) -> tuple[float, float]:
    """δ(ε) from losses under the first data set, and the deviation of that mean."""
    terms = np.maximum(-np.expm1(np.minimum(epsilon - loss_N, 0.0)), 0.0)
    return float(terms.mean()), float(terms.std() / math.sqrt(len(terms)))


def check_below(losses: list[NDArray], charges: list[Charge], relation: Neighbouring) -> float:
    """Returns the largest share of the claim that is attained, in either direction."""
    attained = 0.0
    for epsilon, loss_N in itertools.product(EPSILONS, losses):
        claim = accountants.delta(charges, epsilon, relation, "pld")
        delta, deviation = estimate(loss_N, epsilon)
        assert delta <= claim + DEVIATIONS * deviation + 1e-6, (epsilon, delta, claim)
        attained = max(attained, delta / claim)
    return attained


def pass_losses(event: CycleGaussian, passes: int, place: int, move: Move, replaced: bool) -> list[NDArray]:
    steps = event.batches * passes
    unit_T = np.arange(steps) % event.batches == place
    nothing_T = np.zeros(steps, dtype=bool)
    noise, strategy = float(event.noise_multiplier), event.strategy
    losses = []
    for seed, used in enumerate((True, False)):
        unit_NT = np.tile(unit_T if used or replaced else nothing_T, (RUNS, 1))
        moved: Move = move if used else (lambda seen: -move(seen))
        seen_NT = release(strategy, noise, steps, unit_NT, moved, seed)
        first_N = log_density(strategy, noise, seen_NT, unit_T, move)
        second_T = unit_T if replaced else nothing_T
        loss_N = first_N - log_density(strategy, noise, seen_NT, second_T, move, -1.0)
        losses.append(loss_N if used else -loss_N)
    return losses


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(
    ("previous", "batches", "passes", "noise"), [(0.9, 3, 2, 3.0), (1.0, 2, 3, 5.0), (0.5, 1, 4, 3.0)]
)
def test_passes_in_a_fixed_order(move: str, previous: float, batches: int, passes: int, noise: float) -> None:
    events = [CycleGaussian(noise, previous, batches, number) for number in range(passes)]
    charges = [Charge(event, 1) for event in events]
    for relation, replaced in ((ADD, False), (REPLACE, True)):
        attained = [
            check_below(pass_losses(events[0], passes, place, MOVES[move], replaced), charges, relation)
            for place in range(batches)
        ]
        if move == "constant":  # which attains the claim, at the first place of the order
            assert attained[0] > 0.9
            assert attained[0] >= max(attained)


def scenarios(parts: int, cycles: int, rate: float) -> list[tuple[float, NDArray]]:
    """Probabilities of the steps at which a unit takes part: its part, and a coin in each cycle."""
    found = []
    for part in range(parts):
        for coins in itertools.product((False, True), repeat=cycles):
            weight = math.prod(rate if coin else 1 - rate for coin in coins) / parts
            steps_T = np.zeros(parts * cycles, dtype=bool)
            steps_T[part::parts] = coins
            found.append((weight, steps_T))
    return found


def mixed_losses(
    strategy: Strategy, noise: float, laws: list[tuple[float, NDArray]], move: Move, replaced: bool = False
) -> list[NDArray]:
    """Losses of runs whose unit takes part by a law, in both directions."""
    steps = len(laws[0][1])
    patterns_ST = np.array([unit_T for _, unit_T in laws])
    weights_S = np.array([weight for weight, _ in laws])
    losses = []
    for seed, used in enumerate((True, False)):
        drawn_N = np.random.default_rng(seed + 10).choice(len(laws), size=RUNS, p=weights_S)
        unit_NT = patterns_ST[drawn_N] if used or replaced else np.zeros((RUNS, steps), dtype=bool)
        moved: Move = move if used else (lambda seen: -move(seen))
        seen_NT = release(strategy, noise, steps, unit_NT, moved, seed)

        def mix(sign: float) -> NDArray:
            logs = [
                math.log(weight) + log_density(strategy, noise, seen_NT, unit_T, move, sign)  # noqa: B023
                for weight, unit_T in laws
            ]
            result: NDArray = np.logaddexp.reduce(logs)
            return result

        second_N = mix(-1.0) if replaced else log_density(strategy, noise, seen_NT, np.zeros(steps), move)
        losses.append(mix(1.0) - second_N if used else second_N - mix(1.0))
    return losses


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(("bands", "cycles", "rate", "noise"), [(2, 2, 0.3, 1.0), (3, 1, 0.5, 1.5), (2, 3, 0.1, 0.8)])
def test_cycles_of_parts(move: str, bands: int, cycles: int, rate: float, noise: float) -> None:
    strategy = make_bands(bands, 0.8)
    charges = [Charge(BandedGaussian(noise, rate, strategy.bands), cycles)]
    laws = scenarios(bands, cycles, rate)
    attained = check_below(mixed_losses(strategy, noise, laws, MOVES[move]), charges, ADD)
    if move == "constant":
        assert attained > 0.4  # a unit in the last part has shorter columns at the end
    check_below(mixed_losses(strategy, noise, laws, MOVES[move], replaced=True), charges, REPLACE)


def test_a_unit_known_to_be_in_the_first_part_attains_the_claim() -> None:
    """The account gives away the part."""
    strategy, noise, rate = make_bands(2, 0.8), 1.0, 0.3
    laws = [(2 * weight, unit_T) for weight, unit_T in scenarios(2, 2, rate) if not unit_T[1::2].any()]
    total = sum(weight for weight, _ in laws)
    laws = [(weight / total, unit_T) for weight, unit_T in laws]
    charges = [Charge(BandedGaussian(noise, rate, strategy.bands), 2)]
    assert check_below(mixed_losses(strategy, noise, laws, MOVES["constant"]), charges, ADD) > 0.5


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_wrong_poisson_over_all"))
def test_batches_from_all_units_are_not_covered(inputs: dict, value: float, tolerance: float) -> None:
    """Steps that share noise may then have the same unit: by quadrature, δ is far above what two steps by themselves
    would cost."""
    sigma, rate, epsilon, matrix = inputs["multiplier"], inputs["rate"], inputs["eps"], np.array(inputs["C"])
    x_N = np.arange(-9.0, 11.0, 0.02)
    first, second = np.meshgrid(x_N, x_N, indexing="ij")

    def density(mean: NDArray) -> NDArray:
        result: NDArray = stats.norm.pdf(first, mean[0], sigma) * stats.norm.pdf(second, mean[1], sigma)
        return result

    without, used = density(np.zeros(2)), np.zeros_like(first)
    for coins in itertools.product((0, 1), repeat=2):
        weight = math.prod(rate if coin else 1 - rate for coin in coins)
        used += weight * density(matrix @ np.array(coins))
    pairs = ((used, without), (without, used))
    exact = max(float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum()) * 4e-4 for p, q in pairs)
    assert exact == pytest.approx(value, rel=tolerance)
    assert exact > 4 * accountants.delta([Charge(PoissonGaussian(rate, sigma), 2)], epsilon, ADD, "pld")


def test_an_order_that_changes_exceeds_the_claim() -> None:
    """The unit is last in one pass and first in the next. The same estimate finds it."""
    events = [CycleGaussian(2.0, 0.5, 3, number) for number in range(2)]
    unit_T = np.array([False, False, True, True, False, False])
    losses = mixed_losses(events[0].strategy, 2.0, [(1.0, unit_T)], MOVES["constant"])
    with pytest.raises(AssertionError):
        check_below(losses, [Charge(event, 1) for event in events], ADD)
