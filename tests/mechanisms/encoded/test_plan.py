"""The account of encoding: what a recipe costs, and what it releases."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from dprecipe.contract.plan import Plan
from dprecipe.faults import PlanRefused
from dprecipe.mechanisms.encoded import codebook
from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.recipe.read import read, read_source, read_text
from tests.sweeps import sweep

RECIPE = """\
recipe: dprecipe/v1
name: small
data:
  train: {{source: npz, path: absent.npz, shape: [20], classes: 3}}
  size: 10000
model: {{kind: mlp, hidden: [60]}}
mechanism:
{mechanism}
budget: {{epsilon: 2.0, delta: 1e-6}}
training:
  epochs: 4
  optimizer: {{kind: sgd, lr: 1.0}}
"""
ENCODED = """\
  kind: encoded
  codebook: {source: gaussian, size: 50}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 100}
"""
DPSGD = """\
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 100}
"""
STUDENT_T = "mechanism.noise={family: student_t, df: 9, multiplier: auto}"
DIMENSION = 20 * 60 + 60 + 60 * 3 + 3


def planned(*overrides: str, mechanism: str = ENCODED) -> Plan:
    return plan(read_text(RECIPE.format(mechanism=mechanism), "small.yaml", overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("budget.epsilon=0.3",),
        ("mechanism.noise.multiplier=1.1", "training.epochs=auto"),
        ("mechanism.noise.multiplier=1.1", "budget.epsilon=auto"),
        ("mechanism.sampling={scheme: full_batch}",),
        ("budget.accountant=rdp",),
        ("budget.neighbouring=replace_one",),
    ],
)
def test_gaussian_noise_spends_what_dpsgd_spends(overrides: tuple[str, ...]) -> None:
    encoded, dpsgd = planned(*overrides), planned(*overrides, mechanism=DPSGD)
    assert encoded.events == dpsgd.events
    assert encoded.guarantee.epsilon == pytest.approx(dpsgd.guarantee.epsilon, rel=1e-6)
    assert encoded.solved == dpsgd.solved
    assert encoded.length == dpsgd.length


def test_the_plan_names_its_codebook_and_its_coordinates() -> None:
    result = planned("mechanism.codebook.norm=0.5", "mechanism.noise.multiplier=3.0")
    own = result.mechanism_plan
    assert own.dimension == DIMENSION
    assert own.digest == codebook.draw_gaussian_codebook([DIMENSION], 50, 1e-5, 0).digest
    assert own.noises[0].scale == own.noises[0].deviation == 1.5
    assert own.sensitivity == 0.5
    assert (own.denoise.method, own.denoise.per, own.denoise.shrink) == ("kolmogorov_smirnov", "model", False)


def test_another_codebook_is_another_plan() -> None:
    first = planned("mechanism.noise.multiplier=3.0")
    assert first.digest != planned("mechanism.noise.multiplier=3.0", "mechanism.codebook.seed=1").digest
    assert first.digest == planned("mechanism.noise.multiplier=3.0").digest


@pytest.mark.parametrize("family", sweep(["laplace", "student_t, df: 9", "variance_gamma, shape: 2", "sech"], (1, 2)))
def test_other_noise_is_solved_within_the_budget(family: str) -> None:
    result = planned(f"mechanism.noise={{family: {family}, multiplier: auto}}")
    (charge,) = result.events
    assert isinstance(charge.event, EncodedSum)
    assert charge.event.dimension == DIMENSION
    assert 0.999 * 2.0 <= result.guarantee.epsilon <= 2.0
    assert result.guarantee.accountant == "pld"
    assert result.guarantee.alternative_epsilon >= result.guarantee.epsilon


def test_the_box_of_the_event_is_the_envelope_of_the_codebook() -> None:
    result = planned(STUDENT_T, "mechanism.codebook.norm=0.25")
    (charge,) = result.events
    event = charge.event
    assert isinstance(event, EncodedSum)
    book = codebook.draw_gaussian_codebook([DIMENSION], 50, 1e-5, 0)
    assert event.codebook == book.digest
    assert event.shifts == book.box.shifts()[1]  # in units of the norm, whatever the norm is
    assert event.noise_multiplier == result.solved["mechanism.noise.multiplier"]
    assert result.mechanism_plan.noises[-1].scale == pytest.approx(0.25 * event.noise_multiplier)
    assert result.mechanism_plan.noises[-1].deviation == pytest.approx(0.25 * event.noise_multiplier * math.sqrt(9 / 7))


def test_one_codeword_costs_less_than_many() -> None:
    many = planned(STUDENT_T).solved["mechanism.noise.multiplier"]
    one = planned(STUDENT_T, "mechanism.codebook.size=1").solved["mechanism.noise.multiplier"]
    assert 0.9 * many < one < many


@pytest.mark.slow
def test_groups_are_layers() -> None:
    result = planned(STUDENT_T, "mechanism.groups=layer")
    assert result.mechanism_plan.groups == (20 * 60 + 60, 60 * 3 + 3)
    (charge,) = result.events
    assert isinstance(charge.event, EncodedSum)
    assert charge.event.dimension == DIMENSION


def test_noise_scales_of_layers_divide_their_bounds() -> None:
    """A layer with all the noise hardly counts; the others cost what they cost with their share of the norm."""
    plain = planned("mechanism.noise.multiplier=1.0", "budget.epsilon=auto", "mechanism.groups=layer")
    scaled = planned(
        "mechanism.noise.multiplier=1.0",
        "budget.epsilon=auto",
        "mechanism.groups=layer",
        "mechanism.group_noise=[1.0, 1e4]",
    )
    (before,), (after,) = plain.events, scaled.events
    share = math.sqrt((20 * 60 + 60) / DIMENSION)  # of a codeword's norm in the first layer, about
    assert isinstance(before.event, PoissonGaussian)
    assert isinstance(after.event, PoissonGaussian)
    assert after.event.noise_multiplier == pytest.approx(before.event.noise_multiplier / share, rel=0.06)
    assert scaled.mechanism_plan.sensitivity == pytest.approx(share, rel=0.06)


def test_equal_scales_of_layers_change_nothing() -> None:
    terms = ("mechanism.noise.multiplier=1.0", "budget.epsilon=auto", "mechanism.groups=layer")
    assert planned(*terms, "mechanism.group_noise=[1.0, 1.0]").events == planned(*terms).events


def test_microbatches_cost_twice_the_noise() -> None:
    one = planned("mechanism.noise.multiplier=2.0", "budget.epsilon=auto")
    several = planned("mechanism.noise.multiplier=4.0", "budget.epsilon=auto", "mechanism.microbatch=5")
    assert several.events == one.events
    assert several.mechanism_plan.slots == 20
    assert several.mechanism_plan.divisor == 20.0  # the divisor: the public number of codes
    assert several.mechanism_plan.expected_batch == 100.0
    drawn = [each.mechanism_plan.draws_by_attempt for each in (one, several)]
    assert drawn == [False, True]  # units keep their micro-batches in an attempt


def test_microbatches_with_other_noise_are_bounded_by_renyi_alone() -> None:
    result = planned(STUDENT_T, "mechanism.microbatch=5")
    (charge,) = result.events
    assert isinstance(charge.event, EncodedSum)
    assert charge.event.exchanged
    assert result.guarantee.accountant == "rdp"
    single = planned(STUDENT_T, "budget.accountant=rdp").solved["mechanism.noise.multiplier"]
    assert result.solved["mechanism.noise.multiplier"] == pytest.approx(2 * single, rel=0.02)


PHASES = (
    "mechanism.noise=[{family: gaussian, multiplier: 2.0, epochs: 1}, "
    "{family: student_t, df: 9, multiplier: %s, steps: 50}, {family: gaussian, multiplier: %s}]"
)


def test_phases_are_composed_as_they_are() -> None:
    result = planned(PHASES % ("1.5", "3.0"), "budget.epsilon=auto")
    assert [charge.count for charge in result.events] == [100, 50, 250]
    kinds = [type(charge.event) for charge in result.events]
    assert kinds == [PoissonGaussian, EncodedSum, PoissonGaussian]
    assert [noise.steps for noise in result.mechanism_plan.noises] == [100, 50, 250]
    parts = [accountants.epsilon([charge], 1e-6, result.guarantee.neighbouring, "pld") for charge in result.events]
    assert max(parts) < result.guarantee.epsilon < sum(parts)


@pytest.mark.parametrize(
    ("index", "multipliers"), [pytest.param(1, ("auto", "3.0"), marks=pytest.mark.slow), (2, ("1.5", "auto"))]
)
def test_one_phase_may_be_solved(index: int, multipliers: tuple[str, str]) -> None:
    result = planned(PHASES % multipliers)
    assert list(result.solved) == [f"mechanism.noise.{index}.multiplier"]
    assert result.mechanism_plan.noises[index].multiplier == result.solved[f"mechanism.noise.{index}.multiplier"]
    assert 0.999 * 2.0 <= result.guarantee.epsilon <= 2.0


def test_the_last_phase_lasts_as_long_as_the_budget_holds() -> None:
    result = planned(PHASES % ("1.5", "3.0"), "training.epochs=auto")
    assert result.guarantee.epsilon <= 2.0
    longer = [*result.events[:-1], Charge(result.events[-1].event, result.events[-1].count + 1)]
    assert accountants.epsilon(longer, 1e-6, result.guarantee.neighbouring, "pld") > 2.0 * (1 - 1e-5)


def test_phases_that_spend_the_budget_are_refused() -> None:
    with pytest.raises(PlanRefused) as refused:
        planned(PHASES % ("0.3", "3.0"), "training.epochs=auto")
    assert "the earlier phases leave nothing for the last" in str(refused.value.findings[0].message)


def test_full_batches_are_unsampled() -> None:
    (charge,) = planned("mechanism.sampling={scheme: full_batch}").events
    assert isinstance(charge.event, Gaussian)
    (charge,) = planned("mechanism.sampling={scheme: full_batch}", STUDENT_T).events
    assert isinstance(charge.event, EncodedSum)
    assert charge.event.sampling_rate == 1.0


def file_recipe(folder: Path, book: codebook.Codebook) -> Path:
    (folder / "book.npz").write_bytes(book.to_bytes())
    recipe = folder / "small.yaml"
    mechanism = ENCODED.replace("source: gaussian, size: 50", "source: file, path: book.npz")
    recipe.write_text(RECIPE.format(mechanism=mechanism), encoding="utf-8")
    return recipe


def test_a_codebook_file_travels_with_the_plan(tmp_path: Path) -> None:
    """A stranger plans again from the texts alone; the texts' digest covers the codebook."""
    recipe = file_recipe(tmp_path, codebook.draw_gaussian_codebook([DIMENSION], 7, 1e-5, 3))
    result = plan(read(recipe, [STUDENT_T]))
    (tmp_path / "book.npz").unlink()
    again = plan(read_source(result.source))
    assert again.digest == result.digest
    assert again.source.digest == result.source.digest
    assert result.mechanism_plan.words == 7
    assert any(a.id == "codebook" and a.checked_by == "declaration" for a in result.assumptions)


