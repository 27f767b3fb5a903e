"""What is covered and what is private can't be mixed up: one maker of covered points, and the plan decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.training.loggers.points import make_covered_point, make_end_point, make_private_point
from dprecipe.training.program.evaluate import Score

PACKAGE = Path(__file__).parents[3] / "dprecipe"
TEXT = """\
recipe: dprecipe/v1
name: small
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: ACCESS}
  size: SIZE
  preprocess: [PAID{clip_features: {norm: 4.0}}]
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 20, optimizer: {kind: sgd, lr: 0.5}}
"""


@pytest.fixture
def plan() -> Callable[..., Plan]:
    def make(access: str = "public", size: str = "1438", paid: str = "") -> Plan:
        return make_plan(read_text(TEXT.replace("ACCESS", access).replace("SIZE", size).replace("PAID", paid)))

    return make


SCORE = Score(0.9, 0.3, 359)
STOPS = ("last", "random")


def test_public_scores_are_covered_and_private_ones_are_not(plan: Callable[..., Plan]) -> None:
    arguments = (5, 0.5, 0.1, {"clip_norm": 0.7}, SCORE)
    public = make_covered_point(plan(), *arguments, test_from_python=False)
    assert public is not None
    assert (public.step, dict(public.values)) == (
        5,
        {"epsilon": 0.5, "learning_rate": 0.1, "clip_norm": 0.7, "accuracy": 0.9, "loss": 0.3},
    )
    for private in (
        make_covered_point(plan("private_internal"), *arguments, test_from_python=False),
        make_covered_point(plan(), *arguments, test_from_python=True),
    ):
        assert private is not None
        assert dict(private.values) == {"epsilon": 0.5, "learning_rate": 0.1, "clip_norm": 0.7}


def test_nothing_is_covered_on_the_way_where_the_duration_is_protected(plan: Callable[..., Plan]) -> None:
    hidden = plan(size="{max: 2000}", paid="{dp_count: {share: 0.1}}, ")
    assert hidden.hides_duration
    assert make_covered_point(hidden, 5, 0.5, 0.1, {}, SCORE, test_from_python=False) is None


def test_the_point_of_a_release_holds_what_the_release_says(plan: Callable[..., Plan]) -> None:
    public = make_end_point(plan(), 2.5, SCORE, test_from_python=False)
    assert public is not None
    assert (public.step, dict(public.values)) == (20, {"epsilon": 2.5, "accuracy": 0.9, "loss": 0.3})
    for private in (
        make_end_point(plan("private_internal"), 2.5, SCORE, test_from_python=False),
        make_end_point(plan(), 2.5, SCORE, test_from_python=True),
        make_end_point(plan(), 2.5, None, test_from_python=False),
    ):
        assert private is not None
        assert dict(private.values) == {"epsilon": 2.5}
    hidden = plan(size="{max: 2000}", paid="{dp_count: {share: 0.1}}, ")
    assert make_end_point(hidden, 2.5, SCORE, test_from_python=False) is None


def test_a_random_number_of_steps_is_told_by_nothing() -> None:
    text = (Path(__file__).parents[2] / "golden" / "rules" / "fine-pnsgd.yaml").read_text("utf-8")
    fixed, drawn = (make_plan(read_text(text.replace("rate: 1.0", f"rate: 1.0\n  stop: {stop}"))) for stop in STOPS)
    assert (fixed.hides_duration, drawn.hides_duration) == (False, True)
    assert make_end_point(fixed, 4.0, SCORE, test_from_python=False) is not None
    assert make_end_point(drawn, 4.0, SCORE, test_from_python=False) is None


def test_the_owner_gets_everything() -> None:
    point = make_private_point(5, 0.5, 0.1, {"accuracy": 0.8, "training_loss": 0.2})
    assert set(point.values) == {"epsilon", "learning_rate", "accuracy", "training_loss"}
    assert set(make_private_point(5, 0.5, None, {"accuracy": 0.8}).values) == {"epsilon", "accuracy"}


def test_covered_points_are_made_in_one_place() -> None:
    """By no other call, and changed by nobody: `replace` would put a private value into a covered point."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    assert [name for name, text in texts.items() if "CoveredPoint(" in text] == ["training/loggers/points.py"]
    users = [name for name, text in texts.items() if "CoveredPoint" in text]
    assert set(users) == {f"training/{name}.py" for name in ("loggers/points", "loggers/run", "steps/watch")}
    assert not any("import replace" in texts[name] for name in users)
