"""A tag becomes a release: notes from the changelog, where every file says the tag's version."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGELOG = """# Changelog

## [0.2.0] - 2027-01-31

### Added

- A thing.

## [0.1.0] - unreleased

The first.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dprecipe").mkdir()
    (tmp_path / "dprecipe" / "__init__.py").write_text('"""Text."""\n\n__version__ = "0.2.0"\n', encoding="utf-8")
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 0.2.0\n", encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    return tmp_path


def release(folder: Path, tag: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".github" / "release.py"), tag]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_notes_are_the_section_of_the_version(folder: Path) -> None:
    assert release(folder, "v0.2.0").stdout == "### Added\n\n- A thing.\n"


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("dprecipe/__init__.py", '"0.2.0"', '"0.2.1"', "dprecipe/__init__.py: says version 0.2.1, not 0.2.0"),
        ("CITATION.cff", "\nversion: 0.2.0", "\nversion: 0.1.0", "CITATION.cff: says version 0.1.0, not 0.2.0"),
        ("CHANGELOG.md", "2027-01-31", "unreleased", "CHANGELOG.md: has no heading '## [0.2.0] - '"),
    ],
)
def test_a_file_that_says_another_version_stops_the_release(
    name: str, old: str, new: str, says: str, folder: Path
) -> None:
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new), encoding="utf-8")
    done = release(folder, "v0.2.0")
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr


@pytest.mark.parametrize("tag", ["0.2.0", "v0.2", "v0.2.0-1", "v0.2.0; rm"])
def test_a_tag_of_another_form_is_refused(tag: str, folder: Path) -> None:
    assert "not a tag of a release" in release(folder, tag).stderr


def test_the_files_of_the_repository_agree_on_the_version() -> None:
    """All but the day, which is written when it is released."""
    version = re.findall(r'^__version__ = "(.+)"$', (ROOT / "dprecipe" / "__init__.py").read_text(), re.MULTILINE)
    assert re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == version
    headings = re.findall(r"^## \[(.+)\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:1] == version
