"""Audits in certificates: a sound one verifies, and each forged one is refused, at its place."""

from __future__ import annotations

import copy as copies
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid, RunFailed
from dprecipe.noisy_sum.certificate import AUDIT_TESTS
from dprecipe.planning.audit import naming_of
from dprecipe.privacy.audit.implied import implied_epsilon, run_curve, step_curve, step_mu
from dprecipe.privacy.audit.program import make_audit
from dprecipe.privacy.audit.results import AttackTrials, Audit, AuditBound, Excess, Frequency, Guesses, Variance
from dprecipe.privacy.audit.verdicts import judge_bound, judge_test, lower_bound, share_level
from dprecipe.release.audit_checks import find_contradictions
from dprecipe.release.certificate import to_bytes
from dprecipe.release.rebuild import rebuild_predicate
from dprecipe.release.recompute import recompute_numbers
from dprecipe.release.schema import Predicate, Statement
from dprecipe.release.untrusted import ContentError, parse_object, validate_document
from dprecipe.release.verify import verify

STEPS = 1000
AUDITED = f"""\
recipe: dprecipe/v1
name: audited
data:
  train: {{source: digits, split: train}}
  test: {{source: digits, split: test, access: public}}
  size: 1437
model: {{kind: logistic_regression}}
mechanism:
  kind: dpsgd
  clip: {{norm: 2.0}}
  noise: {{family: gaussian, multiplier: auto}}
  sampling: {{scheme: poisson, batch_size: 64}}
budget: {{epsilon: 2.0, delta: 1e-5}}
training:
  steps: 60
  optimizer: {{kind: sgd, lr: 0.5}}
audit: {{program: true, steps: {STEPS}}}
"""
EVIDENCE = {
    "noise_scale": Variance(sum_squares=10_100.0, degrees=10_000),
    "noise_steps": Frequency(successes=510, trials=1000, expected=0.5),
}


def trials_of(positives_in: int, positives_out: int) -> AttackTrials:
    half = STEPS // 2
    return AttackTrials(
        form="mu", positives_in=positives_in, trials_in=half, positives_out=positives_out, trials_out=half
    )


def bound_of(plan: Plan, trials: AttackTrials, **changes: Any) -> Any:
    event = plan.mechanism_plan.events[0].event
    claimed = step_mu(event)
    fields: dict[str, Any] = {"confidence": 0.95, "claimed": claimed, **changes}
    implied = implied_epsilon(
        (),
        plan.mechanism_plan.events,
        plan.budget.neighbouring,
        plan.budget.delta,
        fields["claimed"],
        lower_bound(trials, 0.95),
    )
    return judge_bound("steps", "canary_in_steps", "no easier to tell", trials, implied_epsilon=implied, **fields)


def audit_of(plan: Plan, evidence: dict[str, Any] = EVIDENCE) -> Audit:
    level = share_level(evidence.values())
    tests = [
        judge_test("program", name, f"{name} holds", evidence.get(name, Excess(largest=0.9, allowed=1.0)),
                   level if name in evidence else 0.0)
        for name in sorted(AUDIT_TESTS | {"secrets"})
    ]  # fmt: skip
    return make_audit(plan.digest, tests, [bound_of(plan, trials_of(310, 190))])


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory, finish: Any, plan_of: Any, facts_of: Any) -> Any:
    """Read only."""
    plan = plan_of(AUDITED)
    return finish(tmp_path_factory.mktemp("audited") / "run", plan, facts_of(audit=audit_of(plan)))


def test_a_sound_audit_verifies_and_nobody_says_too_much(audited: Any) -> None:
    verified = verify(audited.release)
    stated = verified.statement.predicate.audit
    assert stated == audited.facts.audit
    assert any("none accuses the program" in line for line in verified.checked)
    assert any("never its absence" in line for line in verified.notes)
    card, report = ((audited.release / name).read_text(encoding="utf-8") for name in ("card.md", "report.html"))
    assert "never its absence" in card
    assert 'aria-label="audit"' in report
    assert "310 of 500 with the canary" in report


