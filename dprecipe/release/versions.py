"""The versions whose certificates this version can verify: those whose rules it knows.

A certificate is checked by the rules of the version that made it: its fields, its texts, and the checks of its program.
Nothing can be said about an unknown version's certificates, so they are refused.
"""

from __future__ import annotations

import re
from typing import Any

from dprecipe import __version__

KNOWN = frozenset({"0.1.0"})
"""Versions with the rules of this one. A later version that changes the rules adds a table of the earlier ones."""
PACKAGE_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){0,4}((a|b|rc|\.dev|\.post)\d{1,6})?")


def explain_unknown_version(certificate: dict[str, Any]) -> str | None:
    """Explains why this version can't verify a certificate, and what can; None where it knows the rules.

    Reads the parsed JSON before anything else: another version's certificates may have other fields.
    """
    version: Any = certificate
    for key in ("predicate", "provenance", "versions", "dprecipe"):
        version = version.get(key) if isinstance(version, dict) else None
    if version is None or (isinstance(version, str) and version in KNOWN):
        return None  # where no version is named, the missing fields are reported
    if not isinstance(version, str) or not PACKAGE_VERSION.fullmatch(version):
        return f"provenance.versions.dprecipe: {ascii(version)[:80]} is not a version of dprecipe; nothing was verified"
    return (
        f"provenance.versions.dprecipe: the certificate says that dprecipe {version} made it; dprecipe {__version__} "
        "does not know its rules and verified nothing. If that version exists, use it: "
        f"pip install dprecipe=={version}"
    )
