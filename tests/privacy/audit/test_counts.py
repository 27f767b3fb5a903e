"""Bounds from trials: reference values."""

import json
from pathlib import Path

import pytest

from dprecipe.privacy.audit.counts import lower_epsilon, lower_mu
from dprecipe.privacy.audit.results import AttackTrials

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "audit.json").read_text())["records"]


def records(group):
    found = [pytest.param(r, id=r["id"]) for r in GOLDEN if r["group"] == group]
    assert len(found) > 5
    return found


def count(form, tp, n1, fp, n0):
    return AttackTrials(form=form, positives_in=tp, trials_in=n1, positives_out=fp, trials_out=n0)


@pytest.mark.parametrize("record", records("audit_clopper_pearson_mu"))
def test_golden_mu(record):
    x = record["inputs"]
    bound = lower_mu(count("mu", x["tp"], x["n1"], x["fp"], x["n0"]), x["confidence"])
    assert bound == pytest.approx(record["value"], rel=record["tol"])


@pytest.mark.parametrize("record", records("audit_clopper_pearson_eps"))
def test_golden_epsilon(record):
    x = record["inputs"]
    bound = lower_epsilon(count("epsilon", x["tp"], x["n1"], x["fp"], x["n0"]), x["confidence"], x["delta"])
    assert bound == pytest.approx(record["value"], rel=record["tol"])
