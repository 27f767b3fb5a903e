"""Certificates of last-iterate releases: what they say, that they verify, that they survive a crash, and what is found
out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import CertificateInvalid
from dprecipe.mechanisms.pnsgd.theory import last_iterate
from dprecipe.privacy.events import Charge
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.release import certificate, claim
from dprecipe.release.certificate import to_bytes
from dprecipe.release.verify import verify
from tests.sweeps import sweep

RECIPE = """\
recipe: dprecipe/v1
name: hidden
data:
  train: {source: npz, path: absent.npz, shape: [4], classes: 2}
  size: 60
  preprocess:
    - clip_features: {norm: 1.0}
model: {kind: huber_svm, width: 0.5, l2: 0.02}
mechanism:
  kind: pnsgd
  constraint: {kind: ball, radius: 2.0}
  learning_rate: 0.5
  noise: {family: gaussian, multiplier: auto}
  batch_size: 5
training: {epochs: 3}
budget: {epsilon: 2.0, delta: 1e-4, neighbouring: replace_one}
"""
SEQUENTIAL = ("mechanism.order=sequential",)
PHASED = (
    "mechanism.noise=[{family: gaussian, multiplier: 9, epochs: 1}, {family: gaussian, multiplier: auto}]",
    "mechanism.learning_rate={schedule: linear, from: 0.5, to: 0.1}",
)
LAPLACE = (
    "model={kind: huber_regression, bias: false}",
    "data.train={classes: null, range: [0, 1], shape: [1]}",
    "mechanism.constraint={kind: box, bound: 0.5}",
    "mechanism.noise={family: laplace, multiplier: auto}",
    "budget.epsilon=8",
)
SCORELESS = {"mechanism": "pnsgd", "score": None}


def spend(path: Path, plan: Plan, *, attempts: int = 1, carried: bool = True) -> Any:
    """The ledger of a run that broke off so often less one, and was carried on or begun again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    event = plan.events[0].event
    for attempt in range(attempts):
        writer = LedgerWriter(path, plan.digest)
        if attempt and carried:
            writer.carry(event)
        else:
            writer.reserve(event, 1)
        if attempt < attempts - 1:
            writer.abandon()
    writer.settle(event, 1)
    writer.close("completed")
    return read(path)


def publish(put_release: Any, path: Path, plan: Plan, facts: Any, **spending: Any) -> Path:
    ledger = spend(path / "private" / "ledger.jsonl", plan, **spending)
    history = [{"step": 12, "epsilon": 1.0, "accuracy": 0.5, "loss": 1.0}]  # nothing of it may be seen
    put_release(path / "release", plan, ledger, facts, history)
    return path / "release"


@pytest.fixture(scope="module")
def released(
    plan_of: Callable[..., Plan], facts_of: Any, tmp_path_factory: pytest.TempPathFactory, put_release: Any
) -> Callable[..., tuple[Plan, Path]]:
    """A plan and its release, made once for each list of overrides; read only."""
    cache: dict[Any, tuple[Plan, Path]] = {}

    def make(*overrides: str, **spending: Any) -> tuple[Plan, Path]:
        key = (overrides, tuple(spending.items()))
        if key not in cache:
            plan = plan_of(RECIPE, overrides)
            path = tmp_path_factory.mktemp("hidden") / "run"
            facts = facts_of(**SCORELESS)
            if "mechanism.stop=random" in overrides:  # how long it took would tell the secret number of steps
                facts = replace(facts, finished=facts.started)
            cache[key] = plan, publish(put_release, path, plan, facts, **spending)
        return cache[key]

    return make


def read_predicate(release: Path) -> dict[str, Any]:
    failures: dict[str, Any] = json.loads((release / "certificate.json").read_text("utf-8"))["predicate"]
    return failures


@pytest.mark.parametrize(
    "overrides",
    sweep(
        [(), SEQUENTIAL, PHASED, LAPLACE, ("mechanism.stop=random",), ("budget.neighbouring=zero_out_one",)], (0, 2, 3)
    ),
)
def test_hidden_runs_of_every_kind_verify(overrides: tuple[str, ...], released: Any) -> None:
    plan, release = released(*overrides)
    verified = verify(release)
    assert verified.claim.epsilon <= plan.budget.epsilon
    assert verified.claim.neighbouring == plan.budget.neighbouring
    assert any("dp_accounting.pld" in line for line in verified.checked)
    assert any("ledger beside it" in line for line in verified.checked)


