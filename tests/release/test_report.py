"""The report and the card: self-contained, escaped, public."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from dprecipe.faults import CertificateInvalid
from dprecipe.release import card, figures
from dprecipe.release.certificate import to_bytes
from dprecipe.release.facts import PublicScore

VOID = {"meta", "path", "use", "rect"}


class Page(HTMLParser):
    """Tags, attributes and balance of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page(finished: Any) -> Page:
    page = Page()
    page.feed((finished.release / "report.html").read_text(encoding="utf-8"))
    return page


def test_it_is_well_formed_and_needs_nothing_from_outside(page: Page) -> None:
    assert not page.open
    assert not {"script", "link", "iframe", "img", "object", "form"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in {"src", "action"}
        if name.endswith("href"):
            assert (value or "").startswith("#")
    assert page.tags.count("svg") == 3
    assert ("http-equiv", "Content-Security-Policy") in page.attributes


def test_it_says_what_matters(page: Page, finished: Any) -> None:
    stated = finished.plan
    for text in (
        "differential privacy",
        "adding or removing one record",
        f"{stated.guarantee.epsilon:g}",
        "What is not protected",
        "dprecipe verify .",
        "The final weights of this run",
        "ε = 2.00spent: ",  # rounded up to what a person reads, and exact below
        "each record",
        "has to guess whether one record is in the data",
        *(assumption.text for assumption in stated.assumptions),
    ):
        assert text in page.text
    parts = ("In short", "What is not protected", "The claim", "At a glance", "Over the run", "What was spent")
    places = [page.text.index(text) for text in parts]
    assert places == sorted(places)


def test_a_recipe_can_not_write_markup(page: Page, finished: Any) -> None:
    assert "<script>alert(1)</script>" in page.text  # as words
    content = (finished.release / "report.html").read_text(encoding="utf-8")
    assert "<script" not in content
    assert "<script" not in (finished.release / "card.md").read_text(encoding="utf-8")


def test_plots_have_no_ids_that_could_clash(finished: Any) -> None:
    content = (finished.release / "report.html").read_text(encoding="utf-8")
    drawn = re.findall("<svg .*?</svg>", content, re.DOTALL)
    assert len(drawn) == 3
    assert not [plot for plot in drawn if " id=" in plot or "href=" in plot]


def test_the_curve_of_what_was_spent_ends_at_the_claim(finished: Any) -> None:
    points = figures.trace_spending(finished.plan, finished.ledger.charges)
    steps, epsilons = zip(*points, strict=True)
    assert list(epsilons) == sorted(epsilons)
    assert (steps[0], epsilons[0]) == (0, 0.0)
    assert steps[-1] == 60
    assert epsilons[-1] == pytest.approx(finished.plan.guarantee.epsilon, rel=1e-5)


def test_the_cards_front_matter_is_plain_yaml(finished: Any) -> None:
    text = (finished.release / "card.md").read_text(encoding="utf-8")
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["model_name"] == "tampered"
    assert front["differential_privacy"]["epsilon"] == finished.plan.guarantee.epsilon
    assert "| accuracy | 90.00% |  |" in text


def test_a_regressions_errors_are_released_in_units(tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any) -> None:
    from dprecipe.release.verify import verify

    run = finish(tmp_path / "run", plan_of(), facts_of(score=PublicScore(None, 12.345678, 360, 2.71828)))
    page = (run.release / "report.html").read_text(encoding="utf-8")
    assert "<b>2.718</b><span>mean absolute error on 360 records declared public</span>" in page
    text = (run.release / "card.md").read_text(encoding="utf-8")
    assert "| mean absolute error | 2.718 |  |\n| mean loss | 12.35 |  |\n| records | 360 | |" in text
    metrics = json.loads((run.release / "metrics.json").read_bytes())
    measured = {"mean_absolute_error": 2.71828, "loss": 12.345678, "records": 360}
    assert metrics["public_evaluation"] == measured
    with pytest.raises(CertificateInvalid, match="the score of another kind of model"):  # the recipe's is a classifier
        verify(run.release)


@pytest.mark.slow
def test_a_schedule_is_one_line_and_its_phases_can_be_opened(
    tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any
) -> None:
    noise = "mechanism.noise.multiplier={schedule: linear, from: 6, to: 5}"
    run = finish(tmp_path / "run", plan_of(overrides=("training.steps=6", noise, "budget.epsilon=auto")), facts_of())
    page = (run.release / "report.html").read_text(encoding="utf-8")
    row = (
        '<td data-of="event">{}</td><td data-of="count">{}</td><td data-of="noise multiplier">{}</td>'
        '<td data-of="sampling rate">0.0445372</td>'
    )
    assert page.count(row.format("poisson_gaussian in 6 phases", 6, "5 to 6")) == 1
    head, tail = page.split("<summary>Each phase of the schedule</summary>")
    for multiplier in ("6", "5.8", "5.6", "5.4", "5.2", "5"):
        one = row.format("poisson_gaussian", 1, multiplier)
        assert (head.count(one), tail.count(one)) == (0, 1)


def test_words_stay_words() -> None:
    assert card.plain_text("a\n# b <b> [x](y) `z`") == r"a \# b &lt;b&gt; \[x\](y) \`z\`"


def test_without_a_report_the_release_still_verifies(tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any) -> None:
    from dprecipe.release.verify import verify

    run = finish(tmp_path / "run", plan_of(overrides=("release.report=false",)), facts_of())
    assert {entry.name for entry in run.release.iterdir()} == {
        *("model.safetensors", "model.json", "metrics.json", "certificate.json")
    }
    assert verify(run.release).claim


WORDS = "an independent auditor found ε = 0.01"
TURNED = "\u202e\x1b[31m\u200b"


def test_what_a_run_says_of_itself_is_short_marked_and_turns_nothing(
    tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any
) -> None:
    from dprecipe.release.verify import verify

    checks = tuple(replace(check, measured=f"{WORDS} {TURNED} " * 200) for check in facts_of().checks)
    run = finish(tmp_path / "run", plan_of(), facts_of(checks=checks, device=f"{WORDS} {TURNED}" * 20))
    stated = verify(run.release).statement.predicate
    assert max(len(check.measured) for check in stated.checks) == 400
    assert len(stated.provenance.device) == 120
    page = (run.release / "report.html").read_text(encoding="utf-8")
    assert not set(TURNED.replace("[31m", "")) & set(page)
    head = page[: page.index(WORDS)]
    assert "recorded by the run, not checked" in head[head.rindex("<section>") :]
    assert '<th scope="row">device (recorded by the run, not checked)</th>' in page


@pytest.mark.parametrize("path", ["checks.0.measured", "provenance.device"])
@pytest.mark.parametrize("value", ["x" * 401, "ok \u202e10.0 = ε", "a\nb", "\x1b[31m"])
def test_a_certificate_that_says_it_otherwise_does_not_verify(path: str, value: str, copy: Any, tampering: Any) -> None:
    file = copy.release / "certificate.json"
    content = json.loads(file.read_bytes())
    tampering.set_leaf(content["predicate"], path, value)
    file.write_bytes(to_bytes(content))
    assert any(path in failure for failure in tampering.failures_of(copy.release))


def test_a_description_is_the_authors(finished: Any) -> None:
    for name in ("card.md", "report.html"):
        text = (finished.release / name).read_text(encoding="utf-8")
        assert "In the words of the recipe's author: A test" in text.replace("&#x27;", "'")


def test_no_character_of_a_recipe_turns_the_page(tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any) -> None:
    changes = ('description="claim: \\u202e10.0 = \\u03b5"',)
    run = finish(tmp_path / "run", plan_of(overrides=changes), facts_of())
    assert run.plan.description == "claim: \u202e10.0 = ε"
    assert "\u202e" not in (run.release / "report.html").read_text(encoding="utf-8")
    assert "\u202e" not in (run.release / "card.md").read_text(encoding="utf-8")


def test_what_came_from_python_is_told_as_that(tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any) -> None:
    run = finish(tmp_path / "run", plan_of(), facts_of(model="python", data="python"))
    text = (run.release / "card.md").read_text(encoding="utf-8")
    assert "A module from Python, in place of the recipe's `logistic_regression`, trained by" in text
    assert "that the recipe, or whoever passed records from Python, declares public" in text
    assert "the recipe declares public" not in text
    assert yaml.safe_load(text.split("---\n")[1])["tags"] == ["differential-privacy", "dpsgd"]


@pytest.mark.parametrize("accepted", [False, True])
def test_warnings_that_nobody_accepted_are_told(
    accepted: bool, tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any
) -> None:
    from dprecipe.release.verify import verify

    accept = ("accept={P103: a reason, P108: a reason}",) if accepted else ()
    plan = plan_of(
        overrides=(
            "budget={epsilon: 11, delta: 6.8e-4}",
            "mechanism.sampling={scheme: full_batch}",
            "training.steps=5",
            *accept,
        )
    )
    run = finish(tmp_path / "run", plan, facts_of())
    warnings = "P103: δ is large for the number of records; P108: ε is above 10"
    assert any(warnings in note for note in verify(run.release).notes) is not accepted
    for name in ("card.md", "report.html"):
        text = (run.release / name).read_text(encoding="utf-8")
        assert (warnings in text) is not accepted
        assert "P103" in text


def test_what_is_declared_stands_apart_from_what_is_checked(page: Page, finished: Any) -> None:
    start, end = page.text.index("Declared, and checked by nobody"), page.text.index("What the claim rests on")
    for assumption in finished.plan.assumptions:
        assert (start < page.text.index(assumption.text) < end) == (assumption.checked_by == "declaration")


def test_each_figure_has_words_for_those_who_do_not_see_it(page: Page) -> None:
    labels = [value for name, value in page.attributes if name == "aria-label" and value and " " in value]
    assert len(labels) == page.tags.count("svg") == 3
    assert any("rises to 1.99" in label and "the budget is 2" in label for label in labels)
    assert not set(page.tags) & {"button", "input", "a"}  # nothing that a keyboard has to reach, but `details`


def test_a_verification_is_a_card_of_a_notebook(finished: Any) -> None:
    from dprecipe.release.verify import verify

    verified, card = verify(finished.release), Page()
    card.feed(verified._repr_html_())
    assert not card.open
    assert verified.claim.sentence in card.text
    assert "has to guess whether one record is in the data" in card.text
    assert all(line in card.text for line in (*verified.checked, *verified.notes))
    assert not {"script", "img", "a"} & set(card.tags)
    assert len(repr(verified)) < 600