def test_a_codebook_file_for_another_model_is_refused(tmp_path: Path) -> None:
    recipe = file_recipe(tmp_path, codebook.draw_gaussian_codebook([DIMENSION], 7, 1e-5, 3))
    result = read(recipe)
    with pytest.raises(PlanRefused) as refused:
        plan(read_text(result.source.text.replace("[60]", "[61]"), "a.yaml", attachments=result.source.attachments))
    assert [finding.code for finding in refused.value.findings if finding.is_error] == ["R260"]


def test_attachments_of_a_stranger_are_not_believed(tmp_path: Path) -> None:
    result: Any = read(file_recipe(tmp_path, codebook.draw_gaussian_codebook([DIMENSION], 7, 1e-5, 3)))
    for text in ("", "{", "[]", "null", '{"groups": 1}', "[" * 100_000):
        with pytest.raises(PlanRefused) as refused:
            plan(read_text(result.source.text, "a.yaml", attachments=[("codebook", text)]))
        assert "R260" in {finding.code for finding in refused.value.findings}


BLANKED = ("budget.neighbouring=zero_out_one", "mechanism.microbatch=2")


def test_a_blanked_unit_in_a_micro_batch_with_gaussian_noise_is_refused() -> None:
    with pytest.raises(PlanRefused) as refused:
        planned(*BLANKED)
    assert [finding.code for finding in refused.value.findings if finding.is_error] == ["P142"]
    planned("budget.neighbouring=replace_one", "mechanism.microbatch=2")
    planned("budget.neighbouring=zero_out_one", "mechanism.microbatch=1")