def test_a_random_stop_does_not_tell_how_long_it_took(released: Any, tmp_path: Path) -> None:
    """The quick sister of `test_hidden_runs_of_every_kind_verify` and of `test_protected_size.py`."""
    _, release = released("mechanism.stop=random")
    verify(release)
    copy = Path(shutil.copytree(release, tmp_path / "release"))
    content = json.loads((copy / "certificate.json").read_bytes())
    content["predicate"]["provenance"]["finished"] = "2099-01-01T00:00:00+00:00"
    (copy / "certificate.json").write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid) as invalid:
        verify(copy)
    assert any("units or of steps, which is secret" in line for line in invalid.value.failures)


def test_the_problem_and_every_bound_are_stated(released: Any) -> None:
    plan, release = released()
    event = plan.events[0].event
    stated = read_predicate(release)
    problem, room = stated["mechanism"]["projection"], plan.mechanism_plan
    descent, proven = room.descent, room.descent.proven
    assert problem["constraint"] == {"kind": "ball", "radius": 2.0, "centre": None}
    for name in ("diameter", "lipschitz", "gradient_sensitivity", "smoothness", "strong_convexity"):
        assert problem[name] == getattr(proven, name)
    assert (problem["contraction"], problem["order"], problem["stop"]) == (
        room.contraction,
        descent.order,
        descent.stop,
    )
    assert (problem["batch_size"], problem["batches"], problem["passes"]) == (5, 12, 3.0)
    assert [stage["steps"] for stage in problem["stages"]] == [36]
    assert problem["stages"][0]["learning_rate"] == 0.5
    bounds = {bound["name"]: bound["epsilon"] for bound in problem["bounds"]}
    assert tuple(bounds) == last_iterate.BOUNDS
    assert bounds[problem["winner"]] == pytest.approx(min(bounds.values()), rel=1e-5)
    assert stated["accounting"][0]["name"] == problem["winner"]
    assert stated["mechanism"]["noise"]["scale"] == room.stages[0].noise_scale
    assert stated["events"]["run_length"][0]["stages"] == [list(row) for row in event.stages]
    assert stated["sampling"] | {"expected_batch": 5.0} == {
        **{"scheme": "permuted", "rate": None, "size": 60, "size_is_bound": False, "expected_batch": 5.0},
        **{"steps_planned": 36, "steps_charged": 36, "steps_trained": None, "largest_batch": None},
    }


def test_a_random_order_is_an_average_and_the_file_s_has_a_worst_place(released: Any) -> None:
    permuted = read_predicate(released()[1])["claim"]
    assert "an average over that order, and is the same for every record" in verify(released()[1]).claim.sentence
    assert read_predicate(released()[1])["mechanism"]["by_position"] == []
    assert permuted["gdp"] is None
    plan, release = released(*SEQUENTIAL)
    ordered = read_predicate(release)["claim"]
    assert "the position where it is weakest" in verify(release).claim.sentence
    rows = read_predicate(release)["mechanism"]["by_position"]
    assert [row["position"] for row in rows] == list(range(1, 61))
    assert max(row["epsilon"] for row in rows) == ordered["epsilon"]
    assert rows[0]["epsilon"] < rows[-1]["epsilon"]
    event = plan.events[0].event
    for row in (rows[0], rows[30], rows[59]):
        assert row["epsilon"] >= last_iterate.epsilon_at(event, row["position"], 1e-4).value
        assert row["delta"] >= last_iterate.delta_at(event, row["position"], ordered["epsilon"]).value
    assert ordered["gdp"]["to_epsilon"] is None
    assert ordered["gdp"]["mu"] >= last_iterate.gaussian_mu(event)
    assert [row["position"] for row in plan.to_json()["guarantee"]["by_position"]] == list(range(1, 61))


