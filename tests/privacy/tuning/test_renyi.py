"""The Rényi bound of the best of runs: reference values, and dp-accounting's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from dprecipe.privacy import conversion
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.privacy.tuning.base import ORDERS, selected_curve
from dprecipe.privacy.tuning.runs import FixedRuns, NegativeBinomialRuns, PoissonRuns

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tuning.json").read_text(encoding="utf-8"))
ADD = Neighbouring.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize(
    "record", [r for r in GOLDEN["records"] if r["group"] == "tuning_rdp_epsilon"], ids=lambda r: r["id"]
)
def test_reference_values(record) -> None:
    inputs, orders = record["inputs"], GOLDEN["meta"]["tuning_orders"]
    runs = NegativeBinomialRuns(*inputs["par"]) if inputs["kind"] == "tnb" else PoissonRuns(inputs["par"])
    curve = selected_curve((Charge(Gaussian(1 / inputs["mu"]), 1),), runs, orders, ADD)
    assert conversion.epsilon(orders, curve, inputs["delta"]).value == pytest.approx(record["value"], rel=2e-3)


def test_curves_rise_and_are_the_librarys() -> None:
    from dp_accounting.rdp import rdp_privacy_accountant as library

    base, runs = (Charge(Gaussian(2.0), 1),), NegativeBinomialRuns.with_mean(1.0, 10.0)
    curve = selected_curve(base, runs, ORDERS, ADD)
    assert (np.diff(curve) >= 0).all()
    theirs = library._compute_rdp_repeat_and_select(ORDERS, [a / 8 for a in ORDERS], 10.0, 1.0)
    assert curve == pytest.approx(np.asarray(theirs), rel=1e-9)


def test_a_fixed_number_is_composed() -> None:
    base = (Charge(Gaussian(2.0), 1),)
    assert selected_curve(base, FixedRuns(6), (2.0, 8.0), ADD) == pytest.approx([6 * 2 / 8, 6 * 8 / 8])


@pytest.mark.parametrize("rate", [0.2, 1.5, 10.0])
def test_of_a_truncated_poisson_number_it_is_above_the_exact_divergence(rate: float) -> None:
    """Runs of N(0, 1) against N(0.4, 1), the largest winning: by quadrature. Not truncated, a small rate costs less."""
    runs, mu = PoissonRuns(rate), 0.4
    y = np.linspace(-11, 12, 20_001)

    def density(mean: float) -> np.ndarray:
        better = special.ndtr(mean - y)
        return runs.density(better, 1 - better) * np.exp(-((y - mean) ** 2) / 2) / np.sqrt(2 * np.pi)

    orders = (1.5, 2.0, 4.0, 16.0)
    bounds = selected_curve((Charge(Gaussian(1 / mu), 1),), runs, orders, ADD)
    for order, bound in zip(orders, bounds, strict=True):
        for p, q in ((density(mu), density(0.0)), (density(0.0), density(mu))):
            moment = np.sum(np.exp(order * np.log(p) + (1 - order) * np.log(q))) * (y[1] - y[0])
            exact = np.log(moment) / (order - 1)
            assert 0 < exact <= bound
