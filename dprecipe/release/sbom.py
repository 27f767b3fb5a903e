"""The software of a run as a bill of materials: CycloneDX in JSON, from the versions that a certificate records.

Source: CycloneDX 1.6; package URLs of github.com/package-url/purl-spec, type `pypi`.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from dprecipe import __version__
from dprecipe.release.card import plain_text
from dprecipe.release.verify import Verified
from dprecipe.screen import as_json

NAMESPACE = uuid.UUID("4f0f2a49-6c1b-5c1e-9e0c-2f3a7f6f1d10")
"""Of serial numbers: one certificate always gives the same."""


def render_sbom(verified: Verified) -> str:
    """The bill: the released files as a model, and the packages that its run recorded. A package that a run does not
    record is not in it."""
    predicate = verified.statement.predicate
    provenance, subjects = predicate.provenance, verified.statement.subject
    packages = {name: version for name, version in sorted(provenance.versions.items()) if name != "python"}
    interpreter = provenance.versions.get("python")
    components = [_package(name, version) for name, version in packages.items()]
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
        }
    )


def _package(name: str, version: str) -> dict[str, Any]:
    """A package of PyPI. Its name in a package URL is in lower case, with hyphens."""
    url = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version.replace('+', '%2B').replace('!', '%21')}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
