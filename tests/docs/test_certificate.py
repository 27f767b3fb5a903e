"""docs/certificate.md lists the checks of every certificate, as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

from dprecipe.release.checks import CHECKS, TEXTS, VOTES_FROM_A_FILE

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", re.MULTILINE)


def test_the_page_lists_the_checks_that_certificates_have() -> None:
    page = (ROOT / "docs" / "certificate.md").read_text(encoding="utf-8")
    section = page[page.index("### Checks") : page.index("### Votes")]
    listed = {name: (text, of) for name, text, of in ROW.findall(section)}
    assert {name: text for name, (text, _) in listed.items()} == TEXTS
    for mechanism, names in CHECKS.items():
        assert {name for name, (_, of) in listed.items() if f"`{mechanism}`" in of.split(", ")} == names
    assert {name for name, (_, of) in listed.items() if "votes from a file" in of} == VOTES_FROM_A_FILE


def test_the_page_names_every_version_that_verifies() -> None:
    from dprecipe.release.versions import KNOWN

    page = (ROOT / "docs" / "certificate.md").read_text(encoding="utf-8")
    (so_far,) = re.findall(r"so far ([\d., ]+)\)", page)
    assert set(so_far.split(", ")) == KNOWN
