"""What CONTRIBUTING.md asks of a new mechanism, source, model or noise family: what is forgotten fails here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dprecipe.data.sources.base import READERS
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Stream
from dprecipe.noise.families import FAMILIES, SHAPED

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "schemas" / "recipe.schema.json").read_text(encoding="utf-8"))["$defs"]
COUNT = 4_000


def read_text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def list_kinds(block: str, key: str, tag: str) -> list[str]:
    """The kinds that the schema allows for a key of a block."""
    part: dict[str, Any] = SCHEMA[block]["properties"][key]
    while "else" in part:  # first what is none of the kinds: null, a list, a split
        part = part["else"]
    kinds: list[str] = part["properties"][tag]["enum"]
    assert len(kinds) >= 4
    return kinds


MECHANISMS = list_kinds("Recipe", "mechanism", "kind")
MODELS = list_kinds("Recipe", "model", "kind")
SOURCES = list_kinds("Data", "public", "source")


def test_every_source_can_be_public_too() -> None:
    """All but `elsewhere`, which is no source of records."""
    assert list_kinds("Data", "train", "source") == sorted([*SOURCES, "elsewhere"])
    assert list_kinds("Data", "test", "source") == SOURCES


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_has_a_reader_tests_and_an_example(source: str) -> None:
    assert READERS[source] == f"dprecipe.data.sources.read_{source}"
    assert (ROOT / "dprecipe" / "data" / "sources" / f"read_{source}.py").is_file()
    assert (ROOT / "tests" / "data" / "sources" / f"test_{source}.py").is_file()
    assert re.search(rf"`{source}`|source: {source}\b", read_text("docs/reference/data.md"))


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_is_explained_and_its_size_is_tested(kind: str) -> None:
    assert f"`{kind}`" in read_text("docs/reference/recipe.md") or f"kind: {kind}" in read_text(
        "docs/reference/recipe.md"
    )
    assert f"{kind}" in read_text("docs/reference/models.md")
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "models").glob("test_*.py"))
    assert any(re.search(rf"""kind["']?[=:] ?["']?{kind}\b""", text) for text in tests)


@pytest.mark.parametrize("kind", MECHANISMS)
def test_every_mechanism_has_tests_a_recipe_a_starter_and_a_page(kind: str) -> None:
    tests = sorted((ROOT / "tests" / "mechanisms" / kind).rglob("test_*.py"))
    assert any(path.parent.name == "train" for path in tests)
    recipes = [path.read_text(encoding="utf-8") for path in (ROOT / "recipes").rglob("*.yaml")]
    assert any(re.search(rf"^  kind: {kind}\b", text, re.MULTILINE) for text in recipes)
    page = read_text(f"dprecipe/mechanisms/{kind}/README.md")
    (guide,) = set(re.findall(r"For users[^:]*:\s*\[docs/([\w/-]+\.md)\]", page))
    assert f"kind: {kind}" in read_text(f"docs/{guide}")
    assert f"docs/{guide}" in read_text("README.md")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_noise_family_has_a_distribution_a_sampler_a_block_and_tests(family: str) -> None:
    distribution = Distribution(family, 2.0 if family in SHAPED else None)
    drawn_N = draw_noise(distribution, Stream(b"draws for the test of extending!"), COUNT)
    below = float((drawn_N < 1.0).mean())
    assert abs(below - float(distribution.cdf(1.0))) < 5 * (0.25 / COUNT) ** 0.5
    blocks = [
        name for name, body in SCHEMA.items() if body.get("properties", {}).get("family", {}).get("const") == family
    ]
    assert {name for name in blocks if name.endswith("Noise")}
    assert {name for name in blocks if name.endswith("Phase")}
    for name in (
        "tests/noise/test_distributions.py",
        "tests/noise/test_draws.py",
        "tests/training/steps/test_noise.py",
        "tests/privacy/box/test_moments.py",
    ):
        assert f'"{family}"' in read_text(name), name
    assert family in read_text("docs/explanation/noise.md")