def test_what_is_left_to_be_assumed_is_said(released: Any) -> None:
    told = verify(released(*SEQUENTIAL)[1]).statement.predicate
    text = "\n".join(told.claim.not_protected)
    assert "before its last step" in text
    assert "do not depend on the records" in text
    assert "position in the file" in text
    assert "one event" in told.data_access.training.text
    assert "diameter 4" in told.claim.unit.enforced_by


def test_nothing_of_before_the_end_is_released(released: Any) -> None:
    for _, release in (released(), released(*SEQUENTIAL)):
        assert json.loads((release / "metrics.json").read_text("utf-8"))["history"] == []
        page = (release / "report.html").read_text("utf-8")
        assert "ε spent" not in page
        assert "projected_descent" in page
    assert "Each position in the file" in page
    assert "36 steps" in (released()[1] / "card.md").read_text("utf-8")


def test_a_length_that_was_drawn_is_not_told_as_one_that_was_run(released: Any) -> None:
    release = released("mechanism.stop=random")[1]
    assert "for 1 to 36 steps" in (release / "card.md").read_text("utf-8")
    assert "1 to 36 steps" in (release / "report.html").read_text("utf-8")
    assert "1 to" not in (released()[1] / "card.md").read_text("utf-8").split("## Training")[1]


def test_a_location_has_no_features_to_clip(released: Any) -> None:
    location = ("model={kind: location}", *LAPLACE[1:])
    enforced = verify(released(*location)[1]).claim.unit.enforced_by
    assert enforced.startswith("targets are clipped to their range, so the change of one record")


@pytest.mark.parametrize("attempts", [2, 3])
def test_a_run_that_was_carried_on_is_charged_once_and_verifies(attempts: int, released: Any) -> None:
    release = released(attempts=attempts)[1]
    stated = read_predicate(release)
    assert stated["budget"]["attempts"] == attempts
    assert stated["events"]["total"] == 1
    assert stated["claim"]["epsilon"] == read_predicate(released()[1])["claim"]["epsilon"]
    verify(release)


def test_a_run_that_was_begun_again_and_charged_twice_has_no_certificate_within_this_budget(
    plan_of: Callable[..., Plan], facts_of: Any, tmp_path: Path
) -> None:
    plan = plan_of(RECIPE)
    ledger = spend(tmp_path / "ledger.jsonl", plan, attempts=2, carried=False)
    with pytest.raises(Exception, match="more than the budget"):
        certificate.make_run_predicate(plan, ledger, facts_of(**SCORELESS))
    once, twice = (claim.compute_numbers(plan, (Charge(plan.events[0].event, count),)) for count in (1, 2))
    assert twice.epsilon > 2 * once.epsilon
    assert twice.accounting[2].epsilon == pytest.approx(twice.epsilon, rel=1e-2)


@pytest.fixture
def copy_release(released: Any, tmp_path: Path) -> Callable[..., Path]:
    """A copy of a release, with its ledger, to be tampered with."""

    def copy_folder(*overrides: str, **spending: Any) -> Path:
        shutil.copytree(released(*overrides, **spending)[1].parent, tmp_path / "run")
        return tmp_path / "run" / "release"

    return copy_folder