def test_a_claim_that_nobody_attacked_says_so_everywhere(finished: Any) -> None:
    verified = verify(finished.release)
    assert any(line.startswith("nobody attacked this claim") for line in verified.notes)
    assert "Nobody attacked this claim" in (finished.release / "card.md").read_text(encoding="utf-8")
    assert "Nobody attacked this claim" in (finished.release / "report.html").read_text(encoding="utf-8")


Change = Callable[[dict[str, Any], Plan], None]


def put(place: str, value: Any) -> Change:
    *path, last = [int(step) if step.isdecimal() else step for step in place.split(".")]

    def change(audit: dict[str, Any], plan: Plan) -> None:
        inner: Any = audit
        for step in path:
            inner = inner[step]
        inner[last] = value(inner[last]) if callable(value) else value

    return change


def find(audit: dict[str, Any], name: str) -> int:
    return next(i for i, test in enumerate(audit["tests"]) if test["id"] == name)


def on_test(name: str, **values: Any) -> Change:
    def change(audit: dict[str, Any], plan: Plan) -> None:
        audit["tests"][find(audit, name)].update(values)

    return change


def remove_failed_test(audit: dict[str, Any], plan: Plan) -> None:
    """And make the levels of the others those of the tests that are left."""
    del audit["tests"][find(audit, "noise_scale")]
    audit["tests"][find(audit, "noise_steps")]["level"] = 1e-6


def replace_bound(trials: AttackTrials, **changes: Any) -> Change:
    def change(audit: dict[str, Any], plan: Plan) -> None:
        audit["bounds"][0] = bound_of(plan, trials, **changes).model_dump(mode="json")

    return change


def fail_test(audit: dict[str, Any], plan: Plan) -> None:
    test = judge_test("program", "noise_scale", "noise_scale holds", Variance(sum_squares=2500.0, degrees=10_000), 5e-7)
    audit["tests"][find(audit, "noise_scale")] = test.model_dump(mode="json")


def raise_claim(audit: dict[str, Any], plan: Plan) -> None:
    """A larger claim for a larger bound: consistent in itself."""
    replace_bound(trials_of(340, 160), claimed=2 * step_mu(plan.mechanism_plan.events[0].event))(audit, plan)


def add_bound_of_program(audit: dict[str, Any], plan: Plan) -> None:
    """A smaller claim than the run's own, beside it."""
    seen = trials_of(310, 190).model_copy(update={"form": "epsilon"})
    bound = judge_bound("program", "made_up", "no easier to tell", seen, confidence=0.95, claimed=0.01, delta=0.5)
    audit["bounds"].append(bound.model_dump(mode="json"))


def add_slow_tests(audit: dict[str, Any], plan: Plan) -> None:
    """Each takes seconds to compute again."""
    slow = {"kind": "distance", "statistic": 0.001, "sample": 10**6}
    audit["tests"] += [{**audit["tests"][0], "id": f"slow_{n}", "evidence": slow} for n in range(100)]


def add_slow_bounds(audit: dict[str, Any], plan: Plan) -> None:
    """Each takes minutes to compute again, with sizes that the recipe does not ask for."""
    slow = audit["bounds"][0]["evidence"] | {"trials_in": 10**7, "trials_out": 10**7}
    audit["bounds"] += [{**audit["bounds"][0], "id": f"slow_{n}", "evidence": slow} for n in range(9)]


def other_run(audit: dict[str, Any], plan: Plan) -> None:
    audit["program"] = make_audit("sha256:" + "0" * 64).program


