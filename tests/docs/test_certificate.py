"""docs/reference/certificate.md lists the checks of every certificate, as the code has them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from dprecipe.contract.certificate import STAGE_NOISE
from dprecipe.contract.table import MECHANISMS
from dprecipe.mechanisms.pate.certificate import CHECKS_OF_A_FILE

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", re.MULTILINE)


def test_the_page_lists_the_checks_that_certificates_have() -> None:
    page = (ROOT / "docs" / "reference" / "certificate.md").read_text(encoding="utf-8")
    section = page[page.index("### Checks") : page.index("### What each mechanism states")]
    listed = {name: (text, of) for name, text, of in ROW.findall(section)}
    by_kind = {kind: import_module(f"{mechanism.package}.certificate").CHECKS for kind, mechanism in MECHANISMS.items()}
    texts = [checks.items() for checks in (*by_kind.values(), CHECKS_OF_A_FILE, STAGE_NOISE)]
    assert {(name, text) for name, (text, _) in listed.items()} == {entry for entries in texts for entry in entries}
    for kind, checks in by_kind.items():
        assert {name for name, (_, of) in listed.items() if f"`{kind}`" in of.split(", ")} == checks.keys()
    assert {name for name, (_, of) in listed.items() if "votes from a file" in of} == CHECKS_OF_A_FILE.keys()
    assert {name for name, (_, of) in listed.items() if "paid steps" in of} == STAGE_NOISE.keys()


def test_the_page_names_the_rules_that_verify() -> None:
    from dprecipe.release.certificate import RULES

    page = (ROOT / "docs" / "reference" / "certificate.md").read_text(encoding="utf-8")
    assert re.findall(r"so far rules (\d+)", page) == [str(RULES)]
