"""PATE's accounting: budgets that are kept and not wasted, filters, refusals with remedies that work."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import mpmath
import pytest

from dprecipe.cli.schema import plan_schema
from dprecipe.contract.plan import Plan
from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.plan import PlannedInteraction, PlannedRound
from dprecipe.mechanisms.pate.rules import MAX_QUERIES
from dprecipe.mechanisms.pate.theory.filter import GaussianFilter
from dprecipe.planning import rules
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.recipe.read import read_text
from tests.schemas import validator_of

FINE = (Path(__file__).parents[2] / "golden" / "rules" / "fine-pate.yaml").read_text("utf-8")
GNMAX = "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: 20}}"
GNMAX_AUTO = GNMAX.replace("20", "auto")
LNMAX = "mechanism.aggregator={kind: lnmax, noise: {family: laplace, multiplier: 20}}"
LNMAX_AUTO = LNMAX.replace("20", "auto")
AUTO = "mechanism.aggregator.noise.multiplier=auto"
WITHOUT_END = "data.public={source: npz, path: public.npz, shape: [8, 8]}"
"""Public records of which only the file knows how many there are."""
SANITIZE = (
    "mechanism.analysis=data_dependent",
    "mechanism.sanitize={method: smooth_sensitivity, order: 12, beta: 0.03, multiplier: 40, scale_multiplier: 40}",
)


def make_plan(*overrides: str) -> Plan:
    return plan(read_text(FINE, overrides=overrides))


def refusal_of(*overrides: str) -> Finding:
    with pytest.raises(PlanRefused) as caught:
        make_plan(*overrides)
    (finding,) = (finding for finding in caught.value.findings if finding.is_error)
    return finding


def delta_of(mu: mpmath.mpf, epsilon: float) -> mpmath.mpf:
    """δ(ε) of a Gaussian of sensitivity over deviation μ, at 40 digits (Balle & Wang 2018, Theorem 8)."""
    with mpmath.workdps(40):
        near, far = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return mpmath.ncdf(near) - mpmath.exp(epsilon) * mpmath.ncdf(far)


def mu_of(checks: int, deviation: float, answers: int, noise: float) -> mpmath.mpf:
    """One vote moves a check by one, and two counts of an answer by one each."""
    with mpmath.workdps(40):
        return mpmath.sqrt(checks * mpmath.mpf(deviation) ** -2 + answers * 2 * mpmath.mpf(noise) ** -2)


def test_what_all_queries_cost_is_what_their_gaussians_cost() -> None:
    for checks, answers in ((1, 1), (20, 20), (60, 7)):
        queries = f"mechanism.queries={{max: {checks}, answers: {answers}}}"
        bound = make_plan("budget.epsilon=auto", queries).guarantee.epsilon
        mu = mu_of(checks, 40, answers, 20)
        assert delta_of(mu, bound) <= 1e-5 < delta_of(mu, bound * (1 - 1.1e-5))


def test_the_table_of_the_paper_in_the_worst_case() -> None:
    """640 checks, 341 of them answered: 3.02 by Rényi and 2.79 exactly (figures of an independent computation)."""
    plan_ = make_plan(
        "budget.epsilon=auto",
        "data.public.records=null",
        "data.public.split=test",
        "data.test=null",
        "mechanism.queries={max: 640, answers: 341}",
        "mechanism.teachers={count: 250, model: null, votes: {path: votes.npz}}",
        "mechanism.aggregator={kind: confident_gnmax, noise: {family: gaussian, multiplier: 40}, "
        "selection: {threshold: 200, noise: {family: gaussian, multiplier: 150}}}",
    )
    assert plan_.guarantee.accountant == "gdp"
    assert plan_.guarantee.epsilon == pytest.approx(2.79, abs=0.005)
    assert plan_.guarantee.alternative_epsilon == pytest.approx(3.02, abs=0.005)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("neighbouring", ["add_or_remove_one", "replace_one"])
def test_what_fits_is_planned_as_it_is_and_what_does_not_up_to_the_budget(accountant: str, neighbouring: str) -> None:
    terms = (f"budget.accountant={accountant}", f"budget.neighbouring={neighbouring}")
    few = make_plan("mechanism.queries.max=20", *terms)
    assert few.events == (Charge(NoisyThreshold(40), 20), Charge(NoisyMax("gaussian", 20), 20))
    assert few.guarantee.epsilon < 3
    assert few.mechanism_plan.filter_limit == pytest.approx(20 / 40**2 + 40 / 20**2)
    many = make_plan(*terms)
    checks, answers, rest = many.events
    assert checks.count == answers.count < 200
    assert isinstance(rest.event, FilterRest)
    assert many.guarantee.epsilon == 3
    assert many.solved == {}
    one_more = [Charge(checks.event, checks.count + 1), Charge(answers.event, answers.count + 1)]
    assert accountants.epsilon(one_more, 1e-5, Neighbouring(neighbouring), accountant) > 3


@pytest.mark.parametrize("overrides", [(), ("mechanism.queries={max: 250, answers: 30}",), SANITIZE], ids=len)
def test_whatever_is_answered_the_ledger_comes_to_the_plan(overrides: Sequence[str]) -> None:
    plan_ = make_plan(*overrides)
    budget = GaussianFilter(plan_.mechanism_plan.filter_limit)
    paid = [charge for charge in plan_.events if isinstance(charge.event, SanitisedCost)]
    chance = random.Random(1)
    for share in (0.0, 0.1, 0.5, 1.0):
        checks = answers = 0
        while checks < plan_.mechanism_plan.queries and answers < plan_.mechanism_plan.answers:
            if not budget.holds(events(checks + 1, answers + 1)):
                break
            checks += 1
            answers += chance.random() < share
        rest = budget.rest(events(checks, answers))
        spent = [*events(checks, answers), *([] if rest is None else [Charge(rest, 1)]), *paid]
        claim = accountants.guarantee(spent, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, "record", "pld")
        assert claim.epsilon == plan_.guarantee.epsilon
        assert share > 0 or checks > plan_.mechanism_plan.queries / 2  # what is not answered is not paid for


def events(checks: int, answers: int) -> list[Charge]:
    return [Charge(NoisyThreshold(40.0), checks), Charge(NoisyMax("gaussian", 20.0), answers)]


def test_where_answers_are_few_more_queries_are_sure_to_fit() -> None:
    checks, answers, rest = make_plan(
        "mechanism.queries={max: 250, answers: 30}", "mechanism.aggregator.noise.multiplier=12"
    ).events
    assert (answers.count, checks.count) == (30, 160)
    assert isinstance(rest.event, FilterRest)
    auto = make_plan("mechanism.queries={max: auto, answers: 30}", "mechanism.aggregator.noise.multiplier=12")
    assert auto.solved == {"mechanism.queries.max": 160}
    assert (auto.mechanism_plan.queries, auto.mechanism_plan.answers) == (160, 30)
    pairs, same, _ = make_plan(
        "mechanism.queries={max: 250, answers: 80}", "mechanism.aggregator.noise.multiplier=12"
    ).events
    assert pairs.count == same.count == 35  # all of which may be answered


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    "overrides",
    [(AUTO,), (GNMAX_AUTO,), (LNMAX_AUTO,), (AUTO, "mechanism.queries={max: 200, answers: 50}"), (AUTO, *SANITIZE)],
    ids=["confident", "gnmax", "lnmax", "answers", "sanitised"],
)
def test_the_least_noise_that_fits(overrides: Sequence[str], accountant: str) -> None:
    terms = (*overrides, f"budget.accountant={accountant}")
    plan_ = make_plan(*terms)
    (multiplier,) = plan_.solved.values()
    assert plan_.mechanism_plan.answer.noise_multiplier == multiplier
    assert 0.999 * 3 <= plan_.guarantee.epsilon <= 3
    assert (
        sum(charge.count for charge in plan_.events if isinstance(charge.event, NoisyMax))
        == plan_.mechanism_plan.answers
    )
    assert not any(isinstance(charge.event, FilterRest) for charge in plan_.events)
    less = [
        Charge(NoisyMax(charge.event.family, 0.999 * charge.event.noise_multiplier), charge.count)
        if isinstance(charge.event, NoisyMax)
        else charge
        for charge in plan_.events
    ]
    assert accountants.epsilon(less, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, accountant) > 3


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    "overrides", [(), (GNMAX,), (LNMAX,), (GNMAX, *SANITIZE)], ids=["confident", "gnmax", "lnmax", "sanitised"]
)
def test_the_most_queries_that_fit(overrides: Sequence[str], accountant: str) -> None:
    plan_ = make_plan(*overrides, "mechanism.queries.max=auto", f"budget.accountant={accountant}")
    assert plan_.solved == {"mechanism.queries.max": plan_.mechanism_plan.queries}
    assert plan_.length.steps == plan_.mechanism_plan.answers == plan_.mechanism_plan.queries < 250
    assert plan_.guarantee.epsilon <= 3
    more = [Charge(c.event, c.count + (not isinstance(c.event, SanitisedCost))) for c in plan_.events]
    assert accountants.epsilon(more, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, accountant) > 3


def test_no_more_queries_than_public_records() -> None:
    assert make_plan(GNMAX.replace("20", "60"), "mechanism.queries.max=auto").solved == {"mechanism.queries.max": 250}
    assert make_plan(GNMAX.replace("20", "60"), "mechanism.queries.max=auto", WITHOUT_END).mechanism_plan.queries > 250


def test_replacing_a_record_moves_one_vote_as_removing_one_does() -> None:
    for overrides in ((), (GNMAX_AUTO,), (LNMAX_AUTO,), SANITIZE):
        one, other = make_plan(*overrides), make_plan(*overrides, "budget.neighbouring=replace_one")
        assert (one.events, one.guarantee.epsilon) == (other.events, other.guarantee.epsilon)
        assert other.guarantee.neighbouring is Neighbouring.REPLACE_ONE


def test_publishing_the_data_dependent_epsilon_is_paid_for() -> None:
    plain, sanitised = make_plan(), make_plan(*SANITIZE)
    assert sanitised.events[-1] == Charge(SanitisedCost(0.03, 40, 40), 1)
    assert sanitised.mechanism_plan.filter_limit < plain.mechanism_plan.filter_limit
    assert sanitised.guarantee.accountant == "rdp"
    assert 0.999 * 3 <= sanitised.guarantee.epsilon <= 3
    assert sanitised.mechanism_plan.publication.failure == 1e-6


def test_a_sanitised_cost_beyond_the_budget_is_refused() -> None:
    loud = SANITIZE[1].replace("multiplier: 40", "multiplier: 1")
    for overrides in ((), (GNMAX,), (GNMAX_AUTO,), (AUTO,), ("mechanism.queries.max=auto",)):
        finding = refusal_of(*overrides, SANITIZE[0], loud)
        assert finding.code == "P106"
        assert "mechanism.sanitize" in finding.remedy
    assert make_plan(GNMAX, "mechanism.queries.max=20", *SANITIZE).guarantee.epsilon <= 3


def test_the_plan_says_all_that_a_run_needs() -> None:
    own = make_plan().mechanism_plan
    assert (own.aggregator, own.ensemble.count, own.reads_training_records) == ("confident_gnmax", 100, True)
    assert (own.partition_by, own.classes, own.queries, own.answers) == ("record number", 10, 200, 200)
    assert (own.answer, own.check, own.noise_deviation) == (NoisyMax("gaussian", 20), NoisyThreshold(40), 20)
    assert (own.scheme, own.sampling_rate, own.expected_batch) == ("disjoint_parts", None, 14.38)
    assert (own.threshold, own.interaction, own.analysis, own.publication) == (60, None, "data_independent", None)
    assert own.ensemble.model.kind == "random_forest"
    laplace = make_plan(LNMAX_AUTO).mechanism_plan
    assert laplace.noise_deviation == pytest.approx(math.sqrt(2) * laplace.answer.noise_multiplier)
    assert (laplace.filter_limit, laplace.threshold, laplace.check) == (None, None, None)
    talk = "mechanism.aggregator.kind=interactive_gnmax"
    fine = FINE.replace("kind: confident_gnmax", "kind: interactive_gnmax")
    assert talk.rpartition("=")[2] in fine
    check, answer = Charge(NoisyThreshold(40), 100), Charge(NoisyMax("gaussian", 20), 100)
    rounds = (PlannedRound(check, answer, 60), PlannedRound(check, answer, 60))
    assert plan(read_text(fine)).mechanism_plan.interaction == PlannedInteraction(rounds, 0.95)


def test_the_plan_names_what_it_rests_on() -> None:
    trained = {a.id: a for a in make_plan().assumptions}
    always = {"vote_sensitivity", "noise", "replay", "student", "queries", "size", "choices", "floating_point"}
    assert set(trained) == always | {"parts", "filter", "selection"}
    assert "record number" in trained["parts"].text
    assert "secret key" in trained["parts"].text
    assert "identity" not in trained  # the secret key makes numbers do, although a record that goes moves them
    from_file = {a.id: a for a in make_plan("mechanism.teachers={model: null, votes: {path: votes.npz}}").assumptions}
    assert set(from_file) == always | {"filter", "selection"}
    assert from_file["vote_sensitivity"].checked_by == "declaration"
    assert "filter" not in {a.id for a in make_plan(GNMAX_AUTO).assumptions}
    table = "data.train={source: npz, path: train.npz, shape: [8, 8], classes: 10}"
    named = {a.id: a for a in make_plan(table, "mechanism.teachers.identity=writer").assumptions}
    assert "writer" in named["parts"].text
    assert named["identity"].checked_by == "declaration"
    assert "replaces" not in named["identity"].text
    replaced = make_plan(table, "mechanism.teachers.identity=writer", "budget.neighbouring=replace_one").assumptions
    assert "a record that replaces another has the 'writer' of that one" in {a.id: a for a in replaced}["identity"].text
    grouped = make_plan(table, "data.unit={column: writer, max_records: 3}")
    assert "identity" not in {a.id for a in grouped.assumptions}
    assert grouped.mechanism_plan.partition_by == "'writer'"
    assert grouped.guarantee.unit == "group of records with the same 'writer'"


@pytest.mark.parametrize(
    "overrides", [(), (GNMAX_AUTO,), (LNMAX_AUTO,), SANITIZE], ids=["", "gnmax", "lnmax", "sanitised"]
)
def test_plans_follow_their_schema_and_repeat(overrides: Sequence[str]) -> None:
    one, two = make_plan(*overrides), make_plan(*overrides)
    assert one.digest == two.digest
    validator_of(plan_schema).validate(json.loads(json.dumps(one.to_json())))
    assert one.released == ("student's weights", "labels of the answered queries")
    assert make_plan(*overrides, "runtime.seed=4").digest == one.digest
    assert make_plan(*overrides, "mechanism.teachers.count=101").digest != one.digest


def test_a_budget_that_is_met_by_next_to_nothing_is_refused() -> None:
    for aggregator in (GNMAX_AUTO, LNMAX_AUTO, AUTO):
        finding = refusal_of(aggregator, "budget={epsilon: 5e5, delta: 1e-5}", "mechanism.queries.max=10")
        assert (finding.code, finding.path) == ("P107", "budget.epsilon")
    finding = refusal_of(GNMAX.replace("20", "1e6"), "mechanism.queries.max=auto", WITHOUT_END)
    assert finding.code == "P107"
    assert f"{MAX_QUERIES:,}" in finding.message


def test_checks_that_eat_the_budget_are_refused_with_remedies_that_work() -> None:
    many = (AUTO, "data.public.records=null", "data.test=null", "mechanism.queries.max=20000", "data.public.split=test")
    finding = refusal_of(*many)
    assert finding.code == "P106"
    queries, _, deviation = finding.remedy.partition(", or ")
    assert make_plan(*many[:3], f"mechanism.queries.max={queries.rpartition(' ')[2]}").guarantee.epsilon <= 3
    changed = f"mechanism.aggregator.selection.noise.multiplier={deviation.rpartition(' ')[2]}"
    assert make_plan(*many, changed).guarantee.epsilon <= 3


@pytest.mark.parametrize("aggregator", [GNMAX, LNMAX])
def test_remedies_are_the_nearest_that_work(aggregator: str) -> None:
    finding = refusal_of(aggregator)
    assert finding.code == "P102"
    queries, _, noise = finding.remedy.partition(", or ")
    max_queries = int(queries.rpartition(" ")[2])
    assert make_plan(aggregator, f"mechanism.queries.max={max_queries}").guarantee.epsilon <= 3
    assert refusal_of(aggregator, f"mechanism.queries.max={max_queries + 1}").code == "P102"
    min_noise = float(noise.rpartition(" ")[2])
    assert make_plan(aggregator.replace("20", str(min_noise))).guarantee.epsilon <= 3
    assert refusal_of(aggregator.replace("20", str(0.999 * min_noise))).code == "P102"


def test_a_budget_that_nothing_keeps_is_refused() -> None:
    tiny = "budget={epsilon: 3e-5, delta: 1e-17, accountant: rdp}"
    for aggregator in (GNMAX, LNMAX, GNMAX_AUTO, LNMAX_AUTO, AUTO):
        assert refusal_of(aggregator, tiny).code == "P106"
    assert refusal_of(GNMAX, tiny, "mechanism.queries.max=auto").code == "P106"
    noisier_than_a_recipe_can_say = "budget={epsilon: 2e-5, delta: 1e-9}"
    assert refusal_of(GNMAX_AUTO, noisier_than_a_recipe_can_say).code == "P106"


def test_a_plan_without_a_number_to_go_by_is_refused() -> None:
    assert refusal_of(GNMAX_AUTO, "mechanism.queries.max=auto").code == "R302"
    assert refusal_of(GNMAX_AUTO, "budget.epsilon=auto").code == "R302"


def test_a_recipe_with_noise_to_be_solved_is_validated_without_numpy() -> None:
    code = (
        "import sys\n"
        "from dprecipe.planning import rules\n"
        "from dprecipe.recipe.read import read_text\n"
        f"assert rules.check(read_text(sys.stdin.read(), overrides=[{AUTO!r}]).recipe) == []\n"
        "print(sorted({'numpy', 'scipy', 'torch', 'sklearn'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=FINE, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_first_look_accepts_what_surely_fits_without_numpy() -> None:
    code = (
        "import sys\n"
        "from dprecipe.planning import rules\n"
        "from dprecipe.recipe.read import read_text\n"
        "assert rules.check(read_text(sys.stdin.read(), overrides=['mechanism.queries.max=20']).recipe) == []\n"
        "print(sorted({'numpy', 'scipy', 'torch', 'sklearn'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=FINE, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_what_validates_is_planned_and_what_is_planned_validates() -> None:
    """Random recipes: without an error `plan` keeps the budget, or finds what only solving can find."""
    chance = random.Random(5)
    planned = 0
    for _ in range(120):
        kind = chance.choice(["lnmax", "gnmax", "confident_gnmax"])
        family = "laplace" if kind == "lnmax" else "gaussian"
        noise = chance.choice(["auto", f"{10 ** chance.uniform(-0.5, 2.5):.4g}"])
        check = (
            f", selection: {{threshold: 60, noise: {{family: gaussian, multiplier: {chance.choice([2, 40, 300])}}}}}"
        )
        aggregator = f"{{kind: {kind}, noise: {{family: {family}, multiplier: {noise}}}{check * (kind[0] == 'c')}}}"
        queries = "auto" if noise != "auto" and chance.random() < 0.3 else str(chance.choice([1, 9, 100, 250]))
        epsilon = chance.choice([0.01, 0.3, 3.0, 9.0])
        overrides = [
            f"mechanism.aggregator={aggregator}",
            f"mechanism.queries.max={queries}",
            f"budget.epsilon={epsilon}",
        ]
        recipe = read_text(FINE, overrides=overrides)
        errors = [finding for finding in rules.check(recipe.recipe) if finding.is_error]
        try:
            plan_ = plan(recipe)
        except PlanRefused as refusal:
            codes = {finding.code for finding in refusal.findings if finding.is_error}
            assert codes <= {"P102", "P106", "P107"}
            assert errors or "auto" in (noise, queries)
            continue
        assert not errors
        assert plan_.guarantee.epsilon <= epsilon
        planned += 1
    assert planned > 40


def test_gaussian_answers_have_no_curve_of_laplace_noise() -> None:
    gaussian = NoisyMax("gaussian", 40.0)
    assert gaussian.squared_mu(1, Neighbouring.ADD_OR_REMOVE_ONE) == pytest.approx(2 / 1600)
    for ask in (
        lambda: gaussian.rdp([2.0], Neighbouring.ADD_OR_REMOVE_ONE),
        lambda: gaussian.losses(Neighbouring.ADD_OR_REMOVE_ONE, 1e-3, 1e-9),
    ):
        with pytest.raises(TypeError, match="gaussian noise has no losses that are bounded by a box"):
            ask()
