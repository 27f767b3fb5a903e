"""The bill of materials of a release, as CycloneDX in JSON: the model with its card, its data, its files, its software.

It has every package that was installed for the run, where the run's own folder is there to tell
(`dprecipe.release.environment`); else those that its certificate records. Source: CycloneDX 1.6; package URLs of
github.com/package-url/purl-spec, type `pypi`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from dprecipe import __version__
from dprecipe.release.bill_model import Component, describe_data_sheets, describe_release
from dprecipe.release.environment import InstalledPackage
from dprecipe.release.verify import Verified
from dprecipe.screen import as_json

NAMESPACE = uuid.UUID("4f0f2a49-6c1b-5c1e-9e0c-2f3a7f6f1d10")
"""Namespace of serial numbers: one certificate always gives the same."""


def render_sbom(verified: Verified, environment: Sequence[InstalledPackage] | None = None) -> str:
    """Returns the bill. Its packages are those of `environment`, and those of the certificate, whose versions are the
    ones that count. It says itself whether it is complete (`compositions`)."""
    predicate = verified.statement.predicate
    provenance = predicate.provenance
    serial = uuid.uuid5(NAMESPACE, f"{provenance.plan} {predicate.events.ledger} {provenance.finished}")
    packages, sheets = _list_packages(verified, environment or ()), describe_data_sheets(predicate)
    parts = [component["bom-ref"] for component in (*packages, *sheets)]
    return as_json(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{serial}",
            "version": 1,
            "metadata": {
                "timestamp": provenance.finished,
                "tools": {"components": [{"type": "application", "name": "dprecipe", "version": __version__}]},
                "component": describe_release(verified),
            },
            "components": [*packages, *sheets, *_list_files(verified)],
            "dependencies": [{"ref": "release", "dependsOn": parts}],
            "compositions": [
                {"aggregate": "incomplete" if environment is None else "complete", "dependencies": ["release"]}
            ],
        }
    )


def _list_packages(verified: Verified, environment: Sequence[InstalledPackage]) -> list[Component]:
    """Returns the packages by name, and Python."""
    versions = verified.statement.predicate.provenance.versions
    packages = {each.name: each for each in environment}
    for name, version in versions.items():
        if name != "python" and (name not in packages or packages[name].version != version):
            packages[name] = InstalledPackage(name, version, None)
    result = [_describe_package(packages[name]) for name in sorted(packages)]
    if "python" in versions:
        result.append({"type": "platform", "bom-ref": "python", "name": "python", "version": versions["python"]})
    return result


def _describe_package(package: InstalledPackage) -> Component:
    """Returns a package of PyPI. Its name in a package URL is in lower case, with hyphens."""
    version = package.version.replace("+", "%2B").replace("!", "%21")
    url = f"pkg:pypi/{re.sub(r'[-_.]+', '-', package.name).lower()}@{version}"
    hashes = [] if package.sha256 is None else [{"alg": "SHA-256", "content": package.sha256}]
    named = {"type": "library", "bom-ref": url, "name": package.name, "version": package.version, "purl": url}
    return {**named, **({"hashes": hashes} if hashes else {})}


def _list_files(verified: Verified) -> list[Component]:
    """Returns the released files."""
    return [
        {
            "type": "file",
            "bom-ref": f"file:{subject.name}",
            "name": subject.name,
            "hashes": [{"alg": "SHA-256", "content": subject.digest.sha256}],
        }
        for subject in verified.statement.subject
    ]
