"""A verified certificate in forms that others read: registry of deployments, NIST, bill of materials, JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dprecipe.release.bill import render_sbom
from dprecipe.release.certificate import to_json
from dprecipe.release.nist import render_nist
from dprecipe.release.registry import render_registry
from dprecipe.release.verify import Verified
from dprecipe.screen import as_json


def render_json(verified: Verified) -> str:
    """Returns the claim and what was checked, as the document `dprecipe.verified/v1`."""
    predicate = verified.statement.predicate
    content = to_json(predicate)
    return as_json(
        {
            "schema": "dprecipe.verified/v1",
            "recipe": {"name": predicate.provenance.recipe.name, "digest": predicate.provenance.recipe.digest},
            "claim": content["claim"],
            "statement": content["statement"],
            "evaluation": content["data_access"]["evaluation"],
            "files": {subject.name: f"sha256:{subject.digest.sha256}" for subject in verified.statement.subject},
            "checked": list(verified.checked),
            "declared": [a.text for a in predicate.assumptions if a.checked_by == "declaration"],
            "not_shown": [*verified.notes, predicate.what_a_signature_does_not_prove],
        }
    )


EXPORTS: Mapping[str, Callable[[Verified], str]] = {
    "registry": render_registry,
    "nist": render_nist,
    "sbom": render_sbom,
    "json": render_json,
}
"""Writer of each form, by the name that `verify --export` takes."""