@pytest.mark.parametrize("phased", [False, True])
def test_a_phase_of_gaussian_noise_is_enough_to_be_refused(phased: bool) -> None:
    noise = PHASES % ("1.5", "3.0") if phased else "mechanism.noise.multiplier=3.0"
    with pytest.raises(PlanRefused, match="P142"):
        planned(noise, "budget.epsilon=auto", *BLANKED)


def test_a_blanked_unit_in_a_micro_batch_with_other_noise_is_charged_as_replaced() -> None:
    blanked = planned(STUDENT_T.replace("auto", "20.0"), "budget.epsilon=auto", *BLANKED)
    terms = ("budget.neighbouring=replace_one", "mechanism.microbatch=2")
    assert (
        blanked.budget.epsilon
        == planned(STUDENT_T.replace("auto", "20.0"), "budget.epsilon=auto", *terms).budget.epsilon
    )


def test_a_blanked_unit_among_all_moves_one_code() -> None:
    terms = ("mechanism.sampling={scheme: full_batch}", "mechanism.noise.multiplier=40.0", "budget.epsilon=auto")
    blanked = planned(*terms, *BLANKED)
    (charge,) = blanked.events
    assert charge.event == Gaussian(20.0)  # two norms farther at most
    assert blanked.budget.epsilon == planned(*terms, "mechanism.microbatch=2").budget.epsilon


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(("q", "multiplier"), [(0.1, 2.0), (0.5, 3.0), (0.9, 2.0), (0.3, 1.0)])
def test_an_exchanged_code_is_covered(relation: str, q: float, multiplier: float) -> None:
    """One step, integrated on a grid: codes on a line, of norm up to 1, without the unit and with it (or its
    replacement). δ at the ε that is charged is at most the δ it is charged for."""
    delta = 1e-3
    charged = accountants.epsilon([Charge(PoissonGaussian(q, multiplier / 2), 1)], delta, relation, "pld")
    x = np.linspace(-12 * multiplier, 12 * multiplier, 200_001)

    def mixture(code: float) -> NDArray[np.float64]:
        actual = (1 - q) * norm.pdf(x, before, multiplier) + q * norm.pdf(x, code, multiplier)
        return np.asarray(actual)

    for before, mine, theirs in ((-1, 1, -1), (0, 1, -1), (-1, 1, 0), (0.5, -1, 1), (1, -1, 1)):
        left = mixture(mine)
        right = mixture(theirs) if relation == "replace_one" else norm.pdf(x, before, multiplier)
        for above, below in ((left, right), (right, left)):
            assert np.trapezoid(np.maximum(above - math.exp(charged) * below, 0), x) <= delta * (1 + 1e-3)
