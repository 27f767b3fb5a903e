"""Releases of teachers that vote: what a certificate says of them, and ways to claim less than the filter's limit."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dprecipe.cli.plan import plan_lines
from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid, RunFailed
from dprecipe.mechanisms.pate.certificate import CHECKS_OF_A_FILE, count_answered
from dprecipe.mechanisms.pate.charges import count_queries
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.theory import sanitise
from dprecipe.mechanisms.pate.theory.filter import GaussianFilter
from dprecipe.mechanisms.pate.theory.sanitise import Sanitised
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, charge_from_json, count_events
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.recipe.read import read_text
from dprecipe.release import certificate, figures, rebuild
from dprecipe.release.certificate import to_bytes
from dprecipe.release.facts import CheckResult, SpentBudget
from dprecipe.release.schema import Predicate
from dprecipe.release.verify import verify
from tests.sweeps import sweep

RECIPE = """\
recipe: dprecipe/v1
name: votes
data:
  train: {{source: npz, path: absent.npz, shape: [4], classes: 3}}
  public: {{source: npz, path: other.npz, shape: [4], records: [0, 900]}}
  test: {{source: npz, path: other.npz, shape: [4], classes: 3, records: [900, 999], access: public}}
  size: 60000
model: {{kind: mlp, hidden: [3]}}
mechanism:
  kind: pate
  teachers: {{count: 2000, model: {{kind: logistic_regression}}}}
  aggregator: {aggregator}
  queries: {queries}
{more}
budget: {{epsilon: {epsilon}, delta: 1e-5}}
training: {{steps: 40, batch_size: 16, optimizer: {{kind: sgd, lr: 1.0}}}}
"""
CONFIDENT = (
    "{kind: confident_gnmax, noise: {family: gaussian, multiplier: 40}, "
    "selection: {threshold: 200, noise: {family: gaussian, multiplier: 150}}}"
)
INTERACTIVE = (
    "{kind: interactive_gnmax, noise: {family: gaussian, multiplier: 40}, "
    "selection: {threshold: 200, noise: {family: gaussian, multiplier: 150}}, interaction: {rounds: 3}}"
)
GNMAX = "{kind: gnmax, noise: {family: gaussian, multiplier: 100}}"
LNMAX = "{kind: lnmax, noise: {family: laplace, multiplier: 20}}"
SANITIZE = """\
  analysis: data_dependent
  sanitize: {method: smooth_sensitivity, order: 12, beta: 0.03, multiplier: 9, scale_multiplier: 12, delta: 1e-6}
