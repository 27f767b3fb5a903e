"""Addresses of accounts: what they may say, and that no password is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.account.address import FileAddress, ServerAddress, parse_address
from dprecipe.faults import UsageFault


def test_paths_are_relative_to_a_folder() -> None:
    assert parse_address("accounts/a.db", Path("/recipes")) == FileAddress(Path("/recipes/accounts/a.db"))
    assert parse_address("/data/a.db", Path("/recipes")) == FileAddress(Path("/data/a.db"))


def test_an_address_names_its_account_after_the_mark() -> None:
    url = "postgresql://curator@db.example:5433/privacy?sslmode=verify-full"
    assert parse_address(url) == ServerAddress(url, None)
    assert parse_address(f"{url}#admissions") == ServerAddress(url, "admissions")
    assert parse_address(f"{url}#ward%20B") == ServerAddress(url, "ward B")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://curator:hunter2@db/privacy",
        "postgresql://curator@db/privacy?password=hunter2",
        "postgresql://curator@db/privacy?PassWord=hunter2#a",
        "postgresql://curator@db/privacy?sslpassword=hunter2",
        "postgresql://:hunter2@/privacy",
        "mysql://curator:hunter2@db/privacy",
    ],
)
def test_a_password_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(UsageFault, match="has a password") as caught:
        parse_address(address)
    assert "hunter2" not in f"{caught.value} {caught.value.remedy}"
    assert ".pgpass" in caught.value.remedy


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mysql://db/privacy", "not at mysql://"),
        ("postgresql://db/privacy#", "can't be the name of an account"),
        ("postgresql://db/privacy#a/b", "can't be the name of an account"),
        ("postgresql://db/privacy#a%0Ab", "can't be the name of an account"),
        ("postgresql://[::1/privacy", "can't be read"),
        ("", "is empty"),
        ("a\0b", "zero byte"),
    ],
)
def test_what_is_no_address(address: str, message: str) -> None:
    with pytest.raises(UsageFault, match=message):
        parse_address(address)
