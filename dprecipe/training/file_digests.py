"""Digests of the files that a source reads: what weights that saw public records say of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dprecipe.data.schema import AnySource
from dprecipe.models.public_record import MAX_FILES
from dprecipe.release.untrusted import sha256_of


def digest_files(source: AnySource, root: Path) -> dict[str, str]:
    """SHA-256 of each file by its name; of more than `MAX_FILES`, one of the sorted digests of all of them."""
    digests = [(file, sha256_of(file)) for file in source.all_files(root)]
    if len(digests) > MAX_FILES:
        whole = hashlib.sha256("\n".join(sorted(digest for _, digest in digests)).encode()).hexdigest()
        return {f"{len(digests)} files": f"sha256:{whole}"}
    names: dict[str, str] = {}
    for file, digest in digests:
        name = file.name[:150]
        names[name if name not in names else f"{name} ({len(names) + 1})"] = digest
    return names
