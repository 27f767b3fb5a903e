"""What a certificate refuses to say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprecipe.cli.verify import verified_lines
from dprecipe.faults import CertificateInvalid, RunFailed
from dprecipe.privacy.events import Charge
from dprecipe.release import certificate
from dprecipe.release.facts import PublicScore, SpentBudget, commit_to_data
from dprecipe.release.schema import Statement, certificate_schema
from dprecipe.release.verify import verify


def test_no_certificate_beyond_the_budget(finished: Any) -> None:
    (charge,) = finished.ledger.charges
    over = replace(finished.ledger, charges=(Charge(charge.event, charge.count + 2),))
    with pytest.raises(RunFailed, match="more than the budget"):
        certificate.make_run_predicate(finished.plan, over, finished.facts)


def test_the_claim_comes_from_the_ledger_and_not_from_the_plan(finished: Any) -> None:
    (charge,) = finished.ledger.charges
    fewer = replace(SpentBudget.of(finished.ledger), charges=(Charge(charge.event, 10),))
    result = certificate.make_predicate(finished.plan, fewer, finished.facts)
    assert result.claim.epsilon < finished.plan.guarantee.epsilon / 1.5
    assert result.sampling.steps_charged == 10


def test_a_ledger_of_another_plan_makes_none(finished: Any) -> None:
    with pytest.raises(RunFailed, match="another plan"):
        certificate.make_run_predicate(finished.plan, replace(finished.ledger, plan_digest="sha256:0"), finished.facts)


def test_a_score_on_private_records_is_refused(plan_of: Any, facts_of: Any, finish: Any, tmp_path: Path) -> None:
    plan = plan_of(overrides=("data.test.access=private_internal",))
    with pytest.raises(RunFailed, match="score on private records"):
        finish(tmp_path / "a", plan, facts_of(score=PublicScore(0.98765, 0.1, 360)))
    result = finish(tmp_path / "b", plan, facts_of(score=None))
    for file in result.release.iterdir():  # the fixture's history must be nowhere
        assert "713579" not in file.read_bytes().decode("latin-1"), file.name
    assert json.loads((result.release / "metrics.json").read_bytes())["history"] == []
    access = json.loads((result.release / "certificate.json").read_bytes())["predicate"]["data_access"]
    assert access["evaluation"]["status"] == "private_internal"


def test_no_path_of_the_machine_is_published(finished: Any) -> None:
    for file in finished.release.iterdir():
        assert b"/secret/place" not in file.read_bytes(), file.name


@pytest.mark.slow
def test_the_schema_accepts_a_certificate_and_describes_all_of_it(finished: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = certificate_schema()
    content = json.loads((finished.release / "certificate.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(content, schema)
    content["predicate"]["claim"]["epsilon"] = "3"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema)
    assert set(schema["$defs"]["Predicate"]["required"]) == set(content["predicate"]) - {"data_dependent", "tuning"}
    assert Statement.model_fields.keys() == {"type_", "subject", "predicate_type", "predicate"}


def test_a_commitment_depends_on_key_data_and_where_parts_end() -> None:
    one = commit_to_data(b"k" * 32, b"ab", b"c")
    assert len(one) == 64
    assert (
        len(
            {
                one,
                commit_to_data(b"l" * 32, b"ab", b"c"),
                commit_to_data(b"k" * 32, b"a", b"bc"),
                commit_to_data(b"k" * 32, b"abc"),
            }
        )
        == 4
    )


@pytest.mark.slow
def test_an_accepted_warning_is_declared_with_its_reason(
    plan_of: Any, facts_of: Any, finish: Any, tmp_path: Path
) -> None:
    """The author's words stand as such in certificate and card, are verified against the recipe, and steer nothing."""
    source = plan_of().source
    text = source.parents[0][1].replace("epsilon: 2.0", "epsilon: 12.0") + re.sub(r"extends: .*\n", "", source.text)
    text += 'accept: {P108: "agreed\\n\\u202e<b>verified</b>"}\n'
    plan = plan_of(text)
    result = finish(tmp_path / "run", plan, facts_of())
    verified = verify(result.release)
    (declared,) = (a for a in verified.statement.predicate.assumptions if a.id == "accepted_P108")
    assert declared.checked_by == "declaration"
    assert declared.text.endswith(r'for the reason "agreed\n\u202e<b>verified</b>"')
    printed = "\n".join(verified_lines(verified))
    assert declared.text in printed
    for name in ("card.md", "report.html"):
        page = (result.release / name).read_text(encoding="utf-8")
        assert "accepts warning P108" in page
        assert "\u202e" not in page
        assert "<b>verified" not in page
    file = result.release / "certificate.json"
    content = file.read_text(encoding="utf-8")
    file.write_text(content.replace("agreed", "agreed by all"), encoding="utf-8")
    with pytest.raises(CertificateInvalid, match=r"provenance\.recipe\.digest"):
        verify(result.release)
