"""The comparison of noise distributions: at equal privacy, in any dimension, against golden figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dprecipe.contract.document import RecipeName
from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import canonical_json
from dprecipe.faults import PlanRefused, UsageFault
from dprecipe.mechanisms.encoded.codebook import fit_codebook
from dprecipe.mechanisms.encoded.commands import noise as module
from dprecipe.mechanisms.encoded.commands.noise import (
    DISTRIBUTIONS,
    GAUSSIAN,
    compare_distributions,
    name_of,
    noise_of,
)
from dprecipe.mechanisms.encoded.commands.noise_document import (
    MAX_L1_GAIN,
    RESOLUTION,
    Alternative,
    Compared,
    ComparedBudget,
    ComparedCodebook,
    Comparison,
)
from dprecipe.mechanisms.encoded.schema import Encoded
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.schema import shape_of
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import Loaded, read_text
from tests.sweeps import sweep

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "encoding.json").read_text(encoding="utf-8"))
RECIPE = """\
recipe: dprecipe/v1
name: small
data:
  train: {{source: npz, path: absent.npz, shape: [{inputs}], classes: 2}}
  size: 10000
model: {{kind: logistic_regression}}
mechanism:
  kind: encoded
  codebook: {codebook}
  noise: {{family: gaussian, multiplier: auto}}
  denoise: none
  sampling: {{scheme: poisson, batch_size: 100}}
budget: {{epsilon: {epsilon}, delta: 1e-5}}
training:
  steps: {steps}
  optimizer: {{kind: sgd, lr: 1.0}}
"""
DRAWN = "{source: gaussian, size: 1}"
STUDENT_T = Distribution("student_t", 9.0)


def loaded(
    *overrides: str,
    dimension: int = 10,
    codebook: str = DRAWN,
    steps: int = 100,
    epsilon: float = 2.0,
    codeword: NDArray[np.float64] | None = None,
) -> Loaded:
    """A recipe with an even number of parameters; with `codeword`, one whose codebook holds just that."""
    files = []
    if codeword is not None:
        dimension, codebook = len(codeword), "{source: file, path: absent.npz}"
        files = [("codebook", canonical_json(fit_codebook(codeword[None], [dimension]).box.to_json()))]
    text = RECIPE.format(inputs=dimension // 2 - 1, codebook=codebook, steps=steps, epsilon=epsilon)
    return read_text(text, "small.yaml", overrides, attachments=files)


def compared(comparison: Loaded) -> Comparison:
    assert isinstance(comparison.recipe.mechanism, Encoded)
    return compare_distributions(
        comparison, comparison.recipe.mechanism, Facts.of(comparison.recipe, comparison.source.attachments)
    )


def only(monkeypatch: pytest.MonkeyPatch, *distributions: Distribution) -> None:
    monkeypatch.setattr(module, "DISTRIBUTIONS", (GAUSSIAN, *distributions))


def distribution_of(row: Compared) -> Distribution:
    return Distribution(row.family, row.shape)


def of(comparison: Comparison, distribution: Distribution) -> Compared:
    (row,) = (row for row in comparison.distributions if distribution_of(row) == distribution)
    return row


def codeword(name: str) -> NDArray[np.float64]:
    if name.startswith("const"):
        dimension = int(name.removeprefix("const"))
        return np.full(dimension, dimension**-0.5)
    if name == "single":
        return np.append(np.zeros(9), 1.0)
    vector = np.random.default_rng(0).standard_normal(10_000)
    vector[np.abs(vector) < 1e-5] = 0
    return vector


@pytest.mark.parametrize(
    "record", sweep(GOLDEN["A_equal_eps"]), ids=[f"{r['codeword']}-{r['family']}" for r in GOLDEN["A_equal_eps"]]
)
def test_golden_errors_at_equal_privacy(record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration stops within 1e-4 of ε, which is 1e-4 of a scale, about."""
    distribution = Distribution(record["family"], 9.0 if record["family"] == "student_t" else None)
    only(monkeypatch, distribution)
    comparison = compared(loaded(codeword=codeword(record["codeword"]), steps=6000, epsilon=record["eps_pld"]))
    assert (comparison.steps, comparison.sampling_rate) == (6000, record["q"])
    row = of(comparison, distribution)
    assert row.multiplier == pytest.approx(record["scale_equal_eps"], rel=3e-4)
    assert row.l1_ratio == pytest.approx(record["L1_ratio_vs_gauss"], rel=3e-4)
    assert row.l2_ratio == pytest.approx(record["L2_ratio_vs_gauss"], rel=3e-4)
    assert of(comparison, GAUSSIAN).multiplier == pytest.approx(math.sqrt(1.2), rel=3e-4)