BOUND = "bounds.0"
FORGED: dict[str, tuple[Change, str]] = {
    "more_called_in": (put(f"{BOUND}.evidence.positives_in", lambda n: n + 9), f"{BOUND}.lower"),
    "fewer_called_in_without": (put(f"{BOUND}.evidence.positives_out", lambda n: n - 9), f"{BOUND}.lower"),
    "more_trials_than_asked": (replace_bound(trials_of(310, 190).model_copy(update={"trials_in": 600})), "evidence"),
    "lower_raised": (put(f"{BOUND}.lower", lambda x: 1.01 * x), f"{BOUND}.lower"),
    "lower_lowered": (put(f"{BOUND}.lower", lambda x: 0.99 * x), f"{BOUND}.lower"),
    "confidence_changed": (put(f"{BOUND}.confidence", 0.9), f"{BOUND}"),
    "consistent_at_another_confidence": (replace_bound(trials_of(310, 190), confidence=0.5), f"{BOUND}.confidence"),
    "claimed_changed": (put(f"{BOUND}.claimed", lambda x: 1.5 * x), f"{BOUND}"),
    "consistent_for_another_claim": (raise_claim, f"{BOUND}.claimed"),
    "refuted_bound": (replace_bound(trials_of(450, 50)), f"{BOUND}.refuted"),
    "refuted_bound_called_sound": (
        lambda audit, plan: [
            change(audit, plan) for change in (replace_bound(trials_of(450, 50)), put(f"{BOUND}.refuted", False))
        ],
        f"{BOUND}.refuted",
    ),
    "smaller_power_told": (put(f"{BOUND}.smallest_fault", lambda x: 0.9 * x), f"{BOUND}.smallest_fault"),
    "no_power_told": (put(f"{BOUND}.smallest_fault", None), f"{BOUND}.smallest_fault"),
    "implied_changed": (put(f"{BOUND}.implied_epsilon", lambda x: 0.9 * x), f"{BOUND}.implied_epsilon"),
    "implied_left_out": (put(f"{BOUND}.implied_epsilon", None), f"{BOUND}.implied_epsilon"),
    "bound_of_another_depth": (put(f"{BOUND}.depth", "releases"), "audit"),
    "bounds_removed": (put("bounds", []), "audit"),
    "bound_twice": (lambda audit, plan: audit["bounds"].append(copies.deepcopy(audit["bounds"][0])), "appears twice"),
    "failed_test": (fail_test, "passed"),
    "failed_test_called_passed": (
        lambda audit, plan: (fail_test(audit, plan), on_test("noise_scale", passed=True)(audit, plan)), "passed",
    ),
    "failed_test_with_a_better_p_value": (
        lambda audit, plan: (fail_test(audit, plan), on_test("noise_scale", passed=True, p_value=0.5)(audit, plan)),
        "p_value",
    ),
    "failed_test_removed": (remove_failed_test, "noise_scale"),
    "all_tests_removed": (put("tests", []), "depth program is missing"),
    "tests_twice": (lambda audit, plan: audit["tests"].extend(copies.deepcopy(audit["tests"])), "appears twice"),
    "level_lowered": (on_test("noise_scale", level=1e-9), "level"),
    "deterministic_test_given_a_level": (on_test("lattice", level=1e-7), "level"),
    "choices_lowered": (on_test("noise_steps", choices=1000), "p_value"),
    "other_program": (other_run, "program"),
    "other_sources": (put("sources", "sha256:" + "0" * 64), "program"),
    "bound_of_the_program": (add_bound_of_program, "bounds.1.depth"),
    "slow_tests": (add_slow_tests, "more samples or trials"),
    "slow_bounds": (add_slow_bounds, "more samples or trials"),
    "slow_trials": (put(f"{BOUND}.evidence.trials_in", 10**7), "not as many trials"),
    "negative_counts": (put(f"{BOUND}.evidence.positives_out", -1), "positives_out"),
    "huge_counts": (put(f"{BOUND}.evidence.trials_in", 10**15), "trials_in"),
    "more_right_than_tried": (put(f"{BOUND}.evidence.positives_in", 501), "evidence"),
    "not_a_number": (put(f"{BOUND}.lower", "NaN"), "NaN is not a number"),
    "infinite": (put(f"{BOUND}.claimed", 1e999), ""),
    "audit_left_out": (lambda audit, plan: audit.clear(), "audit"),
}  # fmt: skip


def forge(name: str, audited: Any) -> bytes:
    content = json.loads((audited.release / "certificate.json").read_text(encoding="utf-8"))
    FORGED[name][0](content["predicate"]["audit"], audited.plan)
    content["predicate"]["audit"] = content["predicate"]["audit"] or None
    return json.dumps(content).replace('"NaN"', "NaN").encode()


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_audit_is_refused(name: str, audited: Any) -> None:
    """By its form, or by the checks of an audit; `verify` makes both, before all others."""
    try:
        stated = validate_document(Statement, parse_object(forge(name, audited), "forged"), "forged")
        failures = tuple(find_contradictions(stated.predicate, audited.plan))
    except ContentError as refused:
        failures = refused.failures
    assert any(FORGED[name][1] in failure for failure in failures), failures


