"""Frozen releases verify, whatever became of the program since; forgeries of them do not. See the README."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprecipe.faults import CertificateInvalid
from dprecipe.planning.again import StatedPlan, plan_again
from dprecipe.privacy import accountants
from dprecipe.recipe.read import read_source
from dprecipe.release import claim, schema
from dprecipe.release.account_statement import hold_statement
from dprecipe.release.rebuild import stated_source
from dprecipe.release.verify import Verified, verify
from tests.corpus.forgeries import FORGERIES, ROOT, WORDS_AND_DEFAULTS, forge, put
from tests.corpus.reword import VERSION, reword

FROZEN = sorted((ROOT / "rules1").iterdir())
SLOW = frozenset({"account", "audit", "attempts", "encoded", "language", "paid", "signed", "tuned"})
"""Above a second."""
RELEASES = [pytest.param(path, id=path.name, marks=[pytest.mark.slow] if path.name in SLOW else []) for path in FROZEN]


def verify_frozen(folder: Path) -> Verified:
    key = folder / "public.pem"
    return verify(folder / "release", key if key.exists() else None)


@pytest.mark.parametrize("folder", RELEASES)
def test_every_frozen_release_verifies(folder: Path) -> None:
    verified = verify_frozen(folder)
    stated = json.loads((folder / "release" / "certificate.json").read_text(encoding="utf-8"))["predicate"]
    assert verified.claim.epsilon == stated["claim"]["epsilon"] > 0
    assert len(verified.claim.sentence) > 100
    assert "the ledger beside it has exactly these events" in verified.checked


def test_every_kind_of_release_is_there() -> None:
    kinds = {"dpsgd", "encoded", "correlated", "bands", "pate", "votes", "pnsgd", "tuned", "paid", "account", "audit"}
    assert {path.name for path in FROZEN} == kinds | {"language", "module", "no-model", "attempts", "signed"}
    assert sum(file.stat().st_size for file in ROOT.rglob("rules*/**/*") if file.is_file()) < 3_000_000


# A later version


@pytest.fixture
def another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "__version__", "9.9.0")


@pytest.mark.parametrize("folder", RELEASES)
def test_a_tighter_accountant_orphans_nothing(
    folder: Path, another_version: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that finds 1 % less for everything: solvers that use it find other noise."""
    less, answer = 0.99, accountants.epsilon_answer

    def tighter(*args: Any) -> Any:
        found = answer(*args)
        return replace(found, value=less * found.value)

    monkeypatch.setattr(accountants, "epsilon_answer", tighter)
    bound = claim.bound_groups
    monkeypatch.setattr(
        claim,
        "bound_groups",
        lambda *a: tuple(g.model_copy(update={"epsilon": less * g.epsilon} if g.epsilon else {}) for g in bound(*a)),
    )
    verified = verify_frozen(folder)
    assert verified.notes[0].startswith("the certificate says that dprecipe 0.1.0 made it, and this is")


def test_a_later_version_has_other_defaults(tmp_path: Path, another_version: None) -> None:
    """A default that the text does not write is that of the certificate; what it writes is what it says."""

    def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
        def apply(predicate: dict[str, Any]) -> None:
            resolved = predicate["provenance"]["recipe"]["resolved"]
            *steps, last = path.split(".")
            block = resolved
            for step in steps:
                block = block[step]
            block[last] = value
            stated = schema.Predicate.model_validate_json(json.dumps(predicate))
            again = StatedPlan(resolved, stated.provenance.solved, stated.budget.epsilon)
            predicate["provenance"]["plan"] = plan_again(read_source(stated_source(stated)), again).digest

        return apply

    verified = forge("dpsgd", tmp_path / "default", change("training.optimizer.momentum", 0.25), keep_ledger=False)
    assert verify(verified).claim.epsilon > 0
    with pytest.raises(ValueError, match=r"resolved\.training\.steps: not what the recipe's text says"):
        forge("dpsgd", tmp_path / "written", change("training.steps", 2))


VERIFY_ALL = """
import pathlib, sys
import dprecipe
from dprecipe.release.exports import EXPORTS
from dprecipe.release.verify import verify

print(dprecipe.__file__)
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    verified = verify(folder / "release", folder / "public.pem" if folder.name == "signed" else None)
    pages = [render(verified) for render in EXPORTS.values()]
    print(folder.name, "|", verified.claim.sentence, "|", verified.notes[0])
"""


@pytest.mark.slow
def test_a_copy_that_says_all_in_other_words_and_has_other_modules_verifies_all(tmp_path: Path) -> None:
    reword(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", VERIFY_ALL, ROOT / "rules1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    place, *lines = done.stdout.splitlines()
    assert Path(place).parent == tmp_path / "dprecipe"
    assert [line.split(" | ")[0] for line in lines] == [path.name for path in FROZEN]
    for line in lines:
        assert "DIFFERENTIAL" in line
        assert f"this is {VERSION}" in line


# Forgeries


@pytest.mark.parametrize("version", ["its own", "another"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if each.slow else []) for name, each in FORGERIES.items()],
)
def test_a_forgery_is_refused_by_name(name: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the version that the certificate names, and by another one."""
    forgery = FORGERIES[name]
    release = forge(forgery.release, tmp_path / "run", forgery.change, forgery.files, forgery.keep_ledger)
    if version == "another":
        monkeypatch.setattr(schema, "__version__", "9.9.0")
        if name in WORDS_AND_DEFAULTS:
            return
    with pytest.raises(CertificateInvalid) as refused:
        verify(release)
    assert any(re.search(forgery.named, failure) for failure in refused.value.failures), refused.value.failures


def test_thirty_forgeries() -> None:
    assert len(FORGERIES) >= 30
    assert {each.release for each in FORGERIES.values()} == {path.name for path in FROZEN} - {"signed"}


@pytest.mark.slow
def test_a_signed_release_is_bound_to_its_envelope(tmp_path: Path) -> None:
    release = forge("signed", tmp_path / "run", put("provenance.device", "abacus"))
    key = ROOT / "rules1" / "signed" / "public.pem"
    with pytest.raises(CertificateInvalid, match=r"certificate\.json: not the certificate in"):
        verify(release, key)
    (release / "certificate.dsse.json").unlink()
    with pytest.raises(CertificateInvalid, match="signature: there is none"):
        verify(release, key)


@pytest.mark.slow
def test_the_statement_of_an_account_is_still_read() -> None:
    folder = ROOT / "rules1" / "account"
    held = hold_statement(verify(folder / "release"), folder / "statement.json")
    assert len(held.checked) > len(verify(folder / "release").checked)
