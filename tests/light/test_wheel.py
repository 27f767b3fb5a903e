"""The files to upload: all that the light commands need, nothing else, and the same wheel however it is made."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePosixPath

import pytest

from dprecipe import __version__
from tests.light.conftest import ROOT, Built
from tests.packaging.container_files import CONTAINERS, copy_as_container

pytestmark = pytest.mark.light
COPIED = {"docs/reference/findings": "dprecipe/findings", "recipes": "dprecipe/gallery"}
"""Folders of the repository, and their places in the wheel."""
OF_SDIST = ["dprecipe", *COPIED, "schemas", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", ".gitignore"]


def committed(*paths: str) -> set[str]:
    command = ["git", "ls-files", *paths]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())


def read_wheel(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_the_files_have_the_names_that_pip_looks_for(built: Built) -> None:
    assert built.sdist.name == f"dprecipe-{__version__}.tar.gz"
    assert built.wheel.name == f"dprecipe-{__version__}-py3-none-any.whl"


def test_the_wheel_holds_the_package_the_pages_of_findings_and_the_recipes(built: Built) -> None:
    package, listed = committed("dprecipe"), committed(*COPIED)
    pages = {
        name.replace(folder, inside, 1)
        for folder, inside in COPIED.items()
        for name in listed
        if name.startswith(f"{folder}/")
    }
    package -= {name for name in package if name.startswith("dprecipe/mechanisms/") and name.endswith("README.md")}
    files = {name: content for name, content in read_wheel(built.wheel).items() if ".dist-info/" not in name}
    assert set(files) == package | pages
    assert {Path(name).suffix for name in files} >= {".py", ".md", ".toml", ".typed"}
    assert all((ROOT / name).read_bytes() == files[name] for name in package)


def test_the_wheel_says_its_version_its_licence_and_what_it_needs(built: Built) -> None:
    files = read_wheel(built.wheel)
    about = f"dprecipe-{__version__}.dist-info"
    metadata = message_from_bytes(files[f"{about}/METADATA"])
    assert (metadata["Version"], metadata["License-Expression"]) == (__version__, "Apache-2.0")
    assert files[f"{about}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert not [each for each in needed if each.startswith(("torch", "lightning"))]
    assert any(each.startswith("dp-accounting") for each in needed), "the cross-check of verify is no extra"


def test_a_wheel_of_the_checkout_is_the_same_as_one_of_the_source_distribution(built: Built, tmp_path: Path) -> None:
    assert read_wheel(built.wheel_of(ROOT, tmp_path)) == read_wheel(built.wheel)


def test_the_containers_are_made_of_all_that_the_wheel_is_made_of(built: Built, tmp_path: Path) -> None:
    """The files that a container copies are a source tree of their own, and its wheel is the released one."""
    for file in CONTAINERS:
        source = tmp_path / file.stem / "source"
        copy_as_container(file, source)
        assert read_wheel(built.wheel_of(source, source.parent / "dist")) == read_wheel(built.wheel), file.name


def test_the_source_distribution_holds_what_the_wheel_is_made_of_and_the_schemas(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    assert names == committed(*OF_SDIST) | {"PKG-INFO"}