"""
PUBLISHED = Sanitised(0.05, -7.0)
FILE = "teachers: {count: 2000, votes: {path: votes.npz}}"


def recipe(aggregator: str = CONFIDENT, queries: str = "{max: 640}", more: str = "", epsilon: str = "2.0") -> str:
    return RECIPE.format(aggregator=aggregator, queries=queries, more=more, epsilon=epsilon)


@dataclass
class Ballot:
    """Puts queries as a run does: in blocks, the filter asked before each, what it has left charged at the end."""

    plan: Plan
    path: Path
    passes: Callable[[int], bool] = lambda query: query % 3 == 0

    def __post_init__(self) -> None:
        self.check = next((c.event for c in self.plan.events if isinstance(c.event, NoisyThreshold)), None)
        self.answer = next(c.event for c in self.plan.events if isinstance(c.event, NoisyMax))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.queries_put = self.answered = 0

    def run(self, crash: tuple[str, int] | None = None, block: int = 100) -> str:
        """`crash`: the attempt dies in the reservation of the named event after so many queries."""
        writer = LedgerWriter(self.path, self.plan.digest)
        charged = [] if writer.before is None else list(writer.before.charges)
        limit, max_answers = self.plan.mechanism_plan.filter_limit, self.plan.mechanism_plan.answers
        reason = "completed"

        def pay(event: Any, count: int, dies: bool) -> None:
            writer.reserve(event, count)
            charged.append(Charge(event, count))
            if dies:
                writer.abandon()
                raise KeyboardInterrupt
            writer.settle(event, count)

        while self.queries_put < self.plan.length.steps and self.answered < max_answers:
            count = min(block, self.plan.length.steps - self.queries_put, max_answers - self.answered)
            while limit is not None and count:
                wanted = [Charge(self.check, count), Charge(self.answer, count)]
                if GaussianFilter(limit).holds([*charged, *wanted]):
                    break
                count //= 2
            if not count:
                reason = "budget"
                break
            crashing = crash is not None and self.queries_put >= crash[1]
            passed = count
            if self.check is not None:
                pay(self.check, count, crashing and crash is not None and crash[0] == "check")
                passed = sum(self.passes(query) for query in range(self.queries_put, self.queries_put + count))
            if passed:
                pay(self.answer, passed, crashing and crash is not None and crash[0] == "answer")
            self.queries_put += count
            self.answered += passed
        for planned in self.plan.events:
            if isinstance(planned.event, SanitisedCost):
                pay(planned.event, 1, False)
        votes = [charge for charge in charged if not isinstance(charge.event, SanitisedCost)]
        rest = None if limit is None else GaussianFilter(limit).rest(votes)
        if rest is not None:
            pay(rest, 1, crash is not None and crash[0] == "rest")
        writer.close(reason)  # type: ignore[arg-type]
        return reason


HISTORY = [
    {"step": 300, "epsilon": 1.9, "accuracy": 0.7, "loss": 1.0},
    {"step": 310, "epsilon": 2, "accuracy": 0.9, "loss": 1.0},
]


@pytest.fixture(scope="session")
def publish(facts_of: Callable[..., Any], put_release: Callable[..., Any]) -> Callable[..., Path]:
    def publish(where: Path, plan: Plan, passes: Callable[[int], bool] = lambda q: q % 3 == 0, **facts: Any) -> Path:
        ballot = Ballot(plan, where / "private" / "ledger.jsonl", passes)
        for crash in facts.pop("crashes", ()):
            with pytest.raises(KeyboardInterrupt):
                ballot.run(crash, max(1, -(-plan.length.steps // 50)))
        ballot.run()
        lost_steps = count_queries(read(ballot.path).charges) - ballot.queries_put
        if plan.mechanism_plan.publication is not None:
            facts.setdefault("published", PUBLISHED)
        run = facts_of(mechanism="pate", steps_lost=lost_steps, **facts)
        put_release(where / "release", plan, read(ballot.path), run, HISTORY)
        return where / "release"

    return publish


@pytest.fixture(scope="session")
def plans(plan_of: Callable[..., Plan]) -> Callable[..., Plan]:
    return lambda *args, overrides=("release.report=false",), **kwargs: plan_of(recipe(*args, **kwargs), overrides)


@pytest.fixture(scope="session")
def confident(plans: Callable[..., Plan]) -> Plan:
    plan = plans(overrides=())
    assert [charge.event.kind for charge in plan.events] == ["noisy_threshold", "noisy_max", "filter_rest"]
    return plan


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory, confident: Plan, publish: Callable[..., Path]) -> Path:
    """Read only."""
    return publish(tmp_path_factory.mktemp("votes") / "run", confident)


@pytest.fixture(scope="session")
def sanitised(
    tmp_path_factory: pytest.TempPathFactory, plans: Callable[..., Plan], publish: Callable[..., Path]
) -> Path:
    """Read only."""
    return publish(tmp_path_factory.mktemp("sanitised") / "run", plans(more=SANITIZE, epsilon="3.0", overrides=()))


@pytest.fixture
def release(published: Path, tmp_path: Path) -> Path:
    """A release of one's own, without the ledger beside it: what a stranger is given."""
    shutil.copytree(published, tmp_path / "release")
    return tmp_path / "release"


def list_failures(release: Path, change: Callable[[dict[str, Any]], None]) -> list[str]:
    file = release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content["predicate"])
    file.write_bytes(to_bytes(content))
    try:
        verify(release)
    except CertificateInvalid as error:
        return list(error.failures)
    return []


def stated(release: Path) -> Any:
    return verify(release).statement.predicate


