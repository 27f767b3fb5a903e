"""dp-accounting behind its function agrees with our own distributions, quietly."""

import logging
import warnings

import pytest

from dprecipe.privacy import accountants, second_opinion
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Gaussian, PartitionedGaussian, PoissonGaussian

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE

CONFIGS = [
    [Charge(PoissonGaussian(0.01, 1.0), 1000)],
    [Charge(PoissonGaussian(0.2, 4.0), 300)],
    [Charge(PoissonGaussian(0.001, 0.5), 5000)],
    [Charge(PoissonGaussian(0.02, 1.5), 200), Charge(PoissonGaussian(0.005, 0.8), 500), Charge(Gaussian(5.0), 3)],
    [Charge(PoissonGaussian(1.0, 10.0), 40)],
    [Charge(Gaussian(2.0), 1), Charge(Gaussian(3.0), 2)],
    [Charge(PartitionedGaussian(8.0, 117), 20)],
]


def agree(charges, relation):
    ours = accountants.epsilon(charges, 1e-6, relation, "pld")
    theirs = second_opinion.opinion(charges, 1e-6, relation)
    assert theirs.name == "dp_accounting.pld"
    assert theirs.epsilon == pytest.approx(ours, rel=2e-4)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("charges", [CONFIGS[0], CONFIGS[6]])
def test_two_independent_distributions_agree(charges, relation):
    agree(charges, relation)


@pytest.mark.slow
@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("charges", CONFIGS)
def test_two_independent_distributions_agree_on_a_grid_of_configurations(charges, relation):
    agree(charges, relation)


def test_integer_multipliers_are_not_misread():
    """Handed integers, dp-accounting 0.6.0 answers for the first multiplier of a composition alone."""
    integers = [Charge(Gaussian(2), 1), Charge(Gaussian(3), 1)]
    floats = [Charge(Gaussian(2.0), 1), Charge(Gaussian(3.0), 1)]
    assert second_opinion.epsilon(integers, 1e-5, ADD) == second_opinion.epsilon(floats, 1e-5, ADD)
    assert second_opinion.epsilon(floats, 1e-5, ADD) > second_opinion.epsilon(floats[:1], 1e-5, ADD)


def test_it_says_when_only_its_renyi_accountant_could_answer(monkeypatch):
    from dp_accounting import pld

    def fail(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(pld.PLDAccountant, "get_epsilon", fail)
    charges = [Charge(PoissonGaussian(0.01, 1.0), 1000)]
    found = second_opinion.opinion(charges, 1e-5, ADD)
    assert found.name == "dp_accounting.rdp"
    assert found.epsilon == pytest.approx(accountants.epsilon(charges, 1e-5, ADD, "rdp"), rel=1e-2)
    gaussian = second_opinion.opinion([Charge(Gaussian(5.0), 3)], 1e-5, REPLACE)
    assert gaussian.epsilon >= accountants.epsilon([Charge(Gaussian(5.0), 3)], 1e-5, REPLACE, "gdp")
    # no Rényi accountant of theirs knows this pair: no answer is better than a wrong one
    assert second_opinion.opinion(charges, 1e-5, REPLACE).epsilon == float("inf")


def test_it_is_quiet_and_leaves_logging_as_it_was(capfd):
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = second_opinion.opinion(CONFIGS[0], 1e-5, ADD)
    assert found.version[0].isdigit()
    assert logging.root.manager.disable == before
    assert capfd.readouterr() == ("", "")


def test_nothing_costs_nothing_and_nonsense_is_refused():
    assert second_opinion.epsilon([], 1e-5, ADD) == 0.0
    with pytest.raises(ValueError, match="delta"):
        second_opinion.epsilon([], 0.0, ADD)