def test_what_is_compared_is_what_a_plan_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, STUDENT_T)
    recipe = loaded("mechanism.codebook.norm=0.5")
    comparison = compared(recipe)
    for distribution, noise in ((GAUSSIAN, "family: gaussian"), (STUDENT_T, "family: student_t, df: 9")):
        result = plan(loaded("mechanism.codebook.norm=0.5", f"mechanism.noise={{{noise}, multiplier: auto}}"))
        row = of(comparison, distribution)
        assert row.multiplier == result.solved["mechanism.noise.multiplier"]
        assert (row.epsilon, row.accountant) == (result.guarantee.epsilon, result.guarantee.accountant)
        assert row.alternative.epsilon == result.guarantee.alternative_epsilon
        assert row.alternative.accountant == result.guarantee.alternative_accountant
        assert row.scale == result.mechanism_plan.noises[-1].scale
        assert row.l2 == pytest.approx(result.mechanism_plan.noises[-1].deviation)


def test_figures_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, STUDENT_T)
    comparison = compared(loaded("mechanism.codebook.norm=0.5"))
    row, codebook = of(comparison, STUDENT_T), comparison.codebook
    assert row.scale == pytest.approx(0.5 * row.multiplier)
    assert row.l1 == pytest.approx(0.873079 * row.scale, rel=1e-5)
    assert row.l2 == pytest.approx(math.sqrt(9 / 7) * row.scale)
    assert row.equal_fisher_scale == pytest.approx(math.sqrt(12 / 10) * row.scale)
    # A batch of 100 codewords of norm 0.5, all alike, against noise over 10 coordinates.
    assert row.signal_to_noise == pytest.approx(100 * 0.5 / (row.l2 * math.sqrt(10)))
    assert (comparison.dimension, codebook.norm, codebook.words, comparison.codes) == (10, 0.5, 1, 100)
    assert row.l1_ratio == row.l1 / of(comparison, GAUSSIAN).l1
    assert [r.chosen for r in comparison.distributions] == [r.family == "gaussian" for r in comparison.distributions]


def test_relative_noise_of_layers_is_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    layers = ["model={kind: mlp, hidden: [3]}", "mechanism.groups=layer", "mechanism.group_noise=[1.0, 2.0]"]
    comparison = compared(loaded(*layers))
    (row,) = comparison.distributions  # (4 + 1) · 3 coordinates with noise of scale 1, (3 + 1) · 2 with 2
    assert row.l2 == pytest.approx(row.scale * math.sqrt((15 + 8 * 4) / 23))
    assert row.l1 == pytest.approx(row.scale * math.sqrt(2 / math.pi) * (15 + 8 * 2) / 23)


def test_micro_batches_hold_fewer_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    one, four = (compared(loaded(f"mechanism.microbatch={size}")) for size in (1, 4))
    assert (one.codes, four.codes) == (100, 25)
    # A quarter of the codes, twice the noise.
    assert one.distributions[0].signal_to_noise == pytest.approx(8 * four.distributions[0].signal_to_noise, rel=1e-3)