@pytest.mark.parametrize(
    "passes",
    sweep([lambda q: False, lambda q: q == 7, lambda q: q % 3 == 0, lambda q: True], (0, 2)),
    ids=["none", "one", "a third", "all"],
)
@pytest.mark.parametrize(
    ("queries", "epsilon"), [("{max: 640}", "2.0"), ("{max: 640, answers: 60}", "2.0"), ("{max: 30}", "auto")]
)
def test_the_claim_is_the_plans_whatever_was_answered(
    passes: Any, queries: str, epsilon: str, plans: Any, publish: Any, tmp_path: Path
) -> None:
    plan = plans(queries=queries, epsilon=epsilon)
    facts = stated(publish(tmp_path / "run", plan, passes))
    assert facts.claim.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-9)
    assert facts.claim.epsilon <= plan.budget.epsilon
    assert facts.mechanism.voting.filter == plan.mechanism_plan.filter_limit
    assert facts.mechanism.voting.queries_charged == facts.sampling.steps_charged


@pytest.mark.parametrize(
    ("aggregator", "kinds"),
    [
        (GNMAX, ["noisy_max"]),
        (LNMAX, ["noisy_max"]),
        (INTERACTIVE, ["noisy_threshold", "noisy_max", "filter_rest"]),
    ],
)
@pytest.mark.parametrize("more", ["", SANITIZE])
def test_every_aggregator_has_a_certificate_that_verifies(
    aggregator: str, kinds: list[str], more: str, plans: Any, publish: Any, tmp_path: Path
) -> None:
    if more and aggregator is INTERACTIVE:
        return
    plan = plans(aggregator, "{max: 100}", more, epsilon="6.0" if aggregator is not INTERACTIVE else "1.0")
    facts = stated(publish(tmp_path / "run", plan))
    assert sorted({run.kind for run in facts.events.run_length}) == sorted(kinds + (["sanitised_cost"] if more else []))
    assert facts.claim.epsilon == plan.guarantee.epsilon
    assert (facts.mechanism.voting.filter is None) == (aggregator is not INTERACTIVE)
    assert (facts.mechanism.data_dependent is not None) == bool(more)
    assert facts.accounting[2].epsilon == pytest.approx(
        facts.accounting[1].epsilon if more else facts.claim.epsilon, rel=1e-3
    )


def test_replacing_a_record_costs_what_adding_one_does(plans: Any, publish: Any, tmp_path: Path) -> None:
    plan = plans(
        overrides=(
            "release.report=false",
            "budget.neighbouring=replace_one",
        )
    )
    facts = stated(publish(tmp_path / "run", plan))
    assert facts.claim.neighbouring == "replace_one"
    assert facts.mechanism.voting.filter == plans().mechanism_plan.filter_limit


def test_it_says_who_voted_and_who_is_protected(published: Path, confident: Plan) -> None:
    facts = stated(published)
    votes = facts.mechanism.voting
    assert (votes.teachers, votes.classes, votes.aggregator) == (2000, 3, "confident_gnmax")
    assert (votes.threshold, votes.selection_multiplier) == (200.0, 150.0)
    assert (votes.queries_planned, votes.answers_planned) == (640, 640)
    assert 0 < votes.answers_charged < votes.queries_charged <= 640
    assert facts.mechanism.noise.multiplier == facts.mechanism.noise.standard_deviation == 40.0
    assert facts.mechanism.aggregation.divisor is None
    assert facts.sampling.scheme == "disjoint_parts"
    assert facts.sampling.expected_batch == 30.0
    assert "keyed hash of the record number" in facts.claim.unit.enforced_by
    assert any("2000" in line for line in facts.claim.not_protected)
    assert facts.data_access.public.status == "public"
    assert "labels of the answered queries" in facts.claim.sentence
    checked = verify(published).checked
    assert any("whatever was answered" in line for line in checked)


def test_votes_of_another_ensemble_are_declared(plans: Any, publish: Any, tmp_path: Path) -> None:
    text = recipe().replace("teachers: {count: 2000, model: {kind: logistic_regression}}", FILE)
    plan = make_plan(read_text(text, "votes.yaml"))
    checks = tuple(CheckResult(name, name, True) for name in sorted(CHECKS_OF_A_FILE))
    facts = stated(publish(tmp_path / "run", plan, checks=checks))
    assert facts.claim.unit.enforced_by.startswith("declared")
    assert facts.mechanism.voting.teachers_from == "file"
    with pytest.raises(CertificateInvalid, match="vote_counts is missing"):
        verify(publish(tmp_path / "other", plan))


