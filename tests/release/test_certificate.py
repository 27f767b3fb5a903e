"""What a certificate refuses to say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprecipe.faults import RunFailed
from dprecipe.privacy.events import Charge
from dprecipe.release import certificate
from dprecipe.release.facts import PublicScore, Spent, commit
from dprecipe.release.schema import Statement, certificate_schema


def test_no_certificate_beyond_the_budget(finished: Any) -> None:
    (charge,) = finished.ledger.charges
    over = replace(finished.ledger, charges=(Charge(charge.event, charge.count + 2),))
    with pytest.raises(RunFailed, match="more than the budget"):
        certificate.make(finished.plan, over, finished.facts, {})


def test_the_claim_comes_from_the_ledger_and_not_from_the_plan(finished: Any) -> None:
    (charge,) = finished.ledger.charges
    fewer = replace(Spent.of(finished.ledger), charges=(Charge(charge.event, 10),))
    made = certificate.predicate(finished.plan, fewer, finished.facts)
    assert made.claim.epsilon < finished.plan.guarantee.epsilon / 1.5
    assert made.sampling.steps_charged == 10


def test_a_ledger_of_another_plan_makes_none(finished: Any) -> None:
    with pytest.raises(RunFailed, match="another plan"):
        certificate.make(finished.plan, replace(finished.ledger, plan_digest="sha256:0"), finished.facts, {})


def test_a_score_on_private_records_is_refused(plan_of: Any, facts_of: Any, finish: Any, tmp_path: Path) -> None:
    plan = plan_of(overrides=("data.test.access=private_internal",))
    with pytest.raises(RunFailed, match="score on private records"):
        finish(tmp_path / "a", plan, facts_of(score=PublicScore(0.98765, 0.1, 360)))
    made = finish(tmp_path / "b", plan, facts_of(score=None))
    for file in made.release.iterdir():  # the fixture's history must be nowhere
        assert "713579" not in file.read_bytes().decode("latin-1"), file.name
    assert json.loads((made.release / "metrics.json").read_bytes())["history"] == []
    access = json.loads((made.release / "certificate.json").read_bytes())["predicate"]["data_access"]
    assert access["evaluation"]["status"] == "private_internal"


def test_no_path_of_the_machine_is_published(finished: Any) -> None:
    for file in finished.release.iterdir():
        assert b"/secret/place" not in file.read_bytes(), file.name


def test_the_schema_accepts_a_certificate_and_describes_all_of_it(finished: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = certificate_schema()
    content = json.loads((finished.release / "certificate.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(content, schema)
    content["predicate"]["claim"]["epsilon"] = "3"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema)
    assert set(schema["$defs"]["Predicate"]["required"]) == set(content["predicate"]) - {"data_dependent"}
    assert Statement.model_fields.keys() == {"type_", "subject", "predicate_type", "predicate"}


def test_a_commitment_depends_on_key_data_and_where_parts_end() -> None:
    one = commit(b"k" * 32, b"ab", b"c")
    assert len(one) == 64
    assert len({one, commit(b"l" * 32, b"ab", b"c"), commit(b"k" * 32, b"a", b"bc"), commit(b"k" * 32, b"abc")}) == 4
