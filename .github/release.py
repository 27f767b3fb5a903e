"""Prints the notes of a release, and refuses a tag that the files of the repository contradict.

Run: python .github/release.py v0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

VERSIONS = {
    "dprecipe/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
}
"""Where the version stands, and how."""


def read_notes(tag: str) -> str:
    """Returns what CHANGELOG.md says of the tag's version, where every file agrees that it is the one to release."""
    if not re.fullmatch(r"v\d+\.\d+\.\d+(rc\d+)?", tag):
        raise SystemExit(f"{tag}: not a tag of a release, as v0.1.0 and v0.1.0rc1 are")
    version = tag.removeprefix("v")
    for name, pattern in VERSIONS.items():
        said = re.findall(pattern, Path(name).read_text(encoding="utf-8"), re.MULTILINE)
        if said != [version]:
            raise SystemExit(f"{name}: says version {', '.join(said)}, not {version}; change it, then tag that commit")
    sections = re.split(r"^## ", Path("CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, notes = section.partition("\n")
        if re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", heading):
            return notes.strip()
    raise SystemExit(f"CHANGELOG.md: has no heading '## [{version}] - ' with the day of the release; write it")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.stdout.write(read_notes(sys.argv[1]) + "\n")