def test_deltas_of_users_and_columns_that_name_records(plans: Any, publish: Any, tmp_path: Path) -> None:
    plan = plans(
        overrides=(
            "release.report=false",
            "data.unit={column: user, max_records: 5}",
        )
    )
    unit = stated(publish(tmp_path / "run", plan)).claim.unit
    assert (unit.name, unit.column, unit.max_records) == ("group of records with the same 'user'", "user", 5)
    assert "keyed hash of the 'user'" in unit.enforced_by


# forging


SECTIONS = (
    *("claim", "mechanism", "sampling", "events", "accounting", "assumptions", "data_access"),
    *("budget", "randomness", "numerics", "checks", "provenance"),
)
RECORDED_ONLY = (
    r"provenance\.versions\.(python|numpy|scipy|scikit-learn|torch|lightning|safetensors|cryptography)",
    r"provenance\.(recipe\.file|device|started|finished|model|data|data_commitment\.value)",
    r"checks\.\d+\.(text|measured)|data_access\.evaluation\.released\.(accuracy|loss|records)",
    r"mechanism\.data_dependent\.noisy_.*",  # found too, by what follows from it
)


@pytest.mark.slow
@pytest.mark.parametrize("section", sweep(SECTIONS, (0, 1, 3, 4)))
def test_every_changed_leaf_is_found_and_named(section: str, sanitised: Path, tmp_path: Path, tampering: Any) -> None:
    shutil.copytree(sanitised.parent, tmp_path / "run")
    seen, wrong = tampering.find_unnoticed(tmp_path / "run" / "release", section, RECORDED_ONLY)
    assert seen
    assert not wrong


def runs_of(predicate: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    return (run for run in predicate["events"]["run_length"] if run["kind"] == kind)


def consistent(predicate: dict[str, Any], plan: Plan) -> None:
    """Everything that follows from the events is made to follow from them: a lie without a seam."""
    charges = tuple(charge_from_json(run) for run in predicate["events"]["run_length"])
    predicate["events"]["total"] = count_events(charges)
    predicate["budget"]["events_settled"] = count_events(charges) - predicate["budget"]["events_reserved_unsettled"]
    claimed = Predicate.model_validate_json(json.dumps(predicate))
    rebuilt = certificate.make_predicate(plan, rebuild.read_spent(claimed, charges), rebuild.read_run(claimed))
    predicate.update(certificate.to_json(rebuilt))


def test_a_lie_without_a_seam_is_the_truth_when_nothing_is_changed(release: Path, confident: Plan) -> None:
    original = json.loads((release / "certificate.json").read_text(encoding="utf-8"))["predicate"]
    changed = json.loads(json.dumps(original))
    consistent(changed, confident)
    assert changed == original


@pytest.mark.parametrize("factor", [1.01, 1e3])
def test_less_than_the_filters_limit_is_refused(factor: float, release: Path, confident: Plan) -> None:
    def change(predicate: dict[str, Any]) -> None:
        next(runs_of(predicate, "filter_rest"))["noise_multiplier"] *= factor
        consistent(predicate, confident)

    original = json.loads((release / "certificate.json").read_text(encoding="utf-8"))["predicate"]["claim"]["epsilon"]
    failures = list_failures(release, change)
    changed = json.loads((release / "certificate.json").read_text(encoding="utf-8"))["predicate"]["claim"]["epsilon"]
    assert changed < original
    assert any("less than the filter's limit" in failure for failure in failures)


def test_what_is_left_can_t_be_left_out(release: Path, confident: Plan) -> None:
    def change(predicate: dict[str, Any]) -> None:
        runs = predicate["events"]["run_length"]
        runs[:] = [run for run in runs if run["kind"] != "filter_rest"]
        consistent(predicate, confident)

    assert any("less than the filter's limit" in failure for failure in list_failures(release, change))


def test_fewer_answers_than_were_given_are_refused(release: Path, confident: Plan) -> None:
    """Half of the answers, all else left alone; and with what is left made to fit, which gains nothing."""

    def halve(predicate: dict[str, Any]) -> None:
        for run in runs_of(predicate, "noisy_max"):
            run["count"] = max(1, run["count"] // 2)
        consistent(predicate, confident)

    assert any("less than the filter's limit" in failure for failure in list_failures(release, halve))

    def fit(predicate: dict[str, Any]) -> None:
        runs = predicate["events"]["run_length"]
        votes = GaussianFilter(confident.mechanism_plan.filter_limit)
        charges = [Charge(NoisyMax("gaussian", 40.0), r["count"]) for r in runs_of(predicate, "noisy_max")]
        charges += [Charge(NoisyThreshold(150.0), r["count"]) for r in runs_of(predicate, "noisy_threshold")]
        rest = votes.rest(charges)
        assert rest is not None
        runs[-1]["noise_multiplier"] = rest.noise_multiplier
        consistent(predicate, confident)
        assert predicate["claim"]["epsilon"] == pytest.approx(confident.guarantee.epsilon, rel=1e-9)

    list_failures(release, fit)


def test_more_noise_than_the_recipe_plans_is_refused(release: Path, confident: Plan) -> None:
    for kind in ("noisy_max", "noisy_threshold"):

        def change(predicate: dict[str, Any], kind: str = kind) -> None:
            for run in runs_of(predicate, kind):
                run["noise_multiplier"] = 400.0
            consistent(predicate, confident)

        copy = release.with_name(kind)
        shutil.copytree(release, copy)
        assert any("not an event that this recipe plans" in failure for failure in list_failures(copy, change))


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_multiplier": 1e-200},
        {"noise_multiplier": 1e-320},
        {"count": 10**12, "noise_multiplier": 1e-150},
        {"count": 2},
        {"kind": "gaussian"},
        {"kind": "noisy_threshold"},
        {"kind": "sanitised_cost"},
    ],
    ids=str,
)
def test_a_rest_that_is_none_is_refused(changed: dict[str, Any], release: Path) -> None:
    def change(predicate: dict[str, Any]) -> None:
        next(runs_of(predicate, "filter_rest")).update(changed)

    assert any("events" in failure for failure in list_failures(release, change))


