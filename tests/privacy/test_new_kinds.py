"""What comes next fits without a change of the trunk: a kind of event is one class."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from dprecipe.language.base import PositiveFloat
from dprecipe.mechanisms.pnsgd.events import LastIterateProfile, ProjectedDescent
from dprecipe.privacy import accountants, calibrate, cross_check, event_kinds, whole_runs
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.charge_shapes import charge_model, charge_schemas
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Charge, Event, charge_from_json, check_positive
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.privacy.loss import LossPair, from_atoms
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.privacy.profile import Answer, Profile
from dprecipe.privacy.questions import Question, RenyiCurve, WholeRun
from dprecipe.privacy.screen import surely_within

ADD = Neighbouring.ADD_OR_REMOVE_ONE


@dataclass(frozen=True, slots=True)
class Coin(Event):
    """One answer of randomised response: a paid stage before training, say."""

    kind: ClassVar[str] = "coin"
    epsilon: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(epsilon=self.epsilon)

    @property
    def max_loss(self) -> float:
        return self.epsilon

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> np.ndarray:
        a, p = np.asarray(orders), 1 / (1 + math.exp(-self.epsilon))
        both = np.logaddexp(a * math.log(p) + (1 - a) * math.log1p(-p), a * math.log1p(-p) + (1 - a) * math.log(p))
        return np.asarray(both / (a - 1))

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        p = 1 / (1 + math.exp(-self.epsilon))
        return LossPair(from_atoms(np.array([-self.epsilon, self.epsilon]), np.array([1 - p, p]), step))

    def cross_check(self) -> Question:
        def divergences(orders: np.ndarray) -> np.ndarray:
            half = self.epsilon / 2  # cosh, in place of the two probabilities
            return np.log(np.cosh((2 * orders - 1) * half) / math.cosh(half)) / (orders - 1)

        return RenyiCurve(divergences, math.inf)


@dataclass(frozen=True, slots=True)
class BestOf(Event):
    """The best of a geometric number of last-iterate releases: what it costs is a function of one run's profile."""

    kind: ClassVar[str] = "best_of"
    run: ProjectedDescent

    def profile(self) -> Profile:
        return Tripled(self.run)

    def cross_check(self) -> Question:
        inner = self.run.cross_check()
        assert isinstance(inner, WholeRun)
        return WholeRun(lambda delta: 3 * inner.epsilon(delta / 3))


class Tripled(LastIterateProfile):
    """ε three times that of the run: Liu & Talwar 2019, Theorem 3.5, for pure ε (an example, no claim)."""

    def epsilon(self, delta: float) -> Answer:
        answer = super().epsilon(delta / 3)
        return Answer(3 * answer.value, f"tuned {answer.accountant}")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for cls in (Coin, BestOf):
        monkeypatch.setitem(event_kinds._KINDS, cls.kind, cls)
    yield
    charge_model.cache_clear()


MIXED = [Charge(Coin(0.3), 40), Charge(PoissonGaussian(0.02, 1.0), 200), Charge(Gaussian(5.0), 1)]


def test_it_composes_with_all_others() -> None:
    single = accountants.epsilon([Charge(Coin(0.3), 1)], 1e-9, ADD, "pld")
    assert single == pytest.approx(0.3, rel=1e-4)
    by_losses, by_renyi = (accountants.epsilon(MIXED, 1e-5, ADD, name) for name in ("pld", "rdp"))
    assert accountants.epsilon(MIXED[1:], 1e-5, ADD, "pld") < by_losses < by_renyi
    assert accountants.delta(MIXED, by_losses, ADD, "pld") == pytest.approx(1e-5, rel=1e-3)
    assert accountants.epsilon(MIXED, 1e-5, ADD, "gdp") == math.inf
    assert not surely_within(MIXED, 1e3, 1e-5, ADD)  # it gives no bound for the screen


def test_the_cross_check_asks_it_what_it_is() -> None:
    theirs = cross_check.ask_library(MIXED, 1e-5, ADD)
    assert theirs.name == "dp_accounting.rdp"
    assert theirs.epsilon == pytest.approx(accountants.epsilon(MIXED, 1e-5, ADD, "rdp"), rel=1e-2)


def test_a_budget_is_filled_with_it() -> None:
    count = calibrate.calibrate_count(Coin(0.1), 2.0, 1e-6, ADD, "pld", [MIXED[-1]])
    assert accountants.epsilon([MIXED[-1], Charge(Coin(0.1), count)], 1e-6, ADD, "pld") <= 2.0
    assert accountants.epsilon([MIXED[-1], Charge(Coin(0.1), count + 1)], 1e-6, ADD, "pld") > 2.0


def test_ledgers_and_schemas_know_it(tmp_path: Path) -> None:
    charge = Charge(Coin(0.3), 7)
    assert charge_from_json(json.loads(json.dumps(charge.to_json()))) == charge
    ledger = LedgerWriter(tmp_path / "ledger.jsonl", "sha256:" + "0" * 64)
    ledger.reserve(charge.event, 7)
    ledger.settle(charge.event, 7)
    ledger.close("completed")
    assert read(tmp_path / "ledger.jsonl").charges == (charge,)
    shape = TypeAdapter(charge_model("coin"))
    shape.validate_python(charge.to_json())
    with pytest.raises(ValidationError):
        shape.validate_python({**charge.to_json(), "epsilon": 0.0})
    assert shape.json_schema() in charge_schemas()


def test_a_profile_may_wrap_another() -> None:
    run = ProjectedDescent("replace_one", "gaussian", 90, 8, "permuted", "last", ((13, 2.0, 0.9, 3.0),))
    relation = Neighbouring.REPLACE_ONE
    one = accountants.epsilon_answer([Charge(run, 1)], 1e-5 / 3, relation, "pld")
    best = accountants.epsilon_answer([Charge(BestOf(run), 1)], 1e-5, relation, "pld")
    assert best == Answer(3 * one.value, f"tuned {one.accountant}")
    twice = accountants.epsilon([Charge(BestOf(run), 2)], 1e-5, relation, "pld")
    assert twice == 2 * accountants.epsilon([Charge(BestOf(run), 1)], 5e-6, relation, "pld")
    assert cross_check.ask_library([Charge(BestOf(run), 1)], 1e-5, relation).epsilon == pytest.approx(
        best.value, rel=1e-2
    )
    assert accountants.epsilon([Charge(BestOf(run), 1), *MIXED], 1e-5, relation, "pld") == math.inf
    assert whole_runs.epsilon_by_bound([Charge(BestOf(run), 1)], 1e-5, relation)


def test_a_kind_is_registered_once() -> None:
    @dataclass(frozen=True, slots=True)
    class Other(Event):
        kind: ClassVar[str] = "coin"

    with pytest.raises(ValueError, match="there is an event of kind 'coin' already"):
        register_event(Other)
    assert register_event(Coin) is Coin
    assert event_kinds.event_kinds()["coin"] is Coin
