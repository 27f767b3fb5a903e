"""`constraints.txt`: one exact version of each package that `make` and CI install, for each Python; nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("train", "ray", "keep", "hub", "docs", "dev")


def read_requirements(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def declared() -> list[Requirement]:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = content["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in [*project["dependencies"], *extras, *content["build-system"]["requires"]]]


def test_every_pin_is_one_exact_version() -> None:
    pins = read_requirements("constraints.txt")
    assert len(pins) > 100
    for pin in pins:
        assert pin.url is None
        assert [specifier.operator for specifier in pin.specifier] == ["=="], pin


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_has_a_pin_that_it_accepts(python: str) -> None:
    """`make pins` was run after pyproject.toml or constraints.in changed."""
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    pins: dict[str, str] = {}
    for pin in read_requirements("constraints.txt"):
        if pin.marker is None or pin.marker.evaluate(here):
            name = canonicalize_name(pin.name)
            assert name not in pins, "two versions for one Python"
            pins[name] = next(iter(pin.specifier)).version
    for requirement in (*declared(), *read_requirements("constraints.in")):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