def test_a_rest_before_the_end_and_a_rest_in_two_are_refused(release: Path, confident: Plan) -> None:
    def first(predicate: dict[str, Any]) -> None:
        runs = predicate["events"]["run_length"]
        runs.insert(0, runs.pop())
        consistent(predicate, confident)

    def split(predicate: dict[str, Any]) -> None:
        runs = predicate["events"]["run_length"]
        square = runs[-1]["noise_multiplier"] ** -2
        runs[-1]["noise_multiplier"] = (square / 3) ** -0.5
        runs.append({**runs[-1], "noise_multiplier": (2 * square / 3) ** -0.5})
        consistent(predicate, confident)

    for change in (first, split):
        copy = release.with_name(change.__name__)
        shutil.copytree(release, copy)
        assert any("charged once" in failure for failure in list_failures(copy, change))


def replace_rest(confident: Plan, checks: int, answers: int) -> list[dict[str, Any]]:
    """Charges up to the limit that no run of the recipe makes."""
    charges = [Charge(NoisyThreshold(150.0), checks), Charge(NoisyMax("gaussian", 40.0), answers)]
    rest = GaussianFilter(confident.mechanism_plan.filter_limit).rest(charges)
    charges += [] if rest is None else [Charge(rest, 1)]
    return [certificate.RUNS.validate_python(c.to_json()).model_dump(mode="json") for c in charges if c.count]


@pytest.mark.parametrize(
    ("checks", "answers", "why"), [(641, 10, "queries than are planned"), (100, 101, "answers than queries")]
)
def test_more_than_can_be_asked_is_refused(checks: int, answers: int, why: str, release: Path, confident: Plan) -> None:
    def change(predicate: dict[str, Any]) -> None:
        predicate["events"]["run_length"] = replace_rest(confident, checks, answers)
        consistent(predicate, confident)

    assert any(why in failure for failure in list_failures(release, change))