@pytest.mark.parametrize("name", ["lower_lowered", "failed_test_removed"])
def test_verify_refuses_what_these_checks_refuse(name: str, audited: Any, tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_bytes(to_bytes(json.loads(forge(name, audited))))
    with pytest.raises(CertificateInvalid) as refused:
        verify(tmp_path / "certificate.json")
    assert any(FORGED[name][1] in failure for failure in refused.value.failures)


def test_enough_forgeries_are_tried() -> None:
    assert len(FORGED) >= 20


def test_an_audit_that_nobody_asked_for_is_refused(finished: Any, audited: Any, tmp_path: Path) -> None:
    content = json.loads((finished.release / "certificate.json").read_text(encoding="utf-8"))
    content["predicate"]["audit"] = audit_of(finished.plan).model_dump(mode="json")
    (tmp_path / "certificate.json").write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid) as refused:
        verify(tmp_path / "certificate.json")
    assert any(failure.startswith("audit: expected exactly") for failure in refused.value.failures)


def test_no_certificate_is_made_of_a_program_that_its_audit_accuses(
    tmp_path: Path, finish: Any, plan_of: Any, facts_of: Any
) -> None:
    plan = plan_of(AUDITED)
    accused = audit_of(plan, {**EVIDENCE, "noise_scale": Variance(sum_squares=2500.0, degrees=10_000)})
    with pytest.raises(RunFailed, match="noise_scale"):
        finish(tmp_path / "run", plan, facts_of(audit=accused))
    assert not (tmp_path / "run" / "release").exists()


def test_the_report_of_another_audit_is_refused(audited: Any, tmp_path: Path) -> None:
    shutil.copytree(audited.release, tmp_path / "release")
    page = tmp_path / "release" / "report.html"
    page.write_text(page.read_text(encoding="utf-8").replace("310 of 500", "311 of 500"), encoding="utf-8")
    with pytest.raises(CertificateInvalid):
        verify(tmp_path / "release")


CANARIES = 60
WITH_CANARIES = AUDITED.replace(f"{{program: true, steps: {STEPS}}}", f"{{program: false, canaries: {CANARIES}}}")


def canaries_of_run(plan: Plan, **changes: Any) -> AuditBound:
    each = naming_of(plan).each
    fields = {"canaries": CANARIES, "named_in": each, "named_out": each, "correct": round(1.2 * each)}
    fields |= {name: changes.pop(name) for name in tuple(changes) if name in fields}
    bound: dict[str, Any] = {"confidence": 0.95, "claimed": plan.guarantee.epsilon, "delta": plan.budget.delta}
    budget = plan.budget
    bound["curve"] = run_curve(plan.events, budget.neighbouring, budget.accountant, plan.guarantee.epsilon)
    return judge_bound("canaries", "gradient_canaries", "tell no more", Guesses(**fields), **{**bound, **changes})


@pytest.fixture(scope="module")
def with_canaries(tmp_path_factory: pytest.TempPathFactory, finish: Any, plan_of: Any, facts_of: Any) -> Any:
    """Read only."""
    plan = plan_of(WITH_CANARIES)
    audit = make_audit(plan.digest, bounds=[canaries_of_run(plan)])
    return finish(tmp_path_factory.mktemp("canaries") / "run", plan, facts_of(audit=audit))


def test_canaries_of_a_run_verify(with_canaries: Any) -> None:
    verified = verify(with_canaries.release)
    assert verified.statement.predicate.audit.bounds[0].claimed == verified.claim.epsilon


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"canaries": CANARIES + 1}, "evidence.canaries"),
        ({"named_in": 1, "correct": 1}, "evidence.named_in"),
        ({"named_out": 2, "named_in": 2, "correct": 4}, "evidence.named_in"),
        ({"claimed": 7.9}, "claimed"),
        ({"delta": 1e-4}, "claimed"),
        ({"confidence": 0.9}, "confidence"),
        ({"correct": "all"}, "refuted"),
    ],
)
def test_forged_canaries_are_refused(changes: dict[str, Any], place: str, with_canaries: Any) -> None:
    """Each consistent in itself."""
    plan = with_canaries.plan
    if changes.get("correct") == "all":
        changes = {"correct": 2 * naming_of(plan).each, "claimed": 0.5}
    forged = replace_audit(with_canaries, [canaries_of_run(plan, **changes)])
    assert any(place in failure for failure in find_contradictions(forged, plan))


