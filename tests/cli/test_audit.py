"""`dprecipe audit`: what it refuses before torch is imported, and the document that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.cli.audit import _make_document, audit
from dprecipe.cli.schema import SCHEMAS
from dprecipe.faults import RecipeError, UsageFault
from dprecipe.planning.audit import describe_audit
from dprecipe.planning.make import plan
from dprecipe.privacy.audit.results import Equality
from dprecipe.recipe.read import read
from dprecipe.training.audit.request import AuditEvidence, AuditFinding
from dprecipe.training.audit.run import ClaimRefuted, judge, require_sound
from tests.schemas import validator_of

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"depths": ["canaries"]}, "set audit.canaries in the recipe"),
        ({"depths": ["releases"]}, "is none of its depths"),
        ({"steps": 10}, "--steps 10: expected 200"),
        ({"depths": ["program"], "steps": 500}, "--steps 500: this audit does not go to depth steps"),
        ({"releases": 500}, "--releases 500: this audit does not go to depth releases"),
        ({"confidence": 1.0}, "--confidence 1.0"),
        ({"confidence": 0.05}, r"--confidence 0\.05: expected at least 0\.8"),
        ({"out": Path("/nowhere/at/all.json")}, "is no folder"),
        ({"out": ROOT}, "is a folder"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_tried(options: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageFault, match=reason):
        audit(QUICKSTART, **options)  # type: ignore[arg-type]


def test_a_recipe_asks_for_no_confidence_at_which_sound_runs_would_be_refuted() -> None:
    with pytest.raises(RecipeError, match=r"audit\.confidence"):
        read(QUICKSTART, ("audit={canaries: 100, confidence: 0.05}",))


def test_the_document_is_of_its_schema_and_says_what_was_refuted() -> None:
    planned = plan(read(QUICKSTART, ("audit={steps: 4000}",)))
    wrong = AuditFinding("program", "divisor", "it is a constant", Equality(differing=1, compared=2))
    done = judge(planned, AuditEvidence((wrong,), remarks=("steps: left out",)), 0.95)
    document = _make_document(planned, done).to_json()
    validator_of(SCHEMAS["audit.schema.json"]).validate(document)
    assert document["refuted"]
    assert document["remarks"] == ["steps: left out"]
    with pytest.raises(ClaimRefuted, match="divisor: expected: it is a constant; 1 of 2 differ"):
        require_sound(done)
    rows = dict(describe_audit(planned))
    assert rows["audit"].endswith("program, steps")
    assert rows["audit sees"].startswith("4,000 steps: a step of μ = ")
