"""A verified certificate in forms that others read: the registry of deployments, NIST's topics, a bill of materials,
JSON; and its card and report, in the words of this version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dprecipe.faults import InternalFault
from dprecipe.release.bill import render_sbom
from dprecipe.release.card import render_markdown
from dprecipe.release.certificate import to_json
from dprecipe.release.meaning import NOT_PROVEN
from dprecipe.release.nist import render_nist
from dprecipe.release.rebuild import Rebuilt, rebuild_predicate
from dprecipe.release.registry import render_registry
from dprecipe.release.report import render_html
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
            "claim": {
                **content["claim"],
                "unit": {"name": verified.claim.unit.name, **content["claim"]["unit"]},
                "sentence": verified.claim.sentence,
            },
            "statement": content["statement"],
            "evaluation": content["data_access"]["evaluation"],
            "files": {subject.name: f"sha256:{subject.digest.sha256}" for subject in verified.statement.subject},
            "checked": list(verified.checked),
            "declared": [a.text for a in predicate.assumptions if a.checked_by == "declaration"],
            "not_shown": [*verified.notes, NOT_PROVEN],
        }
    )


def render_card(verified: Verified) -> str:
    """Returns `card.md` in this version's words."""
    predicate = verified.statement.predicate
    return render_markdown(_plan_of(verified).plan, predicate)


def render_report(verified: Verified, history: Sequence[Mapping[str, float]] = ()) -> str:
    """Returns `report.html` in this version's words; `history`: that of `metrics.json`."""
    rebuilt = _plan_of(verified)
    return render_html(rebuilt.plan, verified.statement.predicate, rebuilt.charges, history)


def _plan_of(verified: Verified) -> Rebuilt:
    problems: list[str] = []
    rebuilt = rebuild_predicate(verified.statement.predicate, problems)
    if rebuilt is None:
        raise InternalFault(f"a verified certificate has no plan: {'; '.join(problems)}")
    return rebuilt


EXPORTS: Mapping[str, Callable[[Verified], str]] = {
    "registry": render_registry,
    "nist": render_nist,
    "sbom": render_sbom,
    "json": render_json,
    "card": render_card,
    "report": render_report,
}
"""Writer of each form, by the name that `verify --export` takes."""