def test_a_given_multiplier_sets_the_budget_to_compare_at(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    for budget in ("auto", "9.0"):
        recipe = loaded("mechanism.noise.multiplier=1.5", f"budget.epsilon={budget}")
        comparison = compared(recipe)
        assert comparison.budget.epsilon == plan(recipe).guarantee.epsilon < 9
        assert comparison.distributions[0].multiplier == pytest.approx(1.5, rel=2e-4)
        assert comparison.distributions[0].epsilon <= comparison.budget.epsilon


def test_a_free_length_is_that_of_the_recipes_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    recipe = loaded("mechanism.noise.multiplier=1.5", "training.steps=auto")
    comparison = compared(recipe)
    assert comparison.steps == plan(recipe).length.steps
    assert comparison.distributions[0].multiplier == pytest.approx(1.5, rel=1e-3)


def test_phases_are_compared_as_one_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    noise = (
        "mechanism.noise=[{family: student_t, df: 4, multiplier: 3, steps: 10}, {family: gaussian, multiplier: auto}]"
    )
    comparison = compared(loaded(noise))
    assert {row.name: row.chosen for row in comparison.distributions} == {
        "gaussian": True,
        "student_t(4)": True,
    }
    assert of(comparison, GAUSSIAN).multiplier == compared(loaded()).distributions[0].multiplier


def test_distributions_that_the_budget_refuses_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """At so large a budget a step over four coordinates needs hardly any noise with exponential tails."""
    only(monkeypatch, Distribution("variance_gamma", 4.0))
    comparison = compared(loaded("budget.epsilon=12", "training.steps=1", dimension=4))
    (left,) = comparison.left_out
    assert (left.family, left.shape) == ("variance_gamma", 4.0)
    assert "multiplier" in left.reason
    assert [row.name for row in comparison.distributions] == ["gaussian"]


def test_what_can_not_be_compared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    with pytest.raises(PlanRefused, match="P107"):
        compared(loaded("budget.epsilon=1e6"))
    with pytest.raises(UsageFault, match="nothing to compare"):
        compared(loaded("mechanism.noise.multiplier=1e6", "budget.epsilon=auto", "training.steps=1"))


def row(distribution: Distribution, l1: float, l2: float) -> Compared:
    return Compared(
        family=distribution.family,
        shape=distribution.shape,
        chosen=False,
        multiplier=1,
        scale=1,
        l1=l1,
        l2=l2,
        l1_ratio=l1,
        l2_ratio=l2,
        equal_fisher_scale=1,
        signal_to_noise=1,
        epsilon=1,
        accountant="pld",
        alternative=Alternative(accountant="rdp", epsilon=1),
    )


@pytest.mark.parametrize(
    ("l1", "l2", "min_l1", "min_l2", "matters"),
    [
        (0.9989, 1.0351, "student_t(9)", "gaussian", False),
        (1 - MAX_L1_GAIN, 1.01, "student_t(9)", "gaussian", False),
        (0.9997, 0.9997, "gaussian", "gaussian", False),
        (0.985, 1.02, "student_t(9)", "gaussian", True),
        (0.995, 0.99, "student_t(9)", "student_t(9)", True),
        (math.inf, math.inf, "gaussian", "gaussian", False),
    ],
)
def test_the_choice_matters_where_more_than_information_counts(
    l1: float, l2: float, min_l1: str, min_l2: str, matters: bool
) -> None:
    comparison = Comparison(
        recipe=RecipeName(name="small", digest="sha256:" + "0" * 64),
        mechanism="encoded",
        budget=ComparedBudget(epsilon=3.0, delta=1e-5, neighbouring=Neighbouring.ADD_OR_REMOVE_ONE, accountant="pld"),
        steps=10,
        sampling_rate=0.01,
        codes=100.0,
        dimension=10,
        codebook=ComparedCodebook(words=1, norm=1.0, envelope=1.0),
        exchanged=False,
        distributions=(row(GAUSSIAN, 1.0, 1.0), row(STUDENT_T, l1, l2)),
        left_out=(),
    )
    assert (comparison.min_l1.name, comparison.min_l2.name, comparison.matters) == (min_l1, min_l2, matters)


def test_the_bound_on_the_l1_gain_is_that_of_the_airy_density() -> None:
    """The density ψ² has Fisher information 4∫ψ'². Where that is given, E|x| is least for the ground state of
    -ψ'' + |x|ψ, whose energy is minus the first zero of Ai': a third of it is ∫ψ'², two thirds are E|x| (virial)."""
    from scipy.special import ai_zeros

    energy = -float(ai_zeros(1)[1][0])
    ratio = (2 * energy / 3) * math.sqrt(4 * energy / 3) / math.sqrt(2 / math.pi)
    assert ratio == pytest.approx(1 - MAX_L1_GAIN, abs=5e-5)
    assert ratio > 1 - MAX_L1_GAIN


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=name_of)
def test_each_distribution_has_a_noise_block_and_no_better_error_at_equal_information(
    distribution: Distribution,
) -> None:
    block = noise_of(distribution)
    assert Distribution(block.family, shape_of(block)) == distribution
    assert block.multiplier == "auto"
    assert distribution.standard_deviation * math.sqrt(distribution.fisher) >= 1  # Cramér and Rao
    assert distribution.mean_absolute * math.sqrt(distribution.fisher) >= (1 - MAX_L1_GAIN) * math.sqrt(2 / math.pi)


@pytest.mark.slow
def test_every_distribution_is_compared_and_stays_within_the_budget() -> None:
    seen: list[tuple[int, int, Distribution]] = []
    recipe = loaded(dimension=10, steps=20)
    spec = recipe.recipe.mechanism
    assert isinstance(spec, Encoded)
    comparison = compare_distributions(
        recipe,
        spec,
        Facts.of(recipe.recipe),
        lambda done, of_all, distribution: seen.append((done, of_all, distribution)),
    )
    assert [distribution for _, _, distribution in seen] == list(DISTRIBUTIONS)
    assert set(map(distribution_of, comparison.distributions)) == set(DISTRIBUTIONS)
    assert comparison.left_out == ()
    assert all(0.999 * 2 <= row.epsilon <= 2 for row in comparison.distributions)
    errors = [(row.l2, row.l1) for row in comparison.distributions]
    assert errors == sorted(errors)
    assert comparison.distributions[-1].family == "cauchy"
    assert comparison.to_json()["distributions"][-1]["l2"] is None


def test_the_error_of_the_solver_is_below_the_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    (row,) = compared(loaded()).distributions
    recipe = loaded(f"mechanism.noise.multiplier={row.multiplier * (1 - RESOLUTION)}", "budget.epsilon=auto")
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    assert accountants.epsilon(plan(recipe).events, 1e-5, relation, "pld") > 2.0
