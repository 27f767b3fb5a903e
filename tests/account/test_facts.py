"""Facts of an account: what they can be, and that they are read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.account.facts import AccountFacts, new_facts, read_facts
from dprecipe.faults import UsageFault
from dprecipe.privacy.adjacency import Neighbouring


def make(**changes: Any) -> AccountFacts:
    terms = {
        "name": "admissions 2026",
        "epsilon": 8.0,
        "delta": 1e-6,
        "unit": "patient_id",
        "neighbouring": Neighbouring.REPLACE_ONE,
        "max_epsilon_per_run": 2.0,
    }
    return new_facts(**{**terms, **changes})


def test_whole_numbers_are_the_same_cap() -> None:
    facts = new_facts("a", 8, 1e-6, "record", Neighbouring.ADD_OR_REMOVE_ONE, 2)
    assert read_facts(facts.to_json()).digest == facts.digest


@pytest.mark.parametrize("name", ["epsilon", "delta", "max_epsilon_per_run", "orders"])
def test_numbers_beyond_a_double_are_refused(name: str) -> None:
    huge: Any = [10**400] if name == "orders" else 10**400
    with pytest.raises(ValueError, match=name):
        read_facts({**make().to_json(), name: huge})


def test_facts_are_read_as_written() -> None:
    facts = make()
    assert read_facts(facts.to_json()) == facts
    assert facts.orders == facts.cap.orders
    assert make().id != facts.id
    assert make(max_epsilon_per_run=None, name="Ambulanz-Süd (B)").max_epsilon_per_run is None


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "-a"},
        {"name": "a/b"},
        {"name": "a\u202eb"},
        {"name": "x" * 81},
        {"unit": ""},
        {"unit": "a\x1b"},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"epsilon": float("inf")},
        {"epsilon": 1e9, "max_epsilon_per_run": None},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": float("nan")},
        {"max_epsilon_per_run": 9.0},
        {"max_epsilon_per_run": -1.0},
    ],
)
def test_what_no_account_can_have(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageFault):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 9.0}, "orders are not those of the cap"),
        ({"schema": "dprecipe.account/v2"}, "schema is not valid"),
        ({"id": "x"}, "id is not valid"),
        ({"created": "yesterday"}, "created is not valid"),
        ({"created": "2026-99-99T00:00:00Z"}, "does not match"),
        ({"neighbouring": "none"}, "not a valid"),
        ({"delta": "1e-6"}, "delta is not a finite number"),
        ({"epsilon": True}, "epsilon is not a finite number"),
        ({"orders": []}, "orders are not those of the cap"),
        ({"more": 1}, "unknown fields: more"),
    ],
)
def test_facts_of_strangers(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_facts({**make().to_json(), **changes})


@pytest.mark.parametrize("name", make().to_json())
def test_every_field_is_needed(name: str) -> None:
    with pytest.raises(ValueError, match=f"there is no field {name}"):
        read_facts({key: value for key, value in make().to_json().items() if key != name})
