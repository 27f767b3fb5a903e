"""The curve of ε over a run."""

import itertools

from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Gaussian, PoissonGaussian
from dprecipe.privacy.spent import spent_curve

ADD = Neighbouring.ADD_OR_REMOVE_ONE


def test_every_point_is_a_bound_and_the_curve_never_falls():
    event, spent, counts = PoissonGaussian(0.01, 1.0), [Charge(Gaussian(9.0), 1)], [0, 1, 10, 500, 501, 502, 2000]
    for accountant in ("pld", "rdp"):
        curve = spent_curve(event, counts, 1e-5, ADD, accountant, spent)
        assert all(a <= b for a, b in itertools.pairwise(curve))
        for count, value in zip(counts, curve, strict=True):
            exact = accountants.epsilon([*spent, Charge(event, count)], 1e-5, ADD, accountant)
            assert exact * (1 - 1e-4) <= value <= exact
        assert curve[-1] == accountants.epsilon([*spent, Charge(event, 2000)], 1e-5, ADD, accountant)


def test_counts_keep_their_order():
    up = spent_curve(Gaussian(10.0), [1, 5, 5, 3], 1e-5, ADD, "pld")
    assert up[1] == up[2] > up[3] > up[0] > 0
