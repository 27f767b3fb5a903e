"""T24: a run killed with SIGKILL at random moments and resumed each time hides nothing and stays within the budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dprecipe
from dprecipe.account.facts import new_facts
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.standing import find_cost
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import count_events
from dprecipe.privacy.ledger import Ledger, read
from dprecipe.privacy.stages.events import StageEvent
from dprecipe.release.charged_account import to_curve

RECIPE = """\
recipe: dprecipe/v1
name: killed
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
  preprocess: [{clip_features: {norm: 4.0}}]
model: {kind: logistic_regression}
mechanism:
  %s
  sampling: {scheme: %s}
budget: {epsilon: 3.0, delta: 1e-5}
training:
  steps: %d
  optimizer: {kind: sgd, lr: 1.0}
runtime: {checkpoint_seconds: 0.02}
release: {report: false}
"""


DPSGD = """kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}"""
ENCODED = """kind: encoded
  codebook: {source: gaussian, size: 5}
  noise: [{family: laplace, multiplier: 3.0, steps: 100}, {family: gaussian, multiplier: auto}]"""


CORRELATED = """kind: correlated
  clip: {norm: 1.0}
  noise: {form: previous_step, multiplier: auto}"""


STAGES = """[
    {flatten: {}}, {dp_quantiles: {columns: all, bounds: [0, 1], share: 0.02}}, {dp_standardize: {share: 0.02}},
    {dp_pca: {components: 40, row_norm: 8.0, share: 0.02}}]"""


@pytest.mark.slow
def test_paid_steps_killed_at_random_moments_are_never_drawn_twice_for_the_price_of_one(tmp_path: Path) -> None:
    """Each attempt is killed in its paid steps or in its first steps of training, until all have been killed. Draws of
    paid steps and of training are each held against their own charges: one can't make up for the other.
    docs/project/reliability.md has the figures of DPRECIPE_KILLED_RUNS=4."""
    text = RECIPE.replace("[{clip_features: {norm: 4.0}}]", STAGES) % (DPSGD, "poisson, batch_size: 64", 60)
    runs = int(os.environ.get("DPRECIPE_KILLED_RUNS", "0"))
    for seed in range(max(1, runs)):
        drawn, ledger = hold_killed(
            tmp_path / str(seed), text.replace("epsilon: 3.0", "epsilon: 30.0"), kills=25 if runs else 8, seed=seed
        )
        charged = sum(charge.count for charge in ledger.charges if isinstance(charge.event, StageEvent))
        lost = sum(charge.count for charge in ledger.unsettled if isinstance(charge.event, StageEvent))
        assert drawn["of_stages"] <= charged
        assert drawn["draws"] - drawn["of_stages"] <= count_events(ledger.charges) - charged
        assert lost > 0  # kills came between a reservation and its settlement
        counts = f"{drawn['of_stages']} events of steps drawn, {charged} charged, {lost} of them not settled"
        print(f"{ledger.attempts} attempts: {counts}")


PER_EVENT = {"dealt": 12, "permuted": 11, "fixed_order": 12}
"""Steps of an event."""


@pytest.mark.parametrize(
    ("mechanism", "scheme", "steps", "kills"),
    [
        (DPSGD, "poisson, batch_size: 64", 200, 1),
        pytest.param(DPSGD, "poisson, batch_size: 64", 1000, 8, marks=pytest.mark.slow),
        pytest.param(DPSGD, "full_batch", 600, 8, marks=pytest.mark.slow),
        pytest.param(DPSGD, "dealt, batch_size: 128", 720, 8, marks=pytest.mark.slow),
        pytest.param(DPSGD, "permuted, batch_size: 128", 660, 8, marks=pytest.mark.slow),
        pytest.param(CORRELATED, "fixed_order, batch_size: 128", 720, 8, marks=pytest.mark.slow),
        pytest.param(ENCODED, "poisson, batch_size: 64", 600, 8, marks=pytest.mark.slow),
    ],
)
def test_t24_killed_runs(tmp_path: Path, mechanism: str, scheme: str, steps: int, kills: int) -> None:
    hold_killed(
        tmp_path, RECIPE % (mechanism, scheme, steps), kills, per_event=PER_EVENT.get(scheme.partition(",")[0], 1)
    )


@pytest.mark.parametrize("cap", [3.4, 30.0])
@pytest.mark.slow  # its quick sisters: test_account_run.py
def test_killed_runs_draw_no_more_than_their_account_counts(tmp_path: Path, cap: float) -> None:
    """Kills come around the reservation, the settlement and the release, too. A tight account can't hold what is lost:
    the run goes on within its first reservation."""
    facts = new_facts("digits", cap, 1e-4, "record", Neighbouring.ADD_OR_REMOVE_ONE)
    create_account(tmp_path / "digits.db", facts).close()
    text = (RECIPE % (DPSGD, "poisson, batch_size: 64", 300)).replace("delta: 1e-5", "delta: 1e-5, account: digits.db")
    _, ledger = hold_killed(tmp_path, text, kills=8)
    with closing(open_account(tmp_path / "digits.db")) as account:
        known, state = account.find_run(str(ledger.programs[0]["account"]["run"])), account.state()
        assert known is not None
        assert known.status == "settled"
        assert known.counted.covers(find_cost(ledger.charges, facts.neighbouring, facts.cap))
        assert (state.totals.runs, state.totals.opened) == (1, 0)
        assert state.spent.covers(known.counted)
        assert known.counted.covers(state.spent)
        account.verify()
    stated = dprecipe.verify(tmp_path / "run" / "release").statement.predicate.account
    assert stated is not None
    assert (stated.run, stated.counted) == (known.run, to_curve(known.counted))


def hold_killed(folder: Path, text: str, kills: int, seed: int = 11, per_event: int = 1) -> tuple[Any, Ledger]:
    """A run that is killed so often at random moments, and resumed each time, hides nothing and verifies. What the
    driver has counted, and the ledger."""
    folder.mkdir(exist_ok=True)
    recipe, out = folder / "killed.yaml", folder / "run"
    recipe.write_text(text, encoding="utf-8")
    driver = Path(__file__).with_name("kill_driver.py")
    done = subprocess.run(
        [sys.executable, str(driver), str(recipe), str(out), str(kills), str(seed)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    message = json.loads(done.stdout.splitlines()[-1])
    ledger = read(out / "private" / "ledger.jsonl")
    certificate = json.loads((out / "release" / "certificate.json").read_text(encoding="utf-8"))["predicate"]
    counted = certificate["events"]["total"]
    assert counted == count_events(ledger.charges)
    assert counted * per_event >= message["draws"]
    assert ledger.attempts >= 2
    assert certificate["claim"]["epsilon"] <= certificate["budget"]["epsilon"]
    assert certificate["budget"]["stop_reason"] in ("completed", "budget")
    verified = dprecipe.verify(out / "release")
    assert verified is not None
    return message, ledger
