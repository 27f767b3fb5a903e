"""All documents of a release give one answer to one question, and it is the least that the certificate implies."""

from __future__ import annotations

import html
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

import mpmath
import pytest

from dprecipe.cli.verify import verified_lines
from dprecipe.contract.plan import Plan
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.events import count_events
from dprecipe.recipe.read import read as read_recipe
from dprecipe.recipe.read import read_text
from dprecipe.release import card, certificate, report
from dprecipe.release.exports import EXPORTS
from dprecipe.release.facts import ReleasedTensor, SpentBudget
from dprecipe.release.schema import Claim, Statement
from dprecipe.release.verify import Verified, show_verified
from tests.release.conftest import facts_of

RECIPES = Path(__file__).parents[2] / "recipes"
PEOPLE = """\
recipe: dprecipe/v1
name: people
data:
  train:
    source: csv
    path: people.csv
    columns: {age: {kind: numeric, min: 0, max: 120}}
    label: {column: sick, classes: 2}
  size: 1000
  unit: {column: Patient ID, max_records: 4}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 100}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 100, optimizer: {kind: sgd, lr: 0.5}}
"""
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "small": ("people", ("budget.epsilon=0.1", "budget.delta=1e-12")),
    "usual": ("people", ()),
    "named": ("people", ("data.unit.name=patient", "data.unit.max_records=64")),
    "one": ("people", ("data.unit.name=patient", "data.unit.max_records=1")),
    "large": ("people", ("budget.epsilon=12", "budget.delta=9e-4")),
    "huge": ("people", ("budget.epsilon=60",)),
    "renyi": ("people", ("budget.accountant=rdp",)),
    "replaced": ("people", ("budget.neighbouring=replace_one",)),
    "blanked": ("people", ("budget.neighbouring=zero_out_one",)),
    "full": ("quickstart", ()),
    "gaussian": ("quickstart", ("budget.accountant=rdp", "budget.delta=6e-4")),
    "paid": ("paid-preprocessing", ()),
    "tuned": ("tuned-digits", ()),
    "encoded": ("encoded-mnist", ()),
    "voted": ("pate-digits", ()),
    "last": ("adult-pnsgd", ()),
}
NUMBER = r"(?P<{}>[\d.,]*\d)"
AT, BOUND = NUMBER.format("at"), NUMBER.format("bound")
QUESTIONS = {
    "found": rf"false alarms in at most {AT}% of cases\W+find what they look for in at most {BOUND}%",
    "difference": rf"share found minus share of false alarms, of any attack\W+at most {BOUND}%",
    "odds": rf"odds of any guess after seeing the release\W+"
    rf"(at most {BOUND} times the odds before|no bound below 10,000 times the odds before)",
    "right": rf"who are {AT}% sure beforehand [\w ]+\W+guess right in at most {BOUND}% of cases \(without[\w :]+\d%\)",
    "sure": rf"who are {AT}% sure beforehand [^%]+%[^%]+%\); afterwards they "
    rf"(are at most {BOUND}% sure|may be sure)",
    "right, evenly": rf"Both answers are equally likely\. Without the release, {AT}% of such guesses are right; "
    rf"with it, at most {BOUND}%",
    "two together": rf"(or none,|or blanked out,|groups is in the data) is right in at most {BOUND}% of cases for two"
    r"(, \S+% for three)?( and \S+% for \w+)?",
    "sure, evenly": rf"{AT}% of such guesses[^%]+%[^%]+Whatever comes out, the attacker is at most {BOUND}% sure",
}
"""Each form in which a document may answer a question: `at` is part of the question, `bound` the answer."""


@dataclass(frozen=True)
class Released:
    """A plan, and what its run would publish."""

    plan: Plan
    verified: Verified

    @property
    def claim(self) -> Claim:
        return self.verified.claim


@cache
def release_of(name: str) -> Released:
    recipe, overrides = CASES[name]
    overrides = (*overrides, "description=none")
    if recipe == "people":
        return publish(make_plan(read_text(PEOPLE, "people.yaml", overrides)))
    return publish(make_plan(read_recipe(RECIPES / f"{recipe}.yaml", overrides)))


def publish(plan: Plan) -> Released:
    digest = f"sha256:{'0' * 64}"
    facts = facts_of(
        mechanism=plan.mechanism,
        score=None,
        tensors=(ReleasedTensor("weight", (1,), "noisy_steps"),),
        stages=(digest,) * len(plan.stages),
    )
    spent = SpentBudget(plan.events, digest, 1, "completed", count_events(plan.events), 0, torn=False)
    predicate = certificate.make_predicate(plan, spent, facts)
    statement = Statement.model_validate_json(
        certificate.to_bytes(certificate.make_statement(predicate, {})), strict=True
    )
    told = statement.model_copy(update={"predicate": predicate})
    return Released(plan, Verified(predicate.claim, ("all",), ("nothing",), told))