def test_more_answers_than_the_recipe_allows_are_refused(plans: Any, publish: Any, tmp_path: Path) -> None:
    plan = plans(queries="{max: 640, answers: 60}")
    release = publish(tmp_path / "run", plan)
    (tmp_path / "run" / "private" / "ledger.jsonl").unlink()

    def change(predicate: dict[str, Any]) -> None:
        predicate["events"]["run_length"] = replace_rest(plan, 300, 61)
        consistent(predicate, plan)

    assert any("answers than are planned" in failure for failure in list_failures(release, change))


@pytest.mark.parametrize(("stop", "checks"), [("completed", 300), ("budget", 20), ("budget", 640)])
def test_an_end_that_was_none_is_refused(stop: str, checks: int, release: Path, confident: Plan) -> None:
    def change(predicate: dict[str, Any]) -> None:
        predicate["events"]["run_length"] = replace_rest(confident, checks, 10)
        predicate["budget"]["stop_reason"] = stop
        consistent(predicate, confident)

    assert any("budget.stop_reason" in failure for failure in list_failures(release, change))


# crashes


@pytest.mark.parametrize(
    "crashes",
    [
        [("check", 100)],
        [("answer", 0), ("answer", 0), ("check", 20)],
        [("rest", 0)],
        [("answer", 100), ("rest", 0)],
        [("answer", 0)] * 8,
    ],
    ids=str,
)
def test_what_crashes_lost_is_charged_and_the_claim_is_the_same(
    crashes: Any, confident: Plan, publish: Any, tmp_path: Path
) -> None:
    release = publish(tmp_path / "run", confident, lambda q: True, crashes=crashes)
    facts = stated(release)
    assert facts.claim.epsilon == pytest.approx(confident.guarantee.epsilon, rel=1e-9)
    assert facts.budget.attempts == 1 + len(crashes)
    assert facts.budget.events_reserved_unsettled > 0


@pytest.mark.parametrize("aggregator", [GNMAX, LNMAX])
def test_where_all_is_answered_a_crash_costs_more(aggregator: str, plans: Any, publish: Any, tmp_path: Path) -> None:
    plan = plans(aggregator, "{max: 100}", epsilon="6.0")
    facts = stated(publish(tmp_path / "run", plan, crashes=[("answer", 0)]))
    assert facts.claim.epsilon > plan.guarantee.epsilon
    assert facts.mechanism.voting.answers_charged == 102
    (tmp_path / "run" / "private" / "ledger.jsonl").unlink()

    def change(predicate: dict[str, Any]) -> None:
        predicate["events"]["run_length"][0]["count"] = 90
        predicate["budget"]["stop_reason"] = "budget"
        consistent(predicate, plan)

    failures = list_failures(tmp_path / "run" / "release", change)
    assert any("the budget did not stop this run" in failure for failure in failures)


def test_a_crash_is_no_licence_to_claim_less(confident: Plan, publish: Any, tmp_path: Path) -> None:
    release = publish(tmp_path / "run", confident, crashes=[("answer", 0)])
    shutil.rmtree(tmp_path / "run" / "private")

    def change(predicate: dict[str, Any]) -> None:
        next(runs_of(predicate, "filter_rest"))["noise_multiplier"] *= 1.5
        consistent(predicate, confident)

    assert any("less than the filter's limit" in failure for failure in list_failures(release, change))


# what the votes cost


def test_what_votes_cost_follows_from_what_is_published(sanitised: Path) -> None:
    """Section 7 by hand: the noisy cost, its allowance, the price of publishing both, the conversion."""
    facts = stated(sanitised)
    statement, z = facts.mechanism.data_dependent, 4.753424308822899  # a normal number is above z with probability 1e-6
    cost = PUBLISHED.value + z * 9 * math.exp(PUBLISHED.log_sensitivity)
    v = 12 - 11 * math.exp(0.06)
    renyi = cost + 12 / (2 * 81 * v) - 0.03 - math.log(v) / 22 + 12 / (2 * 144)
    epsilon = renyi + math.log(11 / 12) - math.log(12e-5) / 11
    assert statement.cost == pytest.approx(cost, rel=1e-5)
    assert statement.epsilon == pytest.approx(epsilon, rel=1e-5)
    assert statement.epsilon >= epsilon
    assert statement.delta == 1e-5 + 2e-6
    assert statement.worst_case_epsilon < facts.claim.epsilon  # at a larger δ
    assert statement.smaller == ("data_dependent" if statement.epsilon < statement.worst_case_epsilon else "worst_case")
    assert repr(statement.epsilon) in statement.sentence
    assert "in the part of one teacher" in statement.sentence  # dealt anew, the votes would be others


