"""An audit in the report, the card and on the screen."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.privacy.audit.any_program import gaussian_curve
from dprecipe.privacy.audit.program import make_audit
from dprecipe.privacy.audit.results import AttackTrials, Audit, Excess, Frequency, Guesses
from dprecipe.privacy.audit.verdicts import judge_bound, judge_test
from dprecipe.release import figures
from dprecipe.release.audit import (
    LIMITS,
    NOT_AUDITED,
    describe_bound,
    list_audit_figures,
    render_audit,
    summarise_audit,
)

PLAN = "sha256:" + "1" * 64


def audit_of(**changes: Any) -> Audit:
    tests = [
        judge_test("program", "clip", "no unit moves the sum by more than 1", Excess(largest=0.99, allowed=1.0)),
        judge_test(
            "program", "rate", "units join at q", Frequency(successes=48, trials=100, expected=0.5), 1e-6, choices=3
        ),
    ]
    trials = AttackTrials(form="mu", positives_in=2960, trials_in=5000, positives_out=2040, trials_out=5000)
    bounds = [
        judge_bound("steps", "mu", "of a step", trials, confidence=0.95, claimed=0.5, implied_epsilon=1.5),
        judge_bound(
            "canaries",
            "one_run",
            "of the run",
            Guesses(canaries=200, named_in=40, named_out=40, correct=55),
            confidence=0.95,
            claimed=3.0,
            delta=1e-5,
            curve=gaussian_curve(0.719),
        ),
    ]
    return make_audit(PLAN, **{"tests": tests, "bounds": bounds, **changes})


def test_the_figure_is_in_the_language_of_figures() -> None:
    (figure,) = list_audit_figures(audit_of())
    assert figures.find_flaw(figures.render_svg(figure.name, figure.draw), figure.name, figure.words) is None


def test_nothing_bounded_is_no_figure_and_no_audit_is_told() -> None:
    assert list_audit_figures(None) == []
    assert list_audit_figures(audit_of(bounds=())) == []
    assert NOT_AUDITED in render_audit(None, "")
    assert summarise_audit(None) == NOT_AUDITED


@pytest.mark.parametrize("words", ["μ &gt;= 0.394<", "2,960 of 5,000 with the canary", "55 of 80 names right", LIMITS])
def test_the_section_has_what_was_counted_and_what_it_does_not_show(words: str) -> None:
    assert words.replace("'", "&#x27;") in render_audit(audit_of(), "")


def test_words_do_not_oversell() -> None:
    text = f"{summarise_audit(audit_of())} {render_audit(audit_of(), '')}".lower()
    assert not [word for word in ("proves", "proven", "safe", "secure", "verified", "guaranteed") if word in text]


def test_each_bound_says_which_faults_it_would_have_seen() -> None:
    """An attack that could see none must not look like one that found none."""
    of_step, of_run = audit_of().bounds
    assert "would probably see a fault from μ = 0." in describe_bound(of_step)
    blind = judge_bound(
        "canaries",
        "one_run",
        "of the run",
        Guesses(canaries=20, named_in=5, named_out=5, correct=10),
        confidence=0.95,
        claimed=8.0,
        delta=1e-5,
        curve=gaussian_curve(1.7),
    )
    assert describe_bound(of_run).endswith("would probably see no fault at all") is (of_run.smallest_fault is None)
    assert describe_bound(blind).endswith("would probably see no fault at all")
