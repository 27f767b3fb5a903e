"""The probe: true constants pass, smaller ones and a broken engine are found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pnsgd.certificate import CHECKS
from dprecipe.mechanisms.pnsgd.constants import Proven, prove_constants, step_contraction
from dprecipe.mechanisms.pnsgd.plan import PlannedDescent
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.schema import (
    BallConstraint,
    BoxConstraint,
    Constraint,
    IntervalConstraint,
    SimplexConstraint,
)
from dprecipe.mechanisms.pnsgd.train import checks, losses
from dprecipe.mechanisms.pnsgd.train.descent import CpuBackend, Noise, Objective, shape_of
from dprecipe.mechanisms.pnsgd.train.losses import choose_loss
from dprecipe.mechanisms.pnsgd.train.sets import set_of
from dprecipe.models.schema import (
    HuberRegression,
    HuberSvm,
    LeastSquares,
    Location,
    LogisticRegression,
    SoftmaxRegression,
)
from dprecipe.privacy.adjacency import Neighbouring
from tests.sweeps import sweep

LOGISTIC = LogisticRegression(kind="logistic_regression", l2=0.01)
MODELS: list[tuple[Any, int]] = [
    (LOGISTIC, 2),
    (SoftmaxRegression(kind="softmax_regression", l2=0.1), 4),
    (HuberSvm(kind="huber_svm", width=0.1, bias=False), 2),
    (LeastSquares(kind="least_squares", l2=0.5), 1),
    (HuberRegression(kind="huber_regression", threshold=0.2), 1),
    (Location(kind="location"), 1),
    (Location(kind="location", threshold=0.3), 1),
]
SETS: list[Constraint] = [
    BallConstraint(kind="ball", radius=1.5),
    BoxConstraint(kind="box", bound=0.7),
    BallConstraint(kind="ball", radius=1.5, centre=0.4),
    IntervalConstraint(kind="intervals", low=-0.3, high=0.9),
    SimplexConstraint(kind="simplex", total=2.0),
]
R = 2.0


def case(
    model: Any,
    classes: int,
    within: Constraint,
    relation: Neighbouring = Neighbouring.REPLACE_ONE,
    batch: int = 1,
) -> tuple[Objective, dict[str, Any], tuple[Stage, ...]]:
    location = isinstance(model, Location)
    width = 0 if location else 5
    proven = prove_constants(model, width, classes, R, within, relation)
    stages = (Stage(10, 1.5 / proven.smoothness, 0.4), Stage(10, 0.5 / proven.smoothness, 2.0))
    objective = Objective(
        choose_loss(model, classes), width, location or model.bias, R, 0.0 if location else model.l2,
        set_of(within, shape_of(choose_loss(model, classes), width + (location or model.bias))),
    )  # fmt: skip
    settings = {
        "lipschitz": proven.lipschitz,
        "gradient_sensitivity": proven.gradient_sensitivity,
        "smoothness": proven.smoothness,
        "strong_convexity": proven.strong_convexity,
        "contraction": max(step_contraction(stage.learning_rate, proven) for stage in stages),
        "largest_norm": proven.largest_norm,
        "diameter": proven.diameter,
        "batch_size": batch,
        "noise_family": "gaussian" if batch > 1 else "laplace",
    }
    return objective, settings, stages


def probed(objective: Objective, settings: dict[str, Any], stages: tuple[Stage, ...], **rest: Any) -> Any:
    relation = rest.get("relation", Neighbouring.REPLACE_ONE)
    names = ("largest_norm", "diameter", "lipschitz", "gradient_sensitivity", "smoothness", "strong_convexity")
    proven = Proven(1, 1, *(settings[name] for name in names))
    family, batch = settings["noise_family"], settings["batch_size"]
    descent = PlannedDescent(relation.value, family, 1000, batch, "permuted", "last", proven)
    contraction, seed = settings["contraction"], rest.get("seed", 0)
    return checks.run_checks(objective, descent, contraction, stages, lambda: CpuBackend(objective), seed=seed)


@pytest.mark.parametrize("within", sweep(SETS, (0, 1, 4)), ids=lambda s: f"{s.kind}-{SETS.index(s)}")
@pytest.mark.parametrize(("model", "classes"), MODELS, ids=lambda m: getattr(m, "kind", ""))
def test_proven_constants_pass_every_check(
    model: Any, classes: int, within: Constraint, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(model, Location) and isinstance(within, SimplexConstraint):
        pytest.skip("a simplex of one parameter is a point, and refused")
    monkeypatch.setattr(checks, "_check_noise_scale", lambda *_: checks.Check("noise_scale", "", True, ""))
    for seed, batch in enumerate((1, 7, 200)):
        for relation in (Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE):
            actual = probed(*case(model, classes, within, relation, batch), relation=relation, seed=seed)
            assert {check.id for check in actual} == CHECKS.keys()
            assert all(check.passed for check in actual)


@pytest.mark.parametrize(
    ("key", "factor", "check"),
    [
        ("lipschitz", 0.9, "gradient is at most L"),
        ("gradient_sensitivity", 0.9, "gradient is at most L"),
        ("smoothness", 0.5, "changes by at most β"),
        ("strong_convexity", 1.5, "rises by at least ρ"),
        ("contraction", 0.9, "at most M times"),
        ("largest_norm", 0.99, "to the nearest point"),
        ("diameter", 0.99, "to the nearest point"),
    ],
)
@pytest.mark.parametrize("model", [LOGISTIC, MODELS[3][0]], ids=lambda m: m.kind)
def test_a_constant_that_promises_too_much_is_found(model: Any, key: str, factor: float, check: str) -> None:
    objective, settings, stages = case(model, 2, SETS[0])
    if key == "strong_convexity":
        settings[key] = 0.01
        factor = 1.5 if model is LOGISTIC else 60.0
        objective = Objective(**{
            name: getattr(objective, name) for name in ("loss", "width", "bias", "feature_norm", "within")
        }, l2=0.001)  # fmt: skip
    settings[key] *= factor
    with pytest.raises(RunFailed, match="no private record was used") as refused:
        probed(objective, settings, stages)
    assert check in refused.value.message


BROKEN: dict[str, tuple[int, Any, str, Any, str]] = {
    "slope of one": (
        1, losses.Logistic, "scalar_slope", lambda self, z, y: 0.49 * (math.tanh(0.5 * z) - y), "difference quotients"
    ),
    "slope": (
        4, losses.Logistic, "slope", lambda self, z, y, xp=np: 0.49 * (xp.tanh(0.5 * z) - y), "difference quotients"
    ),
    "projection": (1, Objective, "project", lambda self, w: np.clip(w, -0.6, 0.6, out=w), "nearest"),
    "rows": (
        1, Objective, "rows", lambda self, x, y: (np.hstack([x, np.ones((len(x), 1))]), self.loss.targets(y)),
        "at most L",
    ),
    "noise": (
        1, Noise, "scaled", lambda self, step, count, stage: 0.97 * stage.noise_scale * self.of(step, count),
        "noise is not what the plan says",
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_engine_is_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, owner, name, by, message = BROKEN[broken]
    engine = case(LOGISTIC, 2, SETS[0], batch=batch)
    assert probed(*engine)
    monkeypatch.setattr(owner, name, by)
    with pytest.raises(RunFailed, match=message):
        probed(*engine)


def test_the_divisor_of_a_short_batch_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, settings, stages = case(LOGISTIC, 2, SETS[0], batch=4)
    honest = checks.Descent._gradient

    def own_divisor(self: Any, first: int, end: int) -> Any:
        return honest(self, first, end) * (self._batch / (end - first))

    monkeypatch.setattr(checks.Descent, "_gradient", own_divisor)
    with pytest.raises(RunFailed, match="short batch keeps its divisor"):
        probed(objective, settings, stages)