def test_verify_says_that_nobody_can_draw_the_published_noise_again(sanitised: Path, published: Path) -> None:
    assert any("taken as stated" in note for note in verify(sanitised).notes)
    assert not any("taken as stated" in note for note in verify(published).notes)


def test_noise_that_went_too_far_is_no_more_than_the_worst_case(plans: Any, publish: Any, tmp_path: Path) -> None:
    plan = plans(more=SANITIZE, epsilon="3.0")
    facts = stated(publish(tmp_path / "run", plan, published=Sanitised(-3.0, 900.0))).mechanism.data_dependent
    assert facts.cost == pytest.approx(640 * 12 * (1 / 40**2 + 1 / (2 * 150**2)), rel=1e-5)
    assert facts.smaller == "worst_case"
    low = stated(publish(tmp_path / "low", plan, published=Sanitised(-3.0, -7.0))).mechanism.data_dependent
    assert low.cost == 0.0
    assert low.epsilon > 0  # publishing it has its price


@pytest.mark.parametrize("by", [1e-4, 10.0])
@pytest.mark.parametrize("value", ["noisy_cost", "noisy_log_sensitivity"])
def test_another_noisy_value_is_found_by_what_follows_from_it(
    value: str, by: float, sanitised: Path, tmp_path: Path
) -> None:
    shutil.copytree(sanitised, tmp_path / "release")

    def change(predicate: dict[str, Any]) -> None:
        predicate["mechanism"]["data_dependent"][value] += by

    assert any("data_dependent.cost" in failure for failure in list_failures(tmp_path / "release", change))


def test_a_cost_can_t_be_stated_that_was_not_published(sanitised: Path, release: Path, tmp_path: Path) -> None:
    block = json.loads((sanitised / "certificate.json").read_text(encoding="utf-8"))["predicate"]["mechanism"][
        "data_dependent"
    ]

    def add(predicate: dict[str, Any]) -> None:
        predicate["mechanism"]["data_dependent"] = block

    assert any("publishes no such thing" in failure for failure in list_failures(release, add))
    shutil.copytree(sanitised, tmp_path / "mine")

    def drop(predicate: dict[str, Any]) -> None:
        predicate["mechanism"]["data_dependent"] = None

    assert any("publishes it" in failure for failure in list_failures(tmp_path / "mine", drop))


def test_a_published_cost_is_paid_for(plans: Any, facts_of: Any, tmp_path: Path, publish: Any) -> None:
    plan = plans(GNMAX, "{max: 100}", SANITIZE, epsilon="6.0")
    release = publish(tmp_path / "run", plan)
    ledger = read(tmp_path / "run" / "private" / "ledger.jsonl")
    spent = SpentBudget.of(ledger)
    unpaid = replace(spent, charges=spent.charges[:-1])
    with pytest.raises(RunFailed, match="not charged"):
        certificate.make_predicate(plan, unpaid, facts_of(mechanism="pate", published=PUBLISHED))
    with pytest.raises(RunFailed, match="does not publish"):
        certificate.make_predicate(
            plans(GNMAX, "{max: 100}", epsilon="6.0"), spent, facts_of(mechanism="pate", published=PUBLISHED)
        )
    shutil.rmtree(tmp_path / "run" / "private")

    def change(predicate: dict[str, Any]) -> None:
        predicate["events"]["run_length"] = [r for r in predicate["events"]["run_length"] if r["kind"] == "noisy_max"]
        predicate["events"]["total"] -= 1
        predicate["budget"]["events_settled"] -= 1

    assert any("events" in failure for failure in list_failures(release, change))


