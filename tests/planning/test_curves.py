"""Curves of ε around a plan: each point of a curve is what a plan of its own says."""

from __future__ import annotations

import pytest

from dprecipe.planning.curves import EpsilonCurve, trace_curves
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text
from tests.recipe_texts import DIGITS, DPSGD, PNSGD, SPLIT_DIGITS

HEAD = "recipe: dprecipe/v1\nname: small\n"
POISSON = HEAD + DIGITS + "model: {kind: logistic_regression}\n" + DPSGD + (
    "training: {epochs: 5, optimizer: {kind: sgd, lr: 0.5}}\n"
)  # fmt: skip
TUNING = (
    "tuning: {runs: {kind: poisson, mean: 3}, over: [{key: training.optimizer.lr, values: [0.5, 1.0]}], "
    "score: {metric: accuracy, records: test}}\n"
)


def trace(text: str) -> tuple[EpsilonCurve, ...]:
    loaded = read_text(text)
    said: list[str] = []
    curves = trace_curves(loaded, plan(loaded), said.append)
    assert said  # the work in hand
    return curves


def test_curves_of_sgd_go_through_the_plan() -> None:
    along, noise, batch = trace(POISSON)
    claim = plan(read_text(POISSON)).guarantee.epsilon
    assert along.what == "epochs"
    assert along.here is not None
    assert along.here[0] == pytest.approx(5, rel=0.02)
    assert {"pld", "rdp", "moments_accountant", "strong_composition_as_printed"} <= set(along.lines)
    for points in along.lines.values():
        assert [epsilon for _, epsilon in points] == sorted(epsilon for _, epsilon in points)
    assert along.lines["pld"][-1][1] == claim
    assert along.lines["moments_accountant"][-1][1] > along.lines["rdp"][-1][1] > claim
    (points,) = noise.lines.values()
    assert noise.here is not None
    assert noise.here[1] == claim
    assert [epsilon for _, epsilon in points] == sorted((epsilon for _, epsilon in points), reverse=True)
    (points,) = batch.lines.values()
    assert batch.what == "mechanism.sampling.batch_size"
    assert (64.0, claim) in points
    for size, epsilon in points[::4]:
        other = POISSON.replace("batch_size: 64", f"batch_size: {size:g}").replace("epsilon: 3.0", "epsilon: auto")
        multiplier = plan(read_text(POISSON)).solved["mechanism.noise.multiplier"]
        other = other.replace("multiplier: auto", f"multiplier: {multiplier!r}")
        assert plan(read_text(other)).guarantee.epsilon == epsilon


def test_a_length_that_is_solved_is_that_of_the_plan_in_every_point() -> None:
    text = POISSON.replace("multiplier: auto", "multiplier: 1.5").replace("epochs: 5", "epochs: auto")
    _, noise, _ = trace(text)
    (points,) = noise.lines.values()
    assert noise.here == (1.5, plan(read_text(text)).guarantee.epsilon)
    assert noise.here in points


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (
            HEAD + DIGITS + "  preprocess: [{flatten: {}}, {clip_features: {norm: 1.0}}]\n" + PNSGD,
            ("nothing is released", "", ""),
        ),
        (POISSON + TUNING, ("one event covers all runs", "", "")),
        (
            POISSON.replace("{scheme: poisson, batch_size: 64}", "{scheme: full_batch}"),
            ("", "", "every unit takes part"),
        ),
        (
            POISSON.replace("epochs: 5", "steps: 2"),
            ("too few steps", "", ""),
        ),
        (
            POISSON.replace(
                "noise: {family: gaussian, multiplier: auto}",
                "noise: [{family: gaussian, multiplier: 3.0, epochs: 1}, {family: gaussian, multiplier: auto}]",
            ),
            ("", "several noises", ""),
        ),
    ],
    ids=["last iterate", "tuned", "full batch", "short", "phases"],
)
def test_a_curve_that_makes_no_sense_says_why(text: str, reasons: tuple[str, ...]) -> None:
    for curve, reason in zip(trace(text), reasons, strict=True):
        assert reason in curve.reason
        assert bool(curve.reason) == bool(reason), curve.reason
        assert bool(curve.lines) != bool(reason)


def test_votes_are_drawn_over_queries() -> None:
    text = HEAD + SPLIT_DIGITS + """\
model: {kind: logistic_regression}
mechanism:
  kind: pate
  teachers: {count: 20, model: {kind: logistic_regression}, training: {epochs: 2, optimizer: {kind: sgd, lr: 0.5}}}
  aggregator: {kind: gnmax, noise: {family: gaussian, multiplier: auto}}
  queries: {max: 100}
budget: {epsilon: 5.0, delta: 1e-5, neighbouring: replace_one}
training: {epochs: 2, batch_size: 32, optimizer: {kind: sgd, lr: 0.5}}
"""  # fmt: skip
    along, noise, _ = trace(text)
    assert (along.what, noise.what) == ("queries", "mechanism.aggregator.noise.multiplier")
    assert along.here is not None
    assert along.here[0] == 100
