"""A run of ε = 0: δ alone covers its events. It is stated, verified, compared and exported like any other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dprecipe
from dprecipe.cli.compare import compare
from dprecipe.cli.verify import verify as show_verified
from dprecipe.contract.plan import Plan
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian
from dprecipe.recipe.read import read
from dprecipe.release.exports import EXPORTS

RECIPE = """recipe: dprecipe/v1
name: zero
data: {train: {source: npz, path: x.npz, features: x, labels: y, shape: [4], classes: 2}, size: 100}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 4.0}
  sampling: {scheme: poisson, batch_size: 1}
budget: {epsilon: auto, delta: 1e-3}
training: {steps: 1, optimizer: {kind: sgd, lr: 0.5}}
runtime: {device: cpu}
"""


@pytest.fixture
def zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", x=draw.normal(size=(100, 4)).astype("f4"), y=draw.integers(2, size=100))
    (tmp_path / "zero.yaml").write_text(RECIPE, encoding="utf-8")
    return plan(read(tmp_path / "zero.yaml"))


def test_epsilon_is_zero_where_delta_covers_the_events() -> None:
    """σ = 1, q = 105/100,000, one step: δ(0) = q (2 Φ(1/2) - 1) = 4.02e-4, so at δ = 1e-3 there is no ε to state."""
    one = (Charge(PoissonGaussian(105 / 100_000, 1.0), 1),)
    add = Neighbouring.ADD_OR_REMOVE_ONE
    assert accountants.epsilon(one, 1e-3, add, "pld") == 0
    assert accountants.delta(one, 0.0, add, "pld") == pytest.approx(4.0206e-4, rel=1e-3)
    assert accountants.epsilon(one, 4.0e-4, add, "pld") > 0


def test_a_run_of_epsilon_zero_is_stated_and_verified(
    zero: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert zero.guarantee.epsilon == 0
    run = dprecipe.run(zero, out=tmp_path / "run")
    verified = dprecipe.verify(run.release)
    claim, stated = verified.claim, verified.statement.predicate
    assert (claim.epsilon, claim.delta) == (0.0, 1e-3)
    assert (stated.budget.epsilon, stated.budget.spent) == (0.0, 0.0)
    assert claim.risk.advantage == pytest.approx(1e-3, rel=1e-4)  # δ is charged
    for form in EXPORTS:
        show_verified(run.release, form=form)
    capsys.readouterr()
    compare([run.release, tmp_path / "zero.yaml"], output="json")
    (standing,) = json.loads(capsys.readouterr().out)["standings"]
    assert {row["epsilon"] for row in standing["methods"]} == {0.0}
    assert "0.0" in (run.release / "card.md").read_text("utf-8")
