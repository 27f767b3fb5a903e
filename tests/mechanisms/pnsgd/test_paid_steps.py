"""Paid steps of preprocessing before a last-iterate release: one plan, one ledger, one claim."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid, PlanRefused
from dprecipe.mechanisms.pnsgd.theory.recheck import RecheckedRun
from dprecipe.models.load import load
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.events import Charge
from dprecipe.privacy.ledger import read
from dprecipe.recipe.read import read_text
from dprecipe.release.untrusted import sha256_of, to_bytes
from tests.sweeps import sweep
from tests.training.run.test_kill import hold_killed

RECIPE = """\
recipe: dprecipe/v1
name: paid
data:
  train: {source: npz, path: %(folder)s/records.npz, shape: [5], classes: 2, records: [0, 300]}
  test: {source: npz, path: %(folder)s/records.npz, shape: [5], classes: 2, records: [300, 400], access: public}
  size: 300
  preprocess:
    - dp_standardize: {columns: all, bounds: [-50, 50], share: 0.3}
    - dp_pca: {components: 3, row_norm: 4.0, noise_multiplier: 12}
    - clip_features: {norm: 2.0}
model: {kind: logistic_regression, l2: 0.01}
mechanism:
  kind: pnsgd
  constraint: {kind: ball, radius: 2.0}
  learning_rate: 0.5
  noise: {family: gaussian, multiplier: auto}
  batch_size: 100
budget: {epsilon: 3.0, delta: 1e-5, neighbouring: replace_one}
training: {epochs: 50}
release: {report: false}
"""
DELTA = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paid")
    generator = np.random.default_rng(5)
    labels = np.arange(400) % 2
    features = generator.standard_normal((400, 5)).astype(np.float32) * 0.3
    features[:, 0] += labels - 0.5
    np.savez(folder / "records.npz", features=7 + 3 * features, labels=labels)
    return folder


Planned = Callable[..., Plan]


@pytest.fixture(scope="module")
def paid(folder: Path) -> Planned:
    return lambda *overrides: make_plan(read_text(RECIPE % {"folder": folder}, str(folder / "paid.yaml"), overrides))


def compose_anew(plan: Plan) -> float:
    """ε by dp-accounting: Gaussian steps at the scales of their noise over sensitivities that this test works out, and
    the run by its second bound, tabulated."""
    ((moments,), (covariance,)) = (stage.charges for stage in plan.stages)
    # 5 columns, of which (u, u² - 1) moves by at most 2 each where a record is replaced; x xᵀ of norm 1 by √2
    mu = np.sqrt(5 * 4 / moments.event.noise_scale**2 + 2 / covariance.event.noise_scale**2)  # type: ignore[attr-defined]
    step, last = 1e-3, 9000
    second = RecheckedRun(plan.mechanism_plan.event)  # type: ignore[attr-defined]
    above = np.array([second.total(step * k) for k in range(0, last + 1, 20)])
    above = np.interp(np.exp(step * np.arange(last + 1)), np.exp(step * np.arange(0, last + 1, 20)), above)
    below = -step * np.arange(last, 0, -1)
    deltas = np.concatenate([-np.expm1(below) + np.exp(below) * above[:0:-1], above])
    pmf = create_pmf_pessimistic_connect_dots(step, np.arange(-last, last + 1), deltas)
    gaussian = privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=step)
    whole = gaussian.compose(privacy_loss_distribution.PrivacyLossDistribution(pmf))
    return float(whole.get_epsilon_for_delta(DELTA))


def test_noise_is_solved_for_steps_and_run_together(paid: Planned) -> None:
    plan = paid()
    noise = plan.solved["mechanism.noise.multiplier"]
    assert [stage.kind for stage in plan.stages] == ["dp_standardize", "dp_pca"]
    spent = accountants.epsilon(plan.events, DELTA, plan.budget.neighbouring, "pld")
    assert 0.999 * 3 <= spent <= plan.guarantee.epsilon <= 3
    assert {part.name for part in plan.spending} == {"preprocess.0.dp_standardize", "preprocess.1.dp_pca", "training"}
    alone = paid("data.preprocess=[{clip_features: {norm: 2.0}}]")
    assert noise > alone.solved["mechanism.noise.multiplier"]


@pytest.mark.slow
def test_an_independent_composition_gives_the_same(paid: Planned) -> None:
    assert compose_anew(paid()) == pytest.approx(paid().guarantee.epsilon, rel=1e-2)


@pytest.mark.parametrize(
    "overrides",
    sweep(
        [
            (
                "mechanism.noise.multiplier=0.6",
                "training.epochs=auto",
                "model.l2=0.0",
                "mechanism.constraint.radius=200.0",
            ),
            ("mechanism.noise.multiplier=3.0", "data.preprocess.1.dp_pca.noise_multiplier=auto"),
            ("budget.neighbouring=zero_out_one",),
            ("mechanism.order=sequential", "mechanism.stop=random"),
            ("budget.accountant=rdp",),
        ],
        (1, 2, 4),
    ),
)
def test_every_free_variable_and_kind_of_run_keeps_the_budget(paid: Planned, overrides: tuple[str, ...]) -> None:
    plan = paid(*overrides)
    spent = accountants.epsilon(plan.events, DELTA, plan.budget.neighbouring, plan.budget.accountant)
    assert 0.9 * 3 <= spent <= plan.guarantee.epsilon <= plan.budget.epsilon


def test_beside_gaussian_steps_the_run_costs_what_squares_leave(paid: Planned) -> None:
    """In the file's order the run is a Gaussian of its worst position: squares add up."""
    plan = paid("mechanism.order=sequential")
    (run_charge,) = plan.mechanism_plan.events
    profile = run_charge.event.profile()
    mu = None if profile is None else profile.mu()
    assert mu is not None
    squares = sum(float(c.event.squared_mu(c.count, plan.budget.neighbouring) or 0.0) for c in plan.stage_charges)
    assert gdp.epsilon(np.sqrt(mu**2 + squares), DELTA) == pytest.approx(plan.guarantee.epsilon, rel=2e-3)


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        (("data.preprocess.1.dp_pca.noise_multiplier=0.7",), "P126"),
        (("data.preprocess.1.dp_pca.noise_multiplier=0.7", "mechanism.noise.multiplier=5.0"), "P126"),
        (("mechanism.noise.multiplier=0.01",), "P106"),
        (("data.preprocess=[{dp_standardize: {bounds: [0, 1], share: 0.1}}]",), "P164"),
        (("data.size={max: 300}",), "P127"),
    ],
)
def test_what_does_not_fit_is_refused(paid: Planned, overrides: tuple[str, ...], code: str) -> None:
    with pytest.raises(PlanRefused) as refused:
        paid(*overrides)
    assert code in {finding.code for finding in refused.value.findings}


