"""constraints.txt pins all that an install can bring, to versions that every package accepts."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


def declared() -> list[Requirement]:
    """The requirements of pyproject.toml and constraints.in: base, extras, and what installs and builds."""
    project = PROJECT["project"]
    lines = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    lines += [line for extra in project["optional-dependencies"].values() for line in extra]
    lines += [line for line in (ROOT / "constraints.in").read_text().splitlines() if not line.startswith("#")]
    return [Requirement(line) for line in lines]


def pinned_here(name: str) -> str | None:
    """The version of this Python and platform."""
    found = [
        next(iter(pin.specifier)).version
        for pin in PINS
        if canonicalize_name(pin.name) == canonicalize_name(name) and (pin.marker is None or pin.marker.evaluate())
    ]
    assert len(found) <= 1, name
    return found[0] if found else None


def test_a_pin_is_one_exact_version() -> None:
    assert len(PINS) > 100
    assert [str(pin) for pin in PINS if [each.operator for each in pin.specifier] != ["=="] or pin.extras] == []


def test_every_declared_package_is_pinned_to_a_version_that_is_accepted() -> None:
    refused = []
    for needed in declared():
        pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(needed.name)]
        versions = [next(iter(pin.specifier)).version for pin in pins]
        if not versions or not all(needed.specifier.contains(each, prereleases=True) for each in versions):
            refused.append(f"{needed}: pinned to {versions}")
    assert not refused, f"{refused}: run make pins"


def test_every_package_that_those_bring_along_is_pinned_to_a_version_that_they_accept() -> None:
    """As far as packages are installed here, in the version that is pinned: the metadata of others is not at hand."""
    refused, seen = [], set[tuple[str, str]]()
    todo = [(canonicalize_name(needed.name), extra) for needed in declared() for extra in ("", *needed.extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if installed.partition("+")[0] != pinned_here(name):
            continue
        for needed in map(Requirement, requires(name) or ()):
            if needed.marker and not needed.marker.evaluate({"extra": extra}):
                continue
            pin = pinned_here(needed.name)
            if pin is None or not needed.specifier.contains(pin, prereleases=True):
                refused.append(f"{name} needs {needed}: pinned to {pin}")
            todo += [(canonicalize_name(needed.name), extra) for extra in ("", *needed.extras)]
    assert not refused, f"{refused}: run make pins"
    assert len({name for name, _ in seen}) >= 40


def test_every_extra_is_pinned_by_the_same_command() -> None:
    """`make pins` names no list of extras that could miss one."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = [line for line in makefile.splitlines() if "$(RESOLVE)" in line and "--universal" in line]
    assert "--all-extras" in line
