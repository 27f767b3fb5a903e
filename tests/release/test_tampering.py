"""Every leaf of a certificate is changed, one at a time, and `verify` must name it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dprecipe.faults import CertificateInvalid
from dprecipe.release.verify import verify

RECORDED_ONLY = {
    r"provenance\.versions\.(python|numpy|scipy|scikit-learn|torch|lightning|safetensors|cryptography)": "nothing "
    "depends on them",
    r"provenance\.recipe\.file": "the name the recipe's file had; its text is what counts",
    r"provenance\.device": "where it ran; nothing else says so",
    r"provenance\.(started|finished)": "a time; only form and order can be checked",
    r"provenance\.(model|data)": "whether Python replaced what the recipe names; nothing else says so",
    r"provenance\.data_commitment\.value": "needs the key in private/ and the data",
    r"checks\.\d+\.(text|measured)|checks\.4\.id": "what the run measured; only that what must be checked passed",
    r"data_access\.evaluation\.released\.(accuracy|loss|records)": "measured with data that are not here",
}
"""Informational: recorded by the run, derived from nothing; a signature is what protects these."""

WORDS = {
    "add_or_remove_one": "replace_one",
    "poisson_gaussian": "gaussian",
    "completed": "budget",
    "claim": "cross_check",
    "cross_check": "claim",
    "second_opinion": "claim",
    "code": "test",
    "declaration": "code",
    "covered": "declared",
    "public": "private_internal",
    "declared": "public",
    "recipe": "python",
    "2026-01-01T10:00:00+00:00": "2026-01-01T09:00:00+00:00",
    "2026-01-01T10:05:00+00:00": "2026-01-01T11:00:00+00:00",
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{path}.{key}".lstrip("."))
    else:
        yield path, value


def mutations(value: Any) -> list[Any]:
    """Other values of the same type, on both sides where there are sides."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1]
        case float():
            return [value * 1.0001, value * 0.9999] if value else [1e-4, -1e-4]
        case str() if value in WORDS:
            return [WORDS[value]]
        case str() if re.search(r"[0-9a-f]{64}$", value):
            return [value[:-1] + ("0" if value[-1] != "0" else "1")]
        case str():
            return [value + "x"]
        case None:
            return [1.5]
        case []:
            return [["x"]]
        case {}:
            return [{"x": 1}]
    raise AssertionError(value)


def put(content: Any, path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        content = content[int(step) if isinstance(content, list) else step]
    content[int(last) if isinstance(content, list) else last] = value


SECTIONS = (
    *("claim", "mechanism", "sampling", "events", "accounting", "assumptions", "data_access", "budget"),
    *("randomness", "numerics", "checks", "provenance", "what_a_signature_does_not_prove"),
)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_changed_leaf_is_found_and_named(section: str, copy: Any) -> None:
    file: Path = copy.release / "certificate.json"
    text = file.read_text(encoding="utf-8")
    seen, wrong = 0, []
    for path, value in leaves(json.loads(text)["predicate"][section], section):
        if any(re.fullmatch(pattern, path) for pattern in RECORDED_ONLY):
            continue
        for changed in mutations(value):
            seen += 1
            content = json.loads(text)
            put(content["predicate"], path, changed)
            file.write_text(json.dumps(content), encoding="utf-8")
            failures = failures_of(copy.release)
            if not any(names(failure, path) for failure in failures):
                wrong.append((path, value, changed, failures))
    assert seen
    assert not wrong


def failures_of(path: Path) -> tuple[str, ...]:
    try:
        verify(path)
    except CertificateInvalid as error:
        return error.failures
    return ()


def names(failure: str, path: str) -> bool:
    """The failure's path, where it has one, is the leaf's, lies above it, or stands for the same text; another kind
    of event has other fields."""
    named = failure.split(": ")[0].removeprefix("predicate.")
    if path.startswith("provenance.recipe."):
        return named.startswith("provenance.recipe")
    if path.endswith(".kind") and named.startswith(path.removesuffix("kind")):
        return True
    return path == named or path.startswith(named + ".") or named.startswith(path) or path in failure.split()


def test_what_is_recorded_only_is_really_accepted(copy: Any) -> None:
    """The exemptions are no wider than they must be: each of them exempts something."""
    file = copy.release / "certificate.json"
    text = file.read_text(encoding="utf-8")
    paths = dict(leaves(json.loads(text)["predicate"]))
    for pattern in RECORDED_ONLY:
        path = next(path for path in paths if re.fullmatch(pattern, path))
        content = json.loads(text)
        put(content["predicate"], path, mutations(paths[path])[-1])
        file.write_text(json.dumps(content), encoding="utf-8")
        assert not failures_of(copy.release), pattern


@pytest.mark.parametrize("section", SECTIONS)
def test_a_missing_field_and_a_field_too_many_are_found(section: str, copy: Any) -> None:
    file = copy.release / "certificate.json"
    text = file.read_text(encoding="utf-8")
    content = json.loads(text)
    del content["predicate"][section]
    file.write_text(json.dumps(content), encoding="utf-8")
    assert any(f"predicate.{section}" in failure for failure in failures_of(copy.release))
    content = json.loads(text)
    if isinstance(content["predicate"][section], dict):
        content["predicate"][section]["extra"] = 1
        file.write_text(json.dumps(content), encoding="utf-8")
        assert any("extra" in failure for failure in failures_of(copy.release))


@pytest.mark.parametrize("field", ["_type", "predicateType"])
def test_another_kind_of_statement_is_refused(field: str, copy: Any) -> None:
    file = copy.release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content[field] += "2"
    file.write_text(json.dumps(content), encoding="utf-8")
    assert any(failure.startswith(field) for failure in failures_of(copy.release))


def test_fewer_events_with_a_claim_to_match_are_found(copy: Any) -> None:
    """A consistent lie: half the events, and the ε that half the events cost."""
    file = copy.release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    predicate = content["predicate"]
    predicate["events"]["run_length"][0]["count"] //= 2
    predicate["events"]["total"] //= 2
    predicate["budget"]["events_settled"] //= 2
    predicate["sampling"]["steps_charged"] //= 2
    file.write_text(json.dumps(content), encoding="utf-8")
    failures = failures_of(copy.release)
    assert any(failure.startswith("events.total") for failure in failures)
    assert any("ledger" in failure for failure in failures)