TAMPERED: dict[str, tuple[str, Any]] = {
    "a smaller ε": ("claim.epsilon", 1.5),
    "a smaller ε of a bound": ("mechanism.projection.bounds.0.epsilon", 1.0),
    "another winner": ("mechanism.projection.winner", "contraction"),
    "more noise in the event": ("events.run_length.0.stages.0.1", 99.0),
    "fewer steps in the event": ("events.run_length.0.stages.0.0", 35),
    "a stronger contraction": ("events.run_length.0.stages.0.2", 0.5),
    "a narrower set": ("events.run_length.0.stages.0.3", 0.1),
    "another order": ("events.run_length.0.order", "sequential"),
    "another stop": ("events.run_length.0.stop", "random"),
    "another batch": ("events.run_length.0.batch", 6),
    "another batch in words": ("mechanism.projection.batch_size", 6),
    "another order in words": ("mechanism.projection.order", "sequential"),
    "other stages in words": ("mechanism.projection.stages.0.noise_scale", 99.0),
    "another relation": ("events.run_length.0.neighbouring", "zero_out_one"),
    "another relation in the claim": ("claim.neighbouring", "zero_out_one"),
    "a run that stopped early": ("budget.stop_reason", "budget"),
    "a place of its own": ("mechanism.by_position", [{"position": 1, "epsilon": 0.1, "delta": 1e-9}]),
    "no problem at all": ("mechanism.projection", None),
    "a model that nothing is proved of": ("provenance.model", "python"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_tampering_is_found_without_the_ledger_too(what: str, copy_release: Any, tampering: Any) -> None:
    release = copy_release()
    shutil.rmtree(release.parent / "private")
    content = json.loads((release / "certificate.json").read_text("utf-8"))
    tampering.set_leaf(content["predicate"], *TAMPERED[what])
    (release / "certificate.json").write_bytes(to_bytes(content))
    assert tampering.failures_of(release), what


def test_a_better_place_than_is_true_is_found(copy_release: Any, tampering: Any) -> None:
    release = copy_release(*SEQUENTIAL)
    text = (release / "certificate.json").read_text("utf-8")
    for path, value in (("mechanism.by_position.3.epsilon", 1e-3), ("mechanism.by_position.59.delta", 1e-9)):
        content = json.loads(text)
        tampering.set_leaf(content["predicate"], path, value)
        (release / "certificate.json").write_bytes(to_bytes(content))
        assert any(path in failure for failure in tampering.failures_of(release))


def test_a_second_event_dropped_from_the_ledger_is_found(copy_release: Any, tampering: Any) -> None:
    """The certificate is of a run charged once; its ledger tells of two."""
    release = copy_release(attempts=2)
    path = release.parent / "private" / "ledger.jsonl"
    plan_digest, event = read(path).plan_digest, read(path).charges[0].event
    path.unlink()
    for done in (False, True):
        writer = LedgerWriter(path, plan_digest)
        writer.reserve(event, 1)
        if done:
            writer.settle(event, 1)
            writer.close("completed")
        else:
            writer.abandon()
    failures = "\n".join(tampering.failures_of(release))
    assert "events.run_length: not what the ledger says" in failures
    assert "events.ledger: not what the ledger says" in failures


def test_a_carry_forged_over_steps_that_were_seen_is_found(finished: Any, tmp_path: Path, tampering: Any) -> None:
    """DP-SGD's noise that was drawn is spent, whoever claims that it went on."""
    shutil.copytree(finished.path, tmp_path / "run")
    path = tmp_path / "run" / "private" / "ledger.jsonl"
    event = finished.plan.events[0].event
    path.unlink()
    writer = LedgerWriter(path, finished.plan.digest)
    writer.reserve(event, 1)
    writer.abandon()
    writer = LedgerWriter(path, finished.plan.digest)
    writer.carry(event)
    writer.settle(event, 1)
    writer.close("completed")
    failures = "\n".join(tampering.failures_of(tmp_path / "run" / "release"))
    assert "only one event with hidden iterates can be carried" in failures


def test_events_of_another_mechanism_hide_nothing(copy_release: Any, tampering: Any) -> None:
    release = copy_release()
    content = json.loads((release / "certificate.json").read_text("utf-8"))
    content["predicate"]["events"]["run_length"].append({"count": 1, "kind": "gaussian", "noise_multiplier": 1.0})
    content["predicate"]["events"]["total"] = 2
    (release / "certificate.json").write_bytes(to_bytes(content))
    assert any("not an event that this recipe plans" in failure for failure in tampering.failures_of(release))


def test_two_numbers_of_the_same_noise_have_two_names(released: Callable[..., tuple[Plan, Path]]) -> None:
    """The recipe's multiplier is relative to L, that of the event to what one record moves."""
    mechanism = verify(released()[1]).statement.predicate.mechanism
    multiplier = f"{mechanism.noise.multiplier:g}"
    text = mechanism_of("pnsgd").certificate.describe_noise(mechanism)
    assert text == f"gaussian noise of {multiplier} × L on the mean gradient"
