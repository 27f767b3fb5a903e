"""Small ensembles: a recipe that is planned in no time, and a ballot on synthetic votes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.aggregators import aggregator_of
from dprecipe.mechanisms.pate.train.answers import AnswersFile
from dprecipe.mechanisms.pate.train.ballot import Ballot, RemainingBudget, noise_streams
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.make import plan
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.recipe.read import read
from tests.recipe_texts import SPLIT_DIGITS

VOTES = """\
recipe: dprecipe/v1
name: votes
data:
  train: {source: npz, path: train.npz, shape: [4], classes: 3}
  public: {source: npz, path: public.npz, shape: [4]}
  size: 1000
model: {kind: logistic_regression}
mechanism:
  kind: pate
  teachers: {count: 5, votes: {path: votes.npz}}
  aggregator: %s
  queries: {max: %d}
budget: {epsilon: auto, delta: 1e-5}
release: {report: false}
"""
DIGITS = (
    f"recipe: dprecipe/v1\nname: digits\n{SPLIT_DIGITS}"
    """\
model: {kind: logistic_regression}
mechanism:
  kind: pate
  teachers:
    count: 25
    model: {kind: logistic_regression}
    training: {steps: 60, batch_size: 16, optimizer: {kind: adam, lr: 0.03}}
  aggregator:
    kind: confident_gnmax
    noise: {family: gaussian, multiplier: 8}
    selection: {threshold: 15, noise: {family: gaussian, multiplier: 16}}
  queries: {max: 100}
budget: {epsilon: auto, delta: 1e-5, neighbouring: zero_out_one}
release: {report: false}
"""
)
AGGREGATORS = {
    "lnmax": "{kind: lnmax, noise: {family: laplace, multiplier: 20}}",
    "gnmax": "{kind: gnmax, noise: {family: gaussian, multiplier: 20}}",
    "confident": (
        "{kind: confident_gnmax, noise: {family: gaussian, multiplier: 20}, "
        "selection: {threshold: 4, noise: {family: gaussian, multiplier: 30}}}"
    ),
    "interactive": (
        "{kind: interactive_gnmax, noise: {family: gaussian, multiplier: 20}, "
        "selection: {threshold: 4, noise: {family: gaussian, multiplier: 30}}, "
        "interaction: {rounds: 2, threshold: 1, confidence: 0.8}}"
    ),
    "rounds": (
        "{kind: interactive_gnmax, noise: {family: gaussian, multiplier: 20}, "
        "selection: {threshold: 4, noise: {family: gaussian, multiplier: 30}}, "
        "interaction: {threshold: 1, confidence: 0.8, rounds: [{queries: 40}, "
        "{queries: 25, threshold: 2, selection_multiplier: 50, multiplier: 10}, {selection_multiplier: 25}]}}"
    ),
}


@dataclass
class Booth:
    """A ballot with its ledger and answers in a folder, opened again as a later attempt."""

    plan: Plan
    folder: Path
    counts: Any
    seed: int | None = None
    open_ledgers: list[LedgerWriter] = field(default_factory=list)

    def open(self) -> Ballot:
        self.shut()
        self.folder.mkdir(exist_ok=True)
        ledger = LedgerWriter(self.folder / "ledger.jsonl", self.plan.digest)
        self.open_ledgers.append(ledger)
        self.remaining_budget = RemainingBudget(
            self.plan, ledger, () if ledger.before is None else ledger.before.charges
        )
        answers = AnswersFile(self.folder / "answers.jsonl", ledger.before, *self.counts.shape)
        streams = noise_streams(Secrets(self.seed, ledger.attempt))
        aggregator = aggregator_of(self.plan.mechanism_plan)
        return Ballot(
            self.counts, aggregator, self.plan.mechanism_plan.answers, self.remaining_budget, streams, answers
        )

    def shut(self) -> None:
        for ledger in self.open_ledgers:
            ledger.abandon()
        self.open_ledgers.clear()


Planned = Callable[..., Plan]
Opened = Callable[..., Booth]


@pytest.fixture
def votes_plan(tmp_path: Path) -> Planned:
    """The plan of a number of queries put to five teachers."""

    def make(aggregator: str, queries: int, *overrides: str) -> Plan:
        recipe = tmp_path / "votes.yaml"
        recipe.write_text(VOTES % (AGGREGATORS[aggregator], queries), encoding="utf-8")
        return plan(read(recipe, overrides))

    return make


@pytest.fixture
def booth(tmp_path: Path, votes_plan: Planned) -> Opened:
    """A booth of an aggregator, on the counts given or on random ones."""
    booths: list[Booth] = []

    def make(aggregator: str, queries: int, *overrides: str, counts: Any = None, seed: int | None = None) -> Booth:
        if counts is None:
            counts = np.random.default_rng(0).multinomial(5, [0.6, 0.3, 0.1], size=queries)
        one_booth = Booth(
            votes_plan(aggregator, queries, *overrides),
            tmp_path / f"booth{len(booths)}",
            np.asarray(counts, np.int32),
            seed,
        )
        booths.append(one_booth)
        return one_booth

    return make


@pytest.fixture
def digits(tmp_path: Path) -> Planned:
    """The plan of a small run on the digits, with overrides."""
    recipe = tmp_path / "digits.yaml"
    recipe.write_text(DIGITS, encoding="utf-8")
    return lambda *overrides: plan(read(recipe, overrides))