def test_a_crash_may_take_what_was_to_be_published(plans: Any, publish: Any, tmp_path: Path) -> None:
    """What was drawn and lost is in no sum over the queries: nothing is published then, and it is paid for all the
    same."""
    plan = plans(more=SANITIZE, epsilon="3.0")
    facts = stated(publish(tmp_path / "run", plan, crashes=[("answer", 0)], published=None))
    assert facts.mechanism.data_dependent is None
    assert facts.claim.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-9)


def test_publishing_under_a_filter_is_paid_for_too(sanitised: Path, tmp_path: Path) -> None:
    shutil.copytree(sanitised, tmp_path / "release")

    def change(predicate: dict[str, Any]) -> None:
        runs = predicate["events"]["run_length"]
        runs[:] = [run for run in runs if run["kind"] != "sanitised_cost"]
        predicate["events"]["total"] -= 1
        predicate["budget"]["events_settled"] -= 1

    assert any("published once, and charged" in failure for failure in list_failures(tmp_path / "release", change))


# pages


def test_the_report_shows_what_is_public_and_no_votes(published: Path, confident: Plan) -> None:
    page = (published / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg ") == 4
    for words in ("The vote", "one vote: two counts by 1 each", "answered, of those put", "whatever the filter still"):
        assert words in page
    card = (published / "card.md").read_text(encoding="utf-8")
    assert "a student of 2000 teachers" in card
    metrics = json.loads((published / "metrics.json").read_bytes())
    assert [point["step"] for point in metrics["history"]] == [300, 310]  # the student is post-processing throughout


def test_the_report_shows_both_statements(sanitised: Path) -> None:
    page = (sanitised / "report.html").read_text(encoding="utf-8")
    assert "what these votes cost" in page
    assert "by its smooth sensitivity" in page


def test_curves_over_queries(confident: Plan, tmp_path: Path) -> None:
    ballot = Ballot(confident, tmp_path / "private" / "ledger.jsonl")
    ballot.run()
    charges = read(ballot.path).charges
    points = count_answered(charges)
    assert points[0] == (0, 0)
    assert points[-1] == (ballot.queries_put, ballot.answered)
    spent = figures.trace_spending(confident, charges)
    queries, epsilons = zip(*spent, strict=True)
    assert list(queries) == sorted(queries)
    assert list(epsilons) == sorted(epsilons)
    assert queries[-1] == ballot.queries_put
    assert epsilons[-1] == pytest.approx(confident.guarantee.epsilon, rel=1e-5)


def test_a_run_without_an_answer_has_a_report(confident: Plan, publish: Any, tmp_path: Path) -> None:
    assert "0 answers" in (publish(tmp_path / "run", confident, lambda q: False) / "report.html").read_text(
        encoding="utf-8"
    )


def test_the_plan_in_words(confident: Plan, plans: Any) -> None:
    text = lambda plan: "\n".join(plan_lines(plan))  # noqa: E731
    printed = text(confident)
    for words in (
        f"640 at most; {confident.events[0].count} fit",
        "2,000",
        "confident_gnmax, 3 classes",
        "40 votes on each count",
        "reaches 200",
        "whatever is answered",
    ):
        assert words in printed
    interactive = text(plans(INTERACTIVE))
    assert "round 2 " in interactive
    assert "round 3 " in interactive
    assert "whatever" not in text(plans(GNMAX, "{max: 100}", epsilon="6.0"))
    assert "at order 12" in text(plans(more=SANITIZE, epsilon="3.0"))


def test_the_worst_case_is_asked_at_the_same_delta(sanitised: Path, plans: Any) -> None:
    plan, facts = plans(more=SANITIZE, epsilon="3.0", overrides=()), stated(sanitised)
    charges = read(sanitised.parent / "private" / "ledger.jsonl").charges
    budget = plan.budget
    epsilon = accountants.epsilon(charges, facts.mechanism.data_dependent.delta, budget.neighbouring, budget.accountant)
    assert epsilon <= facts.mechanism.data_dependent.worst_case_epsilon <= epsilon * (1 + 1e-5)
    assert isinstance(charges[-1].event, FilterRest | SanitisedCost)
    assert count_queries(charges) == facts.sampling.steps_charged
    assert sanitise.Sanitiser(12, 0.03, 9, 12, 1e-6).cost([12.0])[0] < 1
