"""The public statement: no secret in it, and every change of it is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dprecipe.account.account import DataAccount
from dprecipe.account.faults import AccountInvalid
from dprecipe.account.schema import statement_schema
from dprecipe.account.statement import export_statement, verify_statement
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian

CHARGES = (Charge(Gaussian(20.0), 4),)


@pytest.fixture
def statement(account: DataAccount) -> dict[str, Any]:
    account.reserve("a", 1, CHARGES, "first")
    account.settle("a", 1, (Charge(Gaussian(20.0), 3),), final=True)
    account.reserve("b", 1, CHARGES, "second")
    with account.snapshot() as books:
        content = json.loads(json.dumps(export_statement(books)))
    assert isinstance(content, dict)
    return content


def test_a_statement_says_what_the_account_says(account: DataAccount, statement: dict[str, Any]) -> None:
    count = verify_statement(statement)
    assert count.totals == account.state().totals
    assert statement["epsilon_so_far"] == pytest.approx(account.state().epsilon, rel=1e-5)
    assert statement["odometer"] >= account.state().odometer
    assert statement["runs"] == 2
    assert statement["open_reservations"] == 1


def test_no_secret_is_in_it(account: DataAccount, statement: dict[str, Any]) -> None:
    with account.snapshot() as books:
        secret = books.secret
    text = json.dumps(statement)
    assert secret.hex() not in text
    assert b"the data's digest".hex() not in text


def test_it_fits_its_schema(statement: dict[str, Any], account: DataAccount) -> None:
    validator = Draft202012Validator(statement_schema())
    validator.validate(statement)
    account.void("b", 1)
    with account.snapshot() as books:
        validator.validate(json.loads(json.dumps(export_statement(books))))
    for entry in range(len(statement["entries"])):
        forged = copy.deepcopy(statement)
        forged["entries"][entry]["more"] = 1
        assert not validator.is_valid(forged)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield path
    else:
        for key, child in inner:
            yield from leaves(child, (*path, key))


def change(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2 if value else 0.5
        case None:
            return 1.0
        case _:
            return value[:-1] + ("0" if value[-1:] != "0" else "1")


def test_every_changed_leaf_is_found(statement: dict[str, Any]) -> None:
    places = list(leaves(statement))
    assert len(places) > 80
    for path in places:
        forged = copy.deepcopy(statement)
        inner = forged
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = change(inner[path[-1]])
        with pytest.raises(AccountInvalid):
            verify_statement(forged)


def test_entries_removed_and_fields_added_are_found(statement: dict[str, Any]) -> None:
    for number in range(len(statement["entries"])):
        forged = copy.deepcopy(statement)
        del forged["entries"][number]
        with pytest.raises(AccountInvalid):
            verify_statement(forged)
    with pytest.raises(AccountInvalid, match="more: unknown"):
        verify_statement({**statement, "more": 1})


@pytest.mark.parametrize("bad", [None, [], {}, 7, {"schema": "dprecipe.account-statement/v1", "facts": 1}])
def test_what_is_no_statement(bad: Any) -> None:
    with pytest.raises(AccountInvalid):
        verify_statement(bad)


def test_a_statement_of_infinite_costs(account: DataAccount) -> None:
    account.reserve("a", 1, (Charge(Gaussian(3.0), 1),), "first")
    with account.snapshot() as books:
        content = json.loads(json.dumps(export_statement(books)))
    verify_statement(content)