def write_documents(made: Released) -> dict[str, str]:
    """Everything that a reader may be shown, as plain text; the recipe's own text is left out."""
    predicate = made.verified.statement.predicate
    page = report.render_html(made.plan, predicate, made.plan.events, (), lambda figure: "")
    return {
        "report": to_text(page),
        "card": card.render_markdown(made.plan, predicate),
        "verify": "\n".join(verified_lines(made.verified)),
        "notebook": to_text(show_verified(made.verified)),
        "registry": " ".join(EXPORTS["registry"](made.verified).split()),
        "nist": EXPORTS["nist"](made.verified),
    }


def to_text(page: str) -> str:
    page = re.sub(r"<style>.*?</style>|<details>.*?</details>", "", page, flags=re.DOTALL)
    page = re.sub(r"style=\"[^\"]*\"|</(p|section|tr|h\d|li|div)>", lambda found: "\n" if found[1] else "", page)
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def find_answers(text: str) -> Iterator[tuple[str, str, str]]:
    """Every answer in a document: the question, what it is asked at, and the bound."""
    for question, form in QUESTIONS.items():
        for match in re.finditer(form, text):
            groups = match.groupdict()
            yield question.split(",")[0], groups.get("at", ""), groups["bound"] or "none"


def remove_answers(text: str) -> str:
    for form in reversed(QUESTIONS.values()):
        text = re.sub(form, "", text)
    return text


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_two_sentences_of_a_release_give_different_bounds(name: str) -> None:
    made = release_of(name)
    documents = write_documents(made)
    answers: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for document, text in documents.items():
        found = list(find_answers(text))
        assert ("right", "50") in {(question, at) for question, at, _ in found}, document
        for question, at, bound in found:
            answers[question, at][bound].add(document)
        rest = re.findall(r"[^.;|]*(?:\d\s?%|[\d.] times|exp\(ε)[^.;|]*", remove_answers(text))
        assert not rest, (document, rest)
    assert len(answers) == 3 + 1 + 1 + 3 + 3 + (("two together", "") in answers)
    assert {question: bounds for question, bounds in answers.items() if len(bounds) > 1} == {}
    shown = {question: next(iter(bounds)) for question, bounds in answers.items()}
    check_together({q: Decimal(bound.replace(",", "")) for q, bound in shown.items() if bound != "none"})


def check_together(read: dict[tuple[str, str], Decimal]) -> None:
    """Answers that follow from one another do so, up to the digit that is read."""
    even = (100 + read["difference", ""]) / 2
    assert read["right", "50"] <= even * Decimal("1.002")
    assert read["right", "50"] >= even * Decimal("0.995")
    assert read["right", "50"] < read.get(("two together", ""), 100)
    if ("odds", "") in read:
        for prior in ("1", "10", "50"):
            odds = read["odds", ""] * Decimal(prior) / (100 - Decimal(prior))
            assert float(read["sure", prior]) == pytest.approx(float(100 * odds / (1 + odds)), rel=0.01)


def read_shown(made: Released, question: str, at: str = "") -> float:
    shown = {(q, a): bound for q, a, bound in find_answers("\n".join(verified_lines(made.verified)))}
    return float(shown[question, at].replace(",", ""))


@pytest.mark.parametrize("name", CASES)
def test_the_bound_is_the_least_that_the_certificate_implies(name: str) -> None:
    """A reader may derive none below the one shown: from any pair of the profile, or from the Gaussian bound."""
    made = release_of(name)
    claim = made.claim
    pairs = [(claim.epsilon, claim.delta), *((point.epsilon, point.delta) for point in claim.profile)]
    implied = [(math.exp(e) + d) / (math.exp(e) + 1) for e, d in pairs]
    if claim.gdp is not None:
        implied.append(float(mpmath.ncdf(claim.gdp.mu / 2)))
    assert read_shown(made, "right", "50") <= 100 * min(implied) * 1.01


@pytest.mark.parametrize("name", ["full", "gaussian"])
def test_of_unsampled_noise_it_is_the_closed_form(name: str) -> None:
    """With N(μ, 1) against N(0, 1), the best guess at even odds is right with probability Φ(μ/2)."""
    made = release_of(name)
    (charge,) = made.plan.events
    mu = math.sqrt(charge.count) / charge.event.multipliers[0]
    exact = 100 * float(mpmath.ncdf(mpmath.mpf(mu) / 2))
    assert exact <= read_shown(made, "right", "50") <= exact * 1.01
    for x in ("0.1", "1", "10"):
        threshold = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(x) / 100)
        assert 100 * float(mpmath.ncdf(mu - threshold)) <= read_shown(made, "found", x)
