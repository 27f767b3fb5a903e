"""The bound from one run: reference values."""

import json
from pathlib import Path

import pytest

from dprecipe.privacy.audit.counts import chance_of_right, lower_epsilon_of_guesses
from dprecipe.privacy.audit.results import Guesses

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "audit.json").read_text())["records"]


def records(group):
    found = [pytest.param(r, id=r["id"]) for r in GOLDEN if r["group"] == group]
    assert len(found) > 5
    return found


def guess(x):
    return Guesses(canaries=x["m"], named_in=x["r"] // 2, named_out=x["r"] - x["r"] // 2, correct=x["v"])


@pytest.mark.parametrize("record", records("audit_one_run_p_value"))
def test_golden_chances(record):
    x = record["inputs"]
    assert chance_of_right(guess(x), x["eps"], x["delta"]) == pytest.approx(record["value"], rel=record["tol"])


@pytest.mark.parametrize("record", records("audit_one_run_eps"))
def test_golden_epsilon(record):
    x = record["inputs"]
    bound = lower_epsilon_of_guesses(guess(x), x["confidence"], x["delta"])
    assert bound == pytest.approx(record["value"], abs=record["tol"])
    assert bound <= record["value"] + 1e-9
