"""The software that a run was made with: what is installed for its interpreter, in `private/environment.json`.

It stays in `private/`: names of packages may tell of an organisation, and a certificate needs none of them but its
`versions`. `dprecipe verify RELEASE --export sbom` reads it where it lies beside the release.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dprecipe import durable
from dprecipe.release.untrusted import ContentError, parse_object, read_bytes

SCHEMA = "dprecipe.environment/v1"
FILE = "environment.json"
MAX_PACKAGES = 20_000
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
VERSION = r"[A-Za-z0-9][A-Za-z0-9.+!_]{0,99}"


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """`sha256`: of the archive that it was installed from, where the installer recorded one (PEP 610: of addresses, and
    of no index)."""

    name: str
    version: str
    sha256: str | None


@cache
def list_packages() -> tuple[InstalledPackage, ...]:
    """Returns every distribution on the interpreter's path, by name, as installers write them:
    `NAME-VERSION.dist-info`. Of two of one name, the first is imported. Nothing is imported here; of their files, only
    `direct_url.json` is read."""
    found: dict[str, InstalledPackage] = {}
    for folder in sys.path:
        with suppress(OSError):
            for entry in sorted(os.listdir(folder or ".")):
                match = re.fullmatch(rf"({NAME})-({VERSION})\.dist-info", entry)
                if match is not None:
                    name = re.sub(r"[-_.]+", "-", match[1]).lower()  # as package URLs have it: PEP 503
                    package = InstalledPackage(name, match[2], _read_digest(Path(folder, entry, "direct_url.json")))
                    found.setdefault(name, package)
    return tuple(found[name] for name in sorted(found))


def record_environment(private: Path, plan: str) -> None:
    """Writes down what is installed, for the run of this plan's digest. Raises `OSError`."""
    packages = [{"name": p.name, "version": p.version, "sha256": p.sha256} for p in list_packages()]
    content = {"schema": SCHEMA, "plan": plan, "packages": packages}
    durable.replace_file(private / FILE, json.dumps(content, indent=1).encode())


def find_environment(release: Path, plan: str) -> tuple[InstalledPackage, ...] | None:
    """Reads the packages written down beside a release, or beside its certificate's folder; None if nothing is there of
    this plan's run, or nothing that can be read. It is untrusted, and no certificate covers it."""
    folder = release if release.is_dir() else release.absolute().parent
    path = folder.absolute().parent / "private" / FILE
    try:
        content = parse_object(read_bytes(path), FILE)
        if (content.get("schema"), content.get("plan")) != (SCHEMA, plan):
            return None
        return tuple(_read_packages(content["packages"]))
    except (OSError, ContentError, ValueError, KeyError, TypeError):
        return None


def _read_packages(content: Any) -> Iterator[InstalledPackage]:
    if not isinstance(content, list) or len(content) > MAX_PACKAGES:
        raise ValueError("not a list of packages")
    for each in content:
        name, version, digest = each["name"], each["version"], each["sha256"]
        if not (re.fullmatch(NAME, name) and re.fullmatch(VERSION, version)):
            raise ValueError("not a package")
        if digest is not None and not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError("not a digest")
        yield InstalledPackage(name, version, digest)


def _read_digest(origin: Path) -> str | None:
    try:
        archive = json.loads(origin.read_bytes())["archive_info"]
        digest = archive.get("hashes", {}).get("sha256") or str(archive.get("hash", "")).removeprefix("sha256=")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return digest if isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) else None
