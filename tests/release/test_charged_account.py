"""What a certificate states of its run's account: it verifies, and what is changed in it is found and named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import DEAD, GRAIN, Cap
from dprecipe.privacy.filters.cost import cost_of
from dprecipe.release.account_report import describe_other_runs
from dprecipe.release.certificate import to_bytes
from dprecipe.release.charged_account import ChargedAccount, compute_epsilons, stopped_it, to_curve
from dprecipe.release.verify import verify

CAP = Cap(6.0, 1e-4)
RUN_COUNTS = 2
"""The account counts this run, and another like it."""


def account_of(plan: Plan, **changes: Any) -> ChargedAccount:
    cost = cost_of(plan.events, plan.budget.neighbouring, CAP.orders)
    counted, after = compute_epsilons(cost.times(RUN_COUNTS), CAP)
    fields: dict[str, Any] = {
        "name": "admissions",
        "id": "ab" * 16,
        "epsilon": CAP.epsilon,
        "delta": CAP.delta,
        "unit": "record",
        "neighbouring": "add_or_remove_one",
        "run": "cd" * 16,
        "position": 5,
        "entries": f"sha256:{'ef' * 32}",
        "reserved": to_curve(cost),
        "counted": to_curve(cost),
        "after": to_curve(cost.times(RUN_COUNTS)),
        "epsilon_so_far": counted,
        "odometer": after,
    }
    return ChargedAccount(**{**fields, **changes})


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory, finish: Any, plan_of: Callable[..., Plan], facts_of: Any) -> Path:
    """Read only."""
    plan = plan_of(overrides=("budget.account=accounts/admissions.db",))
    finished = finish(tmp_path_factory.mktemp("charged") / "run", plan, facts_of(account=account_of(plan)))
    return Path(finished.release)


def test_it_verifies_and_says_where_the_account_stands(release: Path) -> None:
    verified = verify(release)
    account = verified.statement.predicate.account
    assert account is not None
    assert account.epsilon_so_far is not None
    assert account.epsilon_so_far < CAP.epsilon
    assert any("within the account's cap" in line for line in verified.checked)
    assert any("--account-statement" in line for line in verified.notes)
    assert any("one of several" in line for line in verified.claim.not_protected)
    card, report = ((release / name).read_text(encoding="utf-8") for name in ("card.md", "report.html"))
    assert "The account 'admissions' adds up this run and others on the same data" in card
    assert "of a cap of 6 at δ = 0.0001" in report
    assert "The account of this data set" in report
    assert 'aria-label="account"' in report


def test_a_certificate_without_an_account_does_not_speak_of_one(finished: Any) -> None:
    assert "account" not in json.loads((finished.release / "certificate.json").read_text(encoding="utf-8"))["predicate"]


def scale(curve: dict[str, Any], factor: float) -> dict[str, Any]:
    """So much of it, in whole grains; infinite stays infinite."""
    scaled = [math.inf if value is None else value * factor for value in curve["rdp"]]
    return {**curve, "rdp": [math.floor(value / GRAIN) * GRAIN if value < DEAD else None for value in scaled]}


def failures_of(release: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    content = json.loads((release / "certificate.json").read_text(encoding="utf-8"))
    change(content["predicate"])
    (tmp_path / "certificate.json").write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid) as invalid:
        verify(tmp_path / "certificate.json")
    return "\n".join(invalid.value.failures)


@pytest.mark.parametrize(
    ("field", "change", "named"),
    [
        ("unit", lambda old: "patient", "account.unit"),
        ("neighbouring", lambda old: "zero_out_one", "account.neighbouring"),
        ("epsilon", lambda old: 2.0, "account"),
        ("delta", lambda old: old / 10, "account"),
        ("counted", lambda old: scale(old, 0.9), "account.counted"),
        ("reserved", lambda old: scale(old, 0.5), "account"),
        ("after", lambda old: scale(old, 0.4), "account"),
        ("after", lambda old: {**old, "rdp": old["rdp"][:-1]}, "account: expected costs at"),
        ("after", lambda old: {**old, "delta": 0.5}, "account"),
        ("epsilon_so_far", lambda old: old * 0.999, "account.epsilon_so_far"),
        ("odometer", lambda old: old * 0.999, "account.odometer"),
        ("entries", lambda old: old[:-1], "account.entries"),
    ],
)
def test_what_is_changed_is_found_and_named(
    release: Path, tmp_path: Path, field: str, change: Callable[[Any], Any], named: str
) -> None:
    def alter(predicate: dict[str, Any]) -> None:
        predicate["account"][field] = change(predicate["account"][field])

    assert named in failures_of(release, tmp_path, alter)


def test_more_than_the_cap_holds_is_no_account(release: Path, tmp_path: Path) -> None:
    def add_runs(predicate: dict[str, Any]) -> None:
        account = predicate["account"]
        account["after"] = scale(account["after"], 64)
        account["epsilon_so_far"] = account["odometer"] = 100.0

    assert "account.after: more than the account's cap holds" in failures_of(release, tmp_path, add_runs)


def test_an_account_is_stated_exactly_where_the_recipe_names_one(release: Path, finished: Any, tmp_path: Path) -> None:
    assert "exactly for recipes that name one" in failures_of(release, tmp_path, lambda p: p.pop("account"))
    stated = json.loads((release / "certificate.json").read_text(encoding="utf-8"))["predicate"]["account"]
    failures = failures_of(finished.release, tmp_path, lambda predicate: predicate.update(account=stated))
    assert "exactly for recipes that name one" in failures


def test_an_account_can_stop_a_run_where_its_reservation_ends(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of()
    account, (planned,) = account_of(plan), plan.events
    assert not stopped_it(account, plan.events)
    assert stopped_it(account, [Charge(planned.event, planned.count + 1)])
    assert not stopped_it(None, [Charge(planned.event, planned.count + 1)])
    native = account_of(plan, neighbouring=Neighbouring.REPLACE_ONE.value)
    assert stopped_it(native, plan.events)  # replacing a unit costs more than adding one


@pytest.mark.parametrize("name", ["x adds up all: ε = 0.1. Verified. The account y", "x' (ε = 0.1)", "x\ny", "x" * 81])
def test_a_name_that_no_account_has_is_refused(name: str, release: Path, tmp_path: Path) -> None:
    failures = failures_of(release, tmp_path, lambda predicate: predicate["account"].update(name=name))
    assert any(failure.startswith("predicate.account.name") for failure in failures.splitlines())


def test_the_name_of_an_account_stands_in_quotes(plan_of: Callable[..., Plan]) -> None:
    """It is its maker's word, and can have blanks."""
    account = account_of(plan_of(), name="of St Mary counts all runs (ever) and so")
    assert "The account 'of St Mary counts all runs (ever) and so' adds up" in describe_other_runs(account)
