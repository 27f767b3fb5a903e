"""A verified certificate in forms that others read: the deployments registry, NIST's topics, a bill of materials, JSON;
and its card and report, in the words of this version.

The bill is CycloneDX in JSON. It has every package that was installed for the run, where the run's own folder is there
to tell (`dprecipe.release.environment`); else those that its certificate records. Source: CycloneDX 1.6; package URLs
of github.com/package-url/purl-spec, type `pypi`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dprecipe import __version__
from dprecipe.faults import InternalFault
from dprecipe.release.card import plain_text, render_markdown
from dprecipe.release.certificate import to_json
from dprecipe.release.environment import InstalledPackage
from dprecipe.release.meaning import NOT_PROVEN
from dprecipe.release.nist import render_nist
from dprecipe.release.rebuild import Rebuilt, rebuild_predicate
from dprecipe.release.registry import render_registry
from dprecipe.release.report import render_html
from dprecipe.release.verify import Verified
from dprecipe.screen import as_json

NAMESPACE = uuid.UUID("4f0f2a49-6c1b-5c1e-9e0c-2f3a7f6f1d10")
"""Namespace of serial numbers: one certificate always gives the same."""


def render_sbom(verified: Verified, environment: Sequence[InstalledPackage] | None = None) -> str:
    """Returns the bill: the released files as a model, and its packages: those of `environment`, and those of the
    certificate, whose versions are the ones that count. It says itself whether it is complete (`compositions`)."""
    predicate = verified.statement.predicate
    provenance, subjects = predicate.provenance, verified.statement.subject
    recorded = {name: version for name, version in provenance.versions.items() if name != "python"}
    packages = {each.name: each for each in environment or ()}
    for name, version in recorded.items():
        if name not in packages or packages[name].version != version:
            packages[name] = InstalledPackage(name, version, None)
    interpreter = provenance.versions.get("python")
    components = [_package(packages[name]) for name in sorted(packages)]
    if interpreter is not None:
        components.append({"type": "platform", "bom-ref": "python", "name": "python", "version": interpreter})
    model = {
        "type": "machine-learning-model",
        "bom-ref": "release",
        "name": provenance.recipe.name,
        "version": provenance.plan,
        "description": plain_text(verified.claim.sentence),
    }
    serial = uuid.uuid5(NAMESPACE, f"{provenance.plan} {predicate.events.ledger} {provenance.finished}")
    return as_json(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{serial}",
            "version": 1,
            "metadata": {
                "timestamp": provenance.finished,
                "tools": {"components": [{"type": "application", "name": "dprecipe", "version": __version__}]},
                "component": model,
            },
            "components": [
                *components,
                *(
                    {
                        "type": "file",
                        "bom-ref": f"file:{subject.name}",
                        "name": subject.name,
                        "hashes": [{"alg": "SHA-256", "content": subject.digest.sha256}],
                    }
                    for subject in subjects
                ),
            ],
            "dependencies": [
                {"ref": "release", "dependsOn": [component["bom-ref"] for component in components]},
            ],
            "compositions": [
                {"aggregate": "incomplete" if environment is None else "complete", "dependencies": ["release"]}
            ],
        }
    )


def _package(package: InstalledPackage) -> dict[str, Any]:
    """Returns a package of PyPI. Its name in a package URL is in lower case, with hyphens."""
    version = package.version.replace("+", "%2B").replace("!", "%21")
    url = f"pkg:pypi/{re.sub(r'[-_.]+', '-', package.name).lower()}@{version}"
    hashes = [] if package.sha256 is None else [{"alg": "SHA-256", "content": package.sha256}]
    named = {"type": "library", "bom-ref": url, "name": package.name, "version": package.version, "purl": url}
    return {**named, **({"hashes": hashes} if hashes else {})}


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
