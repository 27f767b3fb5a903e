"""The identity of an audited program: the plan, and the version and the sources of dprecipe that ran.

The digest names the audited program, as the program itself reports it. It shows whether two certificates are about the
same program, and whether a program is the one installed here. It does not show that the sources on the disk are those
that ran, nor that the report is true: a changed program can name any digest. Sources are those of dprecipe alone; the
versions of torch, numpy and the interpreter are under `provenance.versions`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dprecipe import __version__
from dprecipe.privacy.audit.results import Audit, AuditBound, AuditTest, SpecificationTest

PACKAGE = Path(__file__).parents[2]


def make_audit(
    plan: str,
    tests: Sequence[AuditTest] = (),
    bounds: Sequence[AuditBound] = (),
    specification: SpecificationTest | None = None,
) -> Audit:
    """Makes the audit of the program that runs here, with a plan of this digest."""
    sources = digest_sources()
    return Audit(
        program=digest_program(plan, __version__, sources),
        sources=sources,
        tests=tuple(tests),
        bounds=tuple(bounds),
        specification=specification,
    )


def digest_program(plan: str, version: str, sources: str) -> str:
    """Returns `sha256:…` of a plan's digest, a version of dprecipe and the digest of its sources."""
    return _digest(json.dumps([plan, version, sources]).encode())


@cache
def digest_sources() -> str:
    """Returns `sha256:…` over the names and the contents of all modules of dprecipe, as they are on the disk."""
    whole = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name, content = path.relative_to(PACKAGE).as_posix().encode(), path.read_bytes()
        whole.update(b"%d %d " % (len(name), len(content)) + name + content)
    return f"sha256:{whole.hexdigest()}"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
