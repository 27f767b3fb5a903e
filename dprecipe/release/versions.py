"""Whose certificates this version can verify: those of versions whose rules it knows, and of no others.

A certificate is held against the rules of the version that made it: what it must contain, in which words, and which
checks its program went through. Of a version that is not known here nothing can be said, so nothing is.
"""

from __future__ import annotations

import re
from typing import Any

from dprecipe import __version__

KNOWN = frozenset({"0.1.0"})
"""Versions with the rules of this one. A later version that changes them adds a table of rules for those before it."""
PACKAGE_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){0,4}((a|b|rc|\.dev|\.post)\d{1,6})?")


def unknown_version(certificate: dict[str, Any]) -> str | None:
    """Why this version can't verify a certificate, and what can; None where it knows its rules.

    Asked of the parsed JSON before anything else: another version's certificates may have other fields.
    """
    version: Any = certificate
    for key in ("predicate", "provenance", "versions", "dprecipe"):
        version = version.get(key) if isinstance(version, dict) else None
    if version is None or (isinstance(version, str) and version in KNOWN):
        return None  # where no version is named the fields are missing, and that is said
    if not isinstance(version, str) or not PACKAGE_VERSION.fullmatch(version):
        return (
            f"provenance.versions.dprecipe: {ascii(version)[:80]} is no version of dprecipe; nothing of it was verified"
        )
    return (
        f"provenance.versions.dprecipe: the certificate says that dprecipe {version} made it; dprecipe {__version__} "
        "does not know its rules and verified nothing of it. If there is such a version, it can: "
        f"pip install dprecipe=={version}"
    )
