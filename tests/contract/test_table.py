"""The table of mechanisms: what can be registered, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dprecipe.contract import table
from dprecipe.contract.mechanism import Mechanism

FIFTH = "Mechanism(kind='fifth', package='dprecipe.mechanisms.dpsgd', summary='another name for an old one')"


def test_a_kind_is_registered_once() -> None:
    with pytest.raises(ValueError, match="mechanism 'dpsgd' is registered already"):
        table.register(Mechanism(kind="dpsgd", package="somewhere", summary="a second one"))


def test_a_mechanism_is_registered_before_the_language_is_made() -> None:
    import dprecipe.recipe.root  # noqa: F401

    with pytest.raises(RuntimeError, match="is registered too late: register it before"):
        table.register(Mechanism(kind="fifth", package="somewhere", summary="a fifth one"))
    assert "fifth" not in table.MECHANISMS


@pytest.mark.parametrize("first", ["", "import dprecipe.cli.main", "import dprecipe"])
def test_importing_the_command_line_leaves_the_table_open(first: str) -> None:
    code = f"""
{first}
from dprecipe.contract import table
from dprecipe.contract.mechanism import Mechanism
table.register({FIFTH})
assert list(table.MECHANISMS)[-1] == "fifth"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_traits_are_asked_of_the_table() -> None:
    assert table.list_kinds(lambda mechanism: mechanism.has_student) == ["pate"]
    assert table.list_kinds(lambda mechanism: mechanism.is_convex) == ["pnsgd"]
    assert table.list_kinds(lambda mechanism: "processes" in mechanism.runtime_options) == [
        "dpsgd",
        "encoded",
        "correlated",
    ]
