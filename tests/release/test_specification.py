"""The test of the specification in certificates: when there is one, its words, and each forged one refused."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid
from dprecipe.privacy.audit.program import make_audit
from dprecipe.privacy.audit.results import Scores, SpecificationTest
from dprecipe.privacy.audit.specification import judge_specification
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.release.audit import render_audit, summarise_audit
from dprecipe.release.audit_checks import find_contradictions
from dprecipe.release.certificate import to_bytes
from dprecipe.release.rebuild import rebuild_predicate
from dprecipe.release.recompute import recompute_numbers
from dprecipe.release.schema import Predicate
from dprecipe.release.specification import charged_mu, describe_test, find_reason_untested
from dprecipe.release.verify import verify
from tests.release.test_forged_audits import CANARIES, WITH_CANARIES, canaries_of_run

FULL = WITH_CANARIES.replace("{scheme: poisson, batch_size: 64}", "{scheme: full_batch}")


def judge(plan: Plan, difference: float = 0.4, **changes: Any) -> SpecificationTest:
    seen = {"inside": CANARIES // 2 - 1, "outside": CANARIES // 2 + 1, **changes.pop("seen", {})}
    terms = {"specified": charged_mu(plan, plan.events), "confidence": 0.95, **changes}
    return judge_specification(Scores(**seen, difference=difference), **terms)


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory, finish: Any, plan_of: Any, facts_of: Any) -> Any:
    """Read only."""
    plan = plan_of(FULL)
    audit = make_audit(plan.digest, bounds=[canaries_of_run(plan)], specification=judge(plan))
    return finish(tmp_path_factory.mktemp("tested") / "run", plan, facts_of(audit=audit))


def test_the_specified_mu_is_that_of_the_charged_steps(plan_of: Any) -> None:
    plan = plan_of(FULL)
    (charge,) = plan.mechanism_plan.events
    mu = math.sqrt(charge.count) / charge.event.noise_multiplier
    assert charged_mu(plan, plan.events) == pytest.approx(mu, rel=1e-5)
    of_a_stage = Charge(Gaussian(1.0), 3)
    assert charged_mu(plan, [of_a_stage, *plan.events]) == charged_mu(plan, plan.events)
    assert charged_mu(plan, [Charge(charge.event, charge.count // 4)]) == pytest.approx(mu / 2, rel=0.02)
    replaced = plan_of(FULL.replace("delta: 1e-5", "delta: 1e-5, neighbouring: replace_one"))
    (charge,) = replaced.mechanism_plan.events
    expected = 2 * math.sqrt(charge.count) / charge.event.noise_multiplier
    assert charged_mu(replaced, replaced.events) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("scheme: full_batch", "scheme: poisson, batch_size: 64", "full batches"),
        ("scheme: full_batch", "scheme: dealt, batch_size: 64", "full batches"),
        ("family: gaussian", "family: laplace", "Gaussian noise"),
        ("clip: {norm: 2.0}", "clip: {mode: per_layer, norm: 2.0}", "several layers"),
        ("canaries: 60", "canaries: 651", "a coordinate each"),
        ("canaries: 60", "canaries: 60, canary: record", "tells of a record"),
    ],
)
def test_scores_of_another_distribution_are_not_tested(old: str, new: str, reason: str, plan_of: Any) -> None:
    assert FULL.count(old) == 1
    assert find_reason_untested(plan_of(FULL), "recipe") is None
    assert find_reason_untested(plan_of(FULL.replace("canaries: 60", "canaries: 650")), "recipe") is None
    assert reason in (find_reason_untested(plan_of(FULL.replace(old, new)), "recipe") or "")


def test_weights_of_a_module_from_python_are_not_counted(tested: Any) -> None:
    assert "a coordinate each" in (find_reason_untested(tested.plan, "python") or "")
    stated = predicate_of(tested)
    stated = stated.model_copy(update={"provenance": stated.provenance.model_copy(update={"model": "python"})})
    assert any("specification: expected exactly" in problem for problem in find_contradictions(stated, tested.plan))


def test_an_alarm_is_a_finding_of_its_own_and_verifies(tmp_path: Any, finish: Any, plan_of: Any, facts_of: Any) -> None:
    """It refutes no claim: one sound run in twenty raises it."""
    plan = plan_of(FULL)
    alarm = judge(plan, 2.0)
    assert not alarm.consistent
    audit = make_audit(plan.digest, bounds=[canaries_of_run(plan)], specification=alarm)
    assert not audit.failed
    verified = verify(finish(tmp_path / "run", plan, facts_of(audit=audit)).release)
    assert any("inconsistent, which refutes no claim" in line for line in verified.checked)
    assert "inconsistent with the specification" in summarise_audit(audit)


def test_words_say_what_an_alarm_means_and_bound_no_epsilon(tested: Any) -> None:
    sound, alarm = (judge(tested.plan, difference) for difference in (0.4, 2.0))
    assert "consistent with the specification: p = " in describe_test(sound)
    assert describe_test(sound).endswith("at level 0.05")
    assert "the guarantee or the Gaussian model of the noise is broken" in describe_test(alarm)
    for test in (sound, alarm):
        audit = make_audit(tested.plan.digest, specification=test)
        assert not [sign for sign in (">=", "≥", "refute") if sign in describe_test(test) + render_audit(audit, "")]
        assert "They bound no ε" in render_audit(audit, "")
    assert "29 canaries in and 31 out" in (tested.release / "report.html").read_text("utf-8")


def predicate_of(tested: Any, plan: Plan | None = None, **changes: Any) -> Predicate:
    content = json.loads((tested.release / "certificate.json").read_text(encoding="utf-8"))
    stated = Predicate.model_validate_json(json.dumps(content["predicate"]))
    assert stated.audit is not None
    return stated.model_copy(update={"audit": stated.audit.model_copy(update=changes)})


def test_a_sound_one_verifies(tested: Any) -> None:
    verified = verify(tested.release)
    assert verified.statement.predicate.audit.specification == judge(tested.plan)
    assert any("scores of its canaries" in line and line.endswith("again: consistent") for line in verified.checked)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"seen": {"outside": 30}}, "specification.evidence"),
        ({"confidence": 0.9}, "specification.confidence"),
        ({"difference": 0.39}, ""),
        ({"specified": 9.0}, "specification.specified_mu"),
    ],
)
def test_a_forged_one_that_is_consistent_in_itself(changes: dict[str, Any], place: str, tested: Any) -> None:
    forged = predicate_of(tested, specification=judge(tested.plan, **changes))
    rebuilt = rebuild_predicate(forged, [])
    assert rebuilt is not None
    found = [*find_contradictions(forged, tested.plan), *recompute_numbers(forged, rebuilt, [])]
    assert any(place in problem for problem in found) if place else not found


def test_one_that_is_left_out_or_that_nobody_expects_is_refused(tested: Any, plan_of: Any) -> None:
    left_out = predicate_of(tested, specification=None)
    assert any("expected exactly" in problem for problem in find_contradictions(left_out, tested.plan))
    sampled = plan_of(WITH_CANARIES)
    stated = predicate_of(tested, program=make_audit(sampled.digest).program)
    assert any("specification: expected exactly" in problem for problem in find_contradictions(stated, sampled))


def test_every_changed_number_is_found(tested: Any, tampering: Any) -> None:
    content = json.loads((tested.release / "certificate.json").read_text(encoding="utf-8"))["predicate"]
    seen = 0
    for path, value in tampering.leaves(content["audit"]["specification"]):
        for changed in tampering.mutations(value):
            seen += 1
            forged = copy.deepcopy(content)
            tampering.set_leaf(forged["audit"]["specification"], path, changed)
            try:
                stated = Predicate.model_validate_json(json.dumps(forged))
            except ValueError:
                continue
            assert find_contradictions(stated, tested.plan), path
    assert seen > 10


def test_verify_refuses_what_these_checks_refuse(tested: Any, tmp_path: Any) -> None:
    content = json.loads((tested.release / "certificate.json").read_text(encoding="utf-8"))
    content["predicate"]["audit"]["specification"]["specified_mu"] = 9.0
    (tmp_path / "certificate.json").write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid):
        verify(tmp_path / "certificate.json")
