from __future__ import annotations

from typing import Any

import pytest

from dprecipe.release.rebuild import _leave_out_new, compare_json

TODAY: dict[str, Any] = {"steps": [{"scale": {"mean": 0.5}, "newer": None}], "seed": 0, "newer": None}
STATED: dict[str, tuple[Any, bool]] = {
    "all keys": (TODAY, True),
    "older than two unset keys": ({"steps": [{"scale": {"mean": 0.5}}], "seed": 0}, True),
    "without a key that has a value": ({"steps": [{"scale": {"mean": 0.5}}]}, False),
    "another value of an unset key": ({**TODAY, "newer": 3}, False),
    "another value": ({**TODAY, "seed": 1}, False),
    "without a step": ({**TODAY, "steps": []}, False),
    "a key that is none": ({**TODAY, "unknown": None}, False),
}


@pytest.mark.parametrize("name", STATED)
def test_a_recipe_may_be_older_than_keys_that_it_leaves_unset_and_no_other(name: str) -> None:
    stated, accepted = STATED[name]
    assert (compare_json(stated, _leave_out_new(TODAY, stated), "resolved") == []) is accepted
