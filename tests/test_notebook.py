"""Notebooks: cards of words, bars in place, and nothing that tells of private records."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

import dprecipe
from dprecipe import notebook, progress, screen
from dprecipe.faults import CertificateInvalid, DataFault, Fault, Finding, Place, PlanRefused, RecipeError, Severity
from dprecipe.training.program.evaluate import Score
from dprecipe.training.run.runner import Run

HOSTILE = '<img src=x onerror="alert(1)">\u202e\x1b[31m'
RECIPE = """\
recipe: dprecipe/v1
name: card
description: "<b onclick='x'>&\\u202e"
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: private_internal}
  size: 1438
model: {kind: logistic_regression}
mechanism: {kind: dpsgd, clip: {norm: 1.0}, noise: {family: gaussian, multiplier: auto}, sampling: {scheme: full_batch}}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 5, optimizer: {kind: sgd, lr: 0.5}}
"""


class Checker(HTMLParser):
    """Tags are closed, none is active, and there is no attribute of an event."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(content)
        assert not self.open
        assert "\u202e" not in content
        assert "\x1b" not in content

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "img", "a", "iframe", "object"}
        assert not [name for name, _ in attrs if name.startswith("on") or name in {"src", "href"}]
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A notebook's shell; what it displays, each update as one more."""
    results: list[str] = []

    class Handle:
        def update(self, content: str) -> None:
            results.append(content)

    def display(content: str, display_id: bool) -> Handle:
        results.append(content)
        return Handle()

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    return results


def test_without_a_kernel_there_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not screen.is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not screen.is_notebook()  # IPython in a terminal


def test_a_bar_is_drawn_in_place_and_not_too_often(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(notebook.time, "monotonic", lambda: now[0])
    bar, asked = progress.Progress(f"run {HOSTILE}", "step", 1000), []
    for done in range(1, 1001):
        now[0] = done / 1000
        bar.show(done, lambda done=done: asked.append(done) or f"ε {done}")
    bar.end(1000, lambda: "ε 3")
    assert 5 <= len(shown) <= 8
    assert len(asked) == len(shown) - 2  # a status is computed only where it is shown
    assert "step 1,000 of 1,000 · 1 s · ε 3" in Checker(shown[-1]).text
    assert "s left" in shown[2]
    assert 'value="1000"' in shown[-1]


def test_a_notebook_keeps_what_it_shows_so_private_numbers_are_not_shown(
    shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bar = progress.Progress("records", "record", 30, private=True)
    bar.show(20)
    bar.end(30)
    with progress.silence_progress():
        progress.Progress("trial", "step", 3).end(3)
    assert shown == []
    assert capsys.readouterr() == ("", "")


def test_notes_in_a_notebook_do_not_look_like_errors(shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    screen.write_note("training")
    assert capsys.readouterr() == ("training\n", "")


def test_tables_are_laid_out_by_their_content() -> None:
    """JupyterLab lays tables out by their first row; there, a narrow first column lies over the second."""
    assert "table-layout:auto!important" in notebook.STYLE


def test_recipe_and_plan_are_cards_of_words(tmp_path: Path) -> None:
    (tmp_path / "card.yaml").write_text(RECIPE, encoding="utf-8")
    loaded = dprecipe.load(tmp_path / "card.yaml", {"training.steps": 7})
    text = Checker(loaded._repr_html_()).text
    for words in ("Recipe card", "training.steps=7", "logistic_regression", "<b onclick='x'>&", "clip: {norm: 1.0}"):
        assert words in text
    plan = dprecipe.plan(loaded)
    text = Checker(plan._repr_html_()).text
    for words in ("Plan of card", f"ε = {plan.guarantee.epsilon:g}", "adding or removing one record", plan.digest):
        assert words in text
    assert all(assumption.text in text for assumption in plan.assumptions)
    assert max(len(repr(loaded)), len(repr(plan))) < 200


def test_a_runs_card_has_no_score_that_is_not_released(tmp_path: Path) -> None:
    (tmp_path / "card.yaml").write_text(RECIPE, encoding="utf-8")
    plan = dprecipe.plan(dprecipe.load(tmp_path / "card.yaml"))
    run = Run(tmp_path, tmp_path / "release", plan, 2.5, "completed", Score(0.8765, 0.4321, 360), 1.0, (HOSTILE,))
    for text in (run._repr_html_(), repr(run)):
        assert "87.65" not in text
        assert "0.8765" not in text
        assert "0.4321" not in text
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "metrics.json").write_text('{"public_evaluation": {"accuracy": 0.5, "records": 12}}')
    text = Checker(run._repr_html_()).text
    assert "50.00%accuracy on 12 records declared public" in text
    assert "verifies from its folder alone" in text
    assert "nobody is protected" in Run(tmp_path, tmp_path, plan, 2.5, "completed", None, 1.0, (), False)._repr_html_()


FINDING = Finding("R101", f"unknown key {HOSTILE}", "write `epsilon`", "budget.x", Place("a.yaml", 3, 5))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (RecipeError([FINDING]), ("error[R101] budget.x (a.yaml:3:5)", "unknown key", "= write `epsilon`")),
        (PlanRefused([FINDING]), ("error[R101] budget.x (a.yaml:3:5)", "= write `epsilon`")),
        (CertificateInvalid([f"claim {HOSTILE}"]), ("does not verify", "claim")),
        (DataFault(f"no file {HOSTILE}", "put it there", "3 records of ward 7"), ("no file", "put it there")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_is_its_message_and_remedy(fault: Fault, words: tuple[str, ...]) -> None:
    text, lines = Checker(fault._repr_html_()).text, "\n".join(fault._render_traceback_())
    for word in words:
        assert word in text
        assert word in lines
    assert "\x1b" not in lines
    assert "\u202e" not in lines
    assert "ward 7" not in text + lines  # what is private is shown in a terminal only


def test_a_finding_says_what_kind_it_is() -> None:
    assert 'class="mark error"' in FINDING._repr_html_()
    warning = Finding("P108", "ε is above 10", "lower it", "budget.epsilon", severity=Severity.WARNING)
    assert 'class="mark warning"' in warning._repr_html_()
    accepted = Finding("P108", "ε is above 10", "lower it", "", severity=Severity.WARNING, accepted="a test")
    assert "because: a test" in Checker(accepted._repr_html_()).text
