"""What is installed for a run is written down, read as a stranger's file, and listed in the bill of materials."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from dprecipe.release.bill import render_sbom
from dprecipe.release.environment import FILE, InstalledPackage, find_environment, list_packages, record_environment
from dprecipe.release.verify import verify
from tests.recipe_texts import SMALL

PLAN = "sha256:" + "1" * 64


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for name in ("private", "release"):
        (tmp_path / name).mkdir()
    return tmp_path / "release"


def test_every_installed_package_is_found_with_the_archive_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry, origin in (
        ("one_two-1.0+cpu.dist-info", {"archive_info": {"hashes": {"sha256": "a" * 64}}, "url": "https://x/y"}),
        ("three-2.0.dist-info", {"dir_info": {"editable": True}, "url": "file:///home/somebody"}),
        ("numpy-0.0.dist-info", None),
    ):
        (tmp_path / entry).mkdir()
        if origin is not None:
            (tmp_path / entry / "direct_url.json").write_text(json.dumps(origin), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    list_packages.cache_clear()
    packages = {each.name: each for each in list_packages()}
    list_packages.cache_clear()
    assert packages["one-two"] == InstalledPackage("one-two", "1.0+cpu", "a" * 64)
    assert packages["three"].sha256 is None
    for name in ("numpy", "pydantic", "pytest"):  # the first of two is the one that is imported
        assert packages[name].version == version(name)


def test_it_is_read_beside_its_own_release_and_nowhere_else(release: Path) -> None:
    record_environment(release.parent / "private", PLAN)
    assert find_environment(release, PLAN) == list_packages()
    (release / "certificate.json").write_text("{}", encoding="utf-8")
    assert find_environment(release / "certificate.json", PLAN) == list_packages()
    assert find_environment(release, PLAN.replace("1", "2")) is None
    file = release.parent / "private" / FILE
    content = json.loads(file.read_text(encoding="utf-8"))
    for broken in (
        {**content, "packages": [{"name": "a\x1b[31m", "version": "1", "sha256": None}]},
        {**content, "packages": [{"name": "a", "version": "1", "sha256": "b"}]},
        {**content, "packages": [{"name": 1, "version": "1", "sha256": None}]},
        {**content, "packages": {}},
        [],
    ):
        file.write_text(json.dumps(broken), encoding="utf-8")
        assert find_environment(release, PLAN) is None


def test_the_bill_says_whether_it_is_complete(tmp_path: Path, release_of: Callable[..., Path]) -> None:
    verified = verify(release_of(SMALL, tmp_path))
    recorded = verified.statement.predicate.provenance.versions
    own = InstalledPackage("numpy", recorded["numpy"], "c" * 64)
    more = InstalledPackage("absl-py", "2.0", None)
    bill = json.loads(render_sbom(verified, [own, more, InstalledPackage("scipy", "0.1", "d" * 64)]))
    packages = {each["name"]: each for each in bill["components"] if each["type"] == "library"}
    assert packages["numpy"]["hashes"] == [{"alg": "SHA-256", "content": "c" * 64}]
    assert packages["absl-py"]["purl"] == "pkg:pypi/absl-py@2.0"
    assert packages["scipy"]["version"] == recorded["scipy"]  # what the certificate records is what ran
    assert "hashes" not in packages["scipy"]
    assert [each["aggregate"] for each in bill["compositions"]] == ["complete"]
    assert json.loads(render_sbom(verified))["compositions"][0]["aggregate"] == "incomplete"