@pytest.mark.parametrize("change", [lambda points: points[1:], lambda points: [(e, d / 2) for e, d in points]])
def test_another_curve_than_that_of_the_events_is_refused(change: Any, with_canaries: Any) -> None:
    plan = with_canaries.plan
    curve = [(point.epsilon, point.delta) for point in canaries_of_run(plan).curve or ()]
    forged = replace_audit(with_canaries, [canaries_of_run(plan, curve=change(curve))])
    sound, rebuilt = replace_audit(with_canaries, [canaries_of_run(plan)]), rebuild_predicate(forged, [])
    assert rebuilt is not None
    assert any("audit.bounds.0.curve" in problem for problem in recompute_numbers(forged, rebuilt, []))
    assert not any("curve" in problem for problem in recompute_numbers(sound, rebuilt, []))


def test_canaries_that_are_left_out_or_twice_are_refused(with_canaries: Any) -> None:
    bound = canaries_of_run(with_canaries.plan)
    for bounds, word in (([], "canaries is missing"), ([bound, bound.model_copy(update={"id": "more"})], "one bound")):
        failures = find_contradictions(replace_audit(with_canaries, bounds), with_canaries.plan)
        assert any(word in failure for failure in failures)


def replace_audit(finished: Any, bounds: list[AuditBound]) -> Predicate:
    content = json.loads((finished.release / "certificate.json").read_text(encoding="utf-8"))
    stated = Predicate.model_validate_json(json.dumps(content["predicate"]))
    return stated.model_copy(update={"audit": make_audit(finished.plan.digest, bounds=bounds)})


UNCHECKED = re.compile(r"tests\.\d+\.(id|text|choices|evidence\..*)|bounds\.\d+\.(id|text)")
"""Words, what was counted in tests, and tests that not every audit has. What was counted in bounds shows in them."""


def test_every_changed_leaf_of_an_audit_is_found(audited: Any, tampering: Any) -> None:
    content = json.loads((audited.release / "certificate.json").read_text(encoding="utf-8"))["predicate"]
    seen = 0
    for path, value in tampering.leaves(content["audit"]):
        if UNCHECKED.fullmatch(path):
            continue
        for changed in tampering.mutations(value):
            seen += 1
            forged = copies.deepcopy(content)
            tampering.set_leaf(forged["audit"], path, changed)
            try:
                stated = Predicate.model_validate_json(json.dumps(forged))
            except ValueError:
                continue
            assert find_contradictions(stated, audited.plan), path
    assert seen > 100


@pytest.mark.slow
def test_steps_of_other_noise_are_held_against_the_curve_of_a_step(
    tmp_path: Path, finish: Any, plan_of: Any, facts_of: Any
) -> None:
    """Laplace noise has no μ: the rate of right answers is bounded, beside what the step's own profile allows."""
    text = AUDITED.replace("family: gaussian", "family: laplace")
    plan = plan_of(text.replace("program: true", "program: false"))
    trials = trials_of(300, 200).model_copy(update={"form": "rate"})

    def bound(curve: Any) -> AuditBound:
        return judge_bound("steps", "canary_in_steps", "no easier", trials, confidence=0.95, curve=curve)

    curve = step_curve(plan.mechanism_plan.events[0].event)
    finished = finish(tmp_path / "run", plan, facts_of(audit=make_audit(plan.digest, bounds=[bound(curve)])))
    assert verify(finished.release).statement.predicate.audit.bounds[0].measure == "rate"
    looser = [(2 * epsilon, delta) for epsilon, delta in curve]
    failures = find_contradictions(replace_audit(finished, [bound(looser)]), plan)
    assert any("curve" in failure for failure in failures)
