"""Every leaf of a certificate is changed, one at a time, and `verify` must name it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dprecipe.release.certificate import to_bytes

RECORDED_ONLY = {
    r"provenance\.versions\.(python|numpy|scipy|scikit-learn|torch|lightning|safetensors|cryptography)": "nothing "
    "depends on them",
    r"provenance\.recipe\.file": "the name the recipe's file had; its text is what counts",
    r"provenance\.device": "where it ran; nothing else says so",
    r"provenance\.(started|finished)": "a time; only form and order can be checked",
    r"provenance\.data_commitment\.value": "needs the key in private/ and the data",
    r"checks\.\d+\.measured": "what the run measured; which checks there are, in which words, and that they passed, is "
    "compared",
    r"data_access\.evaluation\.released\.(accuracy|loss|records)": "measured with data that are not here",
}
"""Informational: recorded by the run, derived from nothing; a signature is what protects these."""

SECTIONS = (
    *("claim", "mechanism", "sampling", "events", "accounting", "assumptions", "tensors", "data_access", "budget"),
    *("statement", "audit", "randomness", "numerics", "checks", "provenance", "rules"),
)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_changed_leaf_is_found_and_named(section: str, copy: Any, tampering: Any) -> None:
    seen, wrong = tampering.find_unnoticed(copy.release, section, RECORDED_ONLY)
    assert seen
    assert not wrong


def test_what_is_recorded_only_is_really_accepted(copy: Any, tampering: Any, tmp_path: Path) -> None:
    """The exemptions are no wider than they must be: each of them exempts something, of a certificate by itself (beside
    it, card and report say the same)."""
    text = (copy.release / "certificate.json").read_text(encoding="utf-8")
    file = tmp_path / "alone" / "certificate.json"
    file.parent.mkdir()
    paths = dict(tampering.leaves(json.loads(text)["predicate"]))
    for pattern in RECORDED_ONLY:
        path = next(path for path in paths if re.fullmatch(pattern, path))
        content = json.loads(text)
        tampering.set_leaf(content["predicate"], path, tampering.mutations(paths[path])[-1])
        file.write_bytes(to_bytes(content))
        assert not tampering.failures_of(file), pattern


@pytest.mark.parametrize("section", SECTIONS)
def test_a_missing_field_and_a_field_too_many_are_found(section: str, copy: Any, tampering: Any) -> None:
    file = copy.release / "certificate.json"
    text = file.read_text(encoding="utf-8")
    content = json.loads(text)
    del content["predicate"][section]
    file.write_bytes(to_bytes(content))
    assert any(f"predicate.{section}" in failure for failure in tampering.failures_of(copy.release))
    content = json.loads(text)
    if isinstance(content["predicate"][section], dict):
        content["predicate"][section]["extra"] = 1
        file.write_bytes(to_bytes(content))
        assert any("extra" in failure for failure in tampering.failures_of(copy.release))


@pytest.mark.parametrize("field", ["_type", "predicateType"])
def test_another_kind_of_statement_is_refused(field: str, copy: Any, tampering: Any) -> None:
    file = copy.release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content[field] += "2"
    file.write_bytes(to_bytes(content))
    assert any(failure.startswith(field) for failure in tampering.failures_of(copy.release))


def test_fewer_events_with_a_claim_to_match_are_found(copy: Any, tampering: Any) -> None:
    """A consistent lie: half the events, and the ε that half the events cost."""
    file = copy.release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    predicate = content["predicate"]
    predicate["events"]["run_length"][0]["count"] //= 2
    predicate["events"]["total"] //= 2
    predicate["budget"]["events_settled"] //= 2
    predicate["sampling"]["steps_charged"] //= 2
    file.write_bytes(to_bytes(content))
    failures = tampering.failures_of(copy.release)
    assert any(failure.startswith("events.total") for failure in failures)
    assert any("ledger" in failure for failure in failures)