@pytest.fixture(scope="module")
def done(paid: Planned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, killed in its descent and gone on with."""
    plan, out = paid(), tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dprecipe.mechanisms.pnsgd.train.run._descend", _die)
        with pytest.raises(KeyboardInterrupt):
            run(plan, out)
    run(plan, out, resume=True)
    return out


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_run_that_goes_on_draws_nothing_twice_and_verifies(paid: Planned, done: Path) -> None:
    plan, ledger = paid(), read(done / "private" / "ledger.jsonl")
    assert ledger.charges == plan.events
    assert ledger.attempts == 2
    statement = dprecipe.verify(done / "release")
    assert statement is not None
    stated = json.loads((done / "release" / "certificate.json").read_text("utf-8"))["predicate"]
    assert [stage["kind"] for stage in stated["stages"]] == ["dp_standardize", "dp_pca"]
    assert "stage_noise" in {check["id"] for check in stated["checks"]}
    assert stated["mechanism"]["by_position"] == []
    assert stated["claim"]["epsilon"] == plan.guarantee.epsilon


def test_a_released_model_prepares_records_as_its_training_did(folder: Path, done: Path) -> None:
    records = np.load(folder / "records.npz")
    predicted = load(done / "release").predict(records["features"][300:])
    score = json.loads((done / "release" / "metrics.json").read_text("utf-8"))["public_evaluation"]["accuracy"]
    assert (predicted == records["labels"][300:]).mean() == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("what", ["constants", "event"])
def test_a_release_with_other_constants_or_a_step_left_out_does_not_verify(
    done: Path, tmp_path: Path, what: str
) -> None:
    release = tmp_path / "release"
    shutil.copytree(done / "release", release)
    path = release / ("model.json" if what == "constants" else "certificate.json")
    content = json.loads(path.read_text("utf-8"))
    if what == "constants":
        content["stages"][0]["mean"][0] += 0.5
        path.write_bytes(to_bytes(content))
        certificate = json.loads((release / "certificate.json").read_text("utf-8"))
        for subject in certificate["subject"]:
            if subject["name"].endswith("model.json"):
                subject["digest"]["sha256"] = sha256_of(path).removeprefix("sha256:")
        (release / "certificate.json").write_bytes(to_bytes(certificate))
    else:
        events = content["predicate"]["events"]
        del events["run_length"][0]
        events["total"] -= 1
        path.write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid, match=r"stages\.0|events"):
        dprecipe.verify(release)


def test_a_lost_step_without_room_for_another_is_not_drawn_and_ends_the_run(paid: Planned, tmp_path: Path) -> None:
    """The run has one price, so that it can't be shortened: the whole has to fit again."""
    plan = paid()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dprecipe.training.run.stages.release_stage", _die)
        with pytest.raises(KeyboardInterrupt):
            run(plan, tmp_path / "lost")
    done = run(plan, tmp_path / "lost", resume=True)
    assert (done.stop_reason, done.has_model) == ("no_model", False)
    dprecipe.verify(done.release)
    assert read(tmp_path / "lost" / "private" / "ledger.jsonl").charges == (Charge(plan.events[0].event, 1),)


@pytest.mark.slow
def test_killed_at_random_moments_steps_and_run_are_charged_for_all_that_is_drawn(
    paid: Planned, tmp_path: Path, folder: Path
) -> None:
    text = RECIPE % {"folder": folder}
    text = text.replace("multiplier: auto", "multiplier: 5.0").replace("epsilon: 3.0", "epsilon: 60.0")
    text = text.replace("epochs: 50", "epochs: 2000") + "runtime: {checkpoint_seconds: 0.02}\n"
    text = text.replace("share: 0.3", "noise_multiplier: 12")
    hold_killed(tmp_path / "killed", text, kills=8, seed=3, per_event=10**9)
    ledger = read(tmp_path / "killed" / "run" / "private" / "ledger.jsonl")
    assert sum(charge.count for charge in ledger.charges if charge.event.hides_iterates) == 1
