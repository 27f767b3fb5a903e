"""Sensitivities: golden figures, every pattern of small runs, and runs that stop or begin again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from dprecipe.privacy import gdp
from dprecipe.privacy.correlation.sensitivity import ordered_sensitivity, separated_sensitivity
from dprecipe.privacy.correlation.strategies import PreviousStep
from tests.privacy.correlation.families import dense, largest_bound, largest_sign, make_family, of, patterns


def in_order(column: NDArray, batches: int, *attempts: tuple[int, int]) -> float:
    return ordered_sensitivity(column, batches, attempts)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_column_norm", "corr_sensitivity", "corr_jax_sens"))
def test_units_whose_steps_are_apart(inputs: dict, value: float, tolerance: float) -> None:
    column, _ = make_family(inputs["family"], inputs["n"])
    found = separated_sensitivity(column, inputs.get("min_sep", 1), inputs.get("k", 1))
    assert found == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_sensitivity_all_patterns"))
def test_the_worst_of_all_patterns(inputs: dict, value: float, tolerance: float) -> None:
    column, _ = make_family(inputs["family"], inputs["n"])
    steps, separation, most = inputs["n"], inputs["min_sep"], inputs["k"]
    assert separated_sensitivity(column, separation, most) == pytest.approx(value, rel=tolerance)
    assert largest_bound(dense(column), patterns(steps, separation, most)) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize("steps", [1, 2, 5, 9])
@pytest.mark.parametrize(("separation", "most"), [(1, 1), (1, 3), (2, 2), (3, 4), (11, 2)])
def test_random_columns_against_every_pattern(steps: int, separation: int, most: int) -> None:
    rng = np.random.default_rng([steps, separation, most])
    for _ in range(5):
        column = np.sort(rng.uniform(size=steps))[::-1]
        exact = largest_bound(dense(column), patterns(steps, separation, most))
        assert separated_sensitivity(column, separation, most) == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_jax_fixed_epoch"))
def test_the_fixed_epochs_of_another_library(inputs: dict, value: float, tolerance: float) -> None:
    column, _ = make_family(inputs["family"], inputs["n"])
    batches = inputs["n"] // inputs["k"]
    assert in_order(column, batches, (0, inputs["n"])) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_jax_alg4"))
def test_no_more_than_the_quick_bound_of_another_library(inputs: dict, value: float, tolerance: float) -> None:
    column, _ = make_family(inputs["family"], inputs["n"])
    assert separated_sensitivity(column, inputs["min_sep"], inputs["k"]) <= value * (1 + tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_prefix_sensitivity"))
def test_a_run_that_stops(inputs: dict, value: float, tolerance: float) -> None:
    column, _ = make_family(inputs["family"], inputs["n"])
    assert in_order(column, inputs["cycle"], (0, inputs["released"])) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(
    ("inputs", "value", "tolerance"), of("corr_attempts_sensitivity", "corr_attempts_sensitivity_lost_steps")
)
def test_several_attempts(inputs: dict, value: float, tolerance: float) -> None:
    column, _ = make_family(inputs["family"], max(inputs["lengths"]))
    attempts = zip(inputs["starts"], inputs["lengths"], strict=True)
    assert in_order(column, inputs["cycle"], *attempts) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_eps_prefix", "corr_eps_two_attempts"))
def test_what_a_run_costs_that_stops_or_goes_on(inputs: dict, value: float, tolerance: float) -> None:
    column, _ = make_family(inputs["family"], inputs["n"])
    noise = inputs["multiplier"] * in_order(column, inputs["cycle"], (0, inputs["n"]))
    attempts = [(0, inputs["released"])] if "released" in inputs else [(0, inputs["first_attempt"])]
    if "resumed_at" in inputs:
        attempts.append((inputs["resumed_at"], inputs["n"] - inputs["resumed_at"]))
    mu = in_order(column, inputs["cycle"], *attempts) / noise
    assert gdp.epsilon(mu, inputs["delta"]) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_eps_whole_run"))
def test_a_run_is_one_gaussian(inputs: dict, value: float, tolerance: float) -> None:
    moved = 2 if inputs["relation"] == "replace_one" else 1
    assert gdp.epsilon(moved / inputs["multiplier"], inputs["delta"]) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_multiplier_whole_run"))
def test_the_noise_of_a_run_in_closed_form(inputs: dict, value: float, tolerance: float) -> None:
    found = 1 / gdp.mu_for(inputs["eps"], inputs["delta"])
    assert value * (1 - tolerance) <= found <= value * (1 + 1e-9)


def energies(column: NDArray, batches: int, passes: int) -> list[float]:
    """The part of the squared sensitivity that each pass adds."""
    squares = [in_order(column, batches, (0, batches * count)) ** 2 for count in range(1, passes + 1)]
    return [after - before for before, after in itertools.pairwise([0.0, *squares])]


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_cycle_squared_mu", "corr_event_cycle_squared_mu"))
def test_what_a_pass_adds(inputs: dict, value: list[float], tolerance: float) -> None:
    if "family" in inputs:
        batches, passes = inputs["cycle"], inputs["planned_cycles"]
        column, _ = make_family(inputs["family"], batches * passes)
        noise = inputs["multiplier"] * in_order(column, batches, (0, batches * passes))
    else:
        batches, passes, noise = inputs["batches"], inputs["cycles"], inputs["noise_multiplier"]
        taps = np.array(inputs["inverse_taps"])
        column = np.linalg.solve(dense(np.pad(taps, (0, batches * passes - len(taps)))), np.eye(batches * passes)[0])
    found = np.array(energies(column, batches, passes)) / noise**2
    assert found == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(
    ("inputs", "value", "tolerance"), of("corr_event_two_attempts_squared_mu", "corr_event_lost_cycle_squared_mu")
)
def test_attempts_whose_passes_are_numbered_from_zero(inputs: dict, value: float, tolerance: float) -> None:
    batches, passes = inputs["batches"], inputs["cycles"]
    taps = np.array(inputs["inverse_taps"])
    column = np.linalg.solve(dense(np.pad(taps, (0, batches * passes - len(taps)))), np.eye(batches * passes)[0])
    first = inputs["first_attempt_cycles"]
    done = inputs.get("resumed_after", first)
    attempts = (0, first * batches), (done * batches, (passes - done) * batches)
    found = (in_order(column, batches, *attempts) / inputs["noise_multiplier"]) ** 2
    assert found == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("batches", "passes"), [(1, 1), (1, 6), (5, 1), (4, 3), (3, 5)])
def test_passes_add_up_to_the_run(batches: int, passes: int) -> None:
    for previous in (0.0, 0.4, 0.97, 1.0):
        strategy = PreviousStep(previous)
        column = previous ** np.arange(batches * passes)
        assert strategy.sensitivity(batches, passes) == pytest.approx(
            in_order(column, batches, (0, batches * passes)), rel=1e-13
        )
        assert [strategy.pass_energy(batches, number) for number in range(passes)] == pytest.approx(
            energies(column, batches, passes), rel=1e-10
        )


def brute_force(column: NDArray, batches: int, attempts: list[tuple[int, int]]) -> float:
    """Columns of the block-diagonal matrix, summed for each place in the order; columns need not fall."""
    largest = 0.0
    for place in range(batches):
        square = 0.0
        for start, steps in attempts:
            matrix = dense(column[:steps])
            mine = [t for t in range(steps) if (start + t) % batches == place]
            square += float((matrix[:, mine].sum(axis=1) ** 2).sum())
        largest = max(largest, square)
    return largest**0.5


def test_random_attempts_against_every_place() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        batches, steps = int(rng.integers(1, 8)), int(rng.integers(1, 25))
        column = np.concatenate([[1.0], rng.uniform(0, 2, size=steps - 1)])
        attempts = [(int(rng.integers(0, 20)), int(rng.integers(1, steps + 1))) for _ in range(int(rng.integers(1, 4)))]
        found = in_order(column, batches, *attempts)
        assert found == pytest.approx(brute_force(column, batches, attempts), rel=1e-12)


def test_to_begin_again_never_costs_more() -> None:
    rng = np.random.default_rng(4)
    for _ in range(300):
        batches, steps = int(rng.integers(1, 8)), int(rng.integers(2, 30))
        column = np.concatenate([[1.0], rng.uniform(0, 2, size=steps - 1)])
        cuts = [0, *sorted(rng.choice(np.arange(1, steps), size=min(3, steps - 1), replace=False).tolist()), steps]
        attempts = [(start, end - start) for start, end in itertools.pairwise(cuts)]
        whole = in_order(column, batches, (0, steps))
        assert in_order(column, batches, *attempts) <= whole * (1 + 1e-14)
        stops = [in_order(column, batches, (0, end)) for end in range(1, steps + 1)]
        assert stops == sorted(stops)
        twice = in_order(column, batches, (0, cuts[1] + 1), *attempts[1:])
        assert twice >= in_order(column, batches, *attempts)


def test_the_worst_unit_is_in_the_first_batch_even_if_the_column_rises() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        batches, passes = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        column = np.concatenate([[1.0], rng.uniform(0, 3, size=batches * passes - 1)])
        first = sum(np.roll(np.pad(column, (0, batches * passes)), batches * i)[: len(column)] for i in range(passes))
        assert in_order(column, batches, (0, len(column))) == pytest.approx(float(np.linalg.norm(first)), rel=1e-12)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_reshuffled_sensitivity"))
def test_an_order_that_changes_is_not_covered(inputs: dict, value: float, tolerance: float) -> None:
    """A unit that may be at any place of each pass has steps next to each other: more than what is charged."""
    batches, passes = inputs["cycle"], inputs["epochs"]
    column, _ = make_family(inputs["family"], batches * passes)
    anywhere = itertools.product(*(range(e * batches, (e + 1) * batches) for e in range(passes)))
    found = largest_bound(dense(column), anywhere)
    assert found == pytest.approx(value, rel=tolerance)
    assert found > 1.1 * in_order(column, batches, (0, batches * passes))


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_normalised_fixed_order_sensitivity"))
def test_normalised_columns_are_another_matrix(inputs: dict, value: float, tolerance: float) -> None:
    column, _ = make_family(inputs["family"], inputs["n"])
    matrix = dense(column)
    matrix /= np.linalg.norm(matrix, axis=0)
    places = (tuple(range(start, inputs["n"], inputs["cycle"])) for start in range(inputs["cycle"]))
    found = largest_bound(matrix, places)
    assert found == pytest.approx(value, rel=tolerance)
    assert found != pytest.approx(in_order(column, inputs["cycle"], (0, inputs["n"])) / np.linalg.norm(column))


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_signed_abs_bound"))
def test_the_bound_for_any_signs(inputs: dict, value: float, tolerance: float) -> None:
    """The sum over all patterns by which other tests judge. Numbers of either sign stay below it, and vectors are
    between both: why signed columns are refused."""
    matrix = np.array(inputs["C"], dtype=float)
    among = list(patterns(len(matrix), inputs["min_sep"], inputs["k"]))
    assert largest_bound(matrix, iter(among)) == pytest.approx(value, rel=tolerance)
    assert largest_sign(matrix, iter(among)) <= value * (1 + 1e-12)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_signed_scalar_sensitivity"))
def test_the_worst_signs(inputs: dict, value: float, tolerance: float) -> None:
    matrix = np.array(inputs["C"], dtype=float)
    among = patterns(len(matrix), inputs["min_sep"], inputs["k"])
    assert largest_sign(matrix, among) == pytest.approx(value, rel=tolerance)


def test_columns_that_no_formula_covers_are_refused() -> None:
    with pytest.raises(ValueError, match=">= 0"):
        separated_sensitivity(np.array([1.0, -0.5]), 1, 2)
    with pytest.raises(ValueError, match="never increase"):
        separated_sensitivity(np.array([1.0, 0.2, 0.3]), 1, 2)
    with pytest.raises(ValueError, match=">= 0"):
        in_order(np.array([1.0, np.nan]), 1, (0, 2))
    with pytest.raises(ValueError, match="at most 2 steps"):
        in_order(np.array([1.0, 0.5]), 1, (0, 3))
    with pytest.raises(ValueError, match="separation"):
        separated_sensitivity(np.array([1.0]), 0, 1)
    with pytest.raises(ValueError, match="batches"):
        in_order(np.array([1.0]), 0, (0, 1))
