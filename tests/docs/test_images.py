"""Pictures of the documents: drawn by the script beside them, and shown in light and in dark."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def draw_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", IMAGES / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["draw"] = module
    spec.loader.exec_module(module)
    return module


def test_the_committed_pictures_are_current(draw_script: ModuleType) -> None:
    pictures = dict(draw_script.draw_all())
    assert {path.name for path in IMAGES.glob("*.svg")} == set(pictures)
    for name, text in pictures.items():
        assert (IMAGES / name).read_text(encoding="utf-8") == text, "run docs/images/draw.py"


def test_pictures_are_well_formed_and_say_what_they_show(draw_script: ModuleType) -> None:
    for name, text in draw_script.draw_all():
        root = ElementTree.fromstring(text)
        described = root.findtext("{http://www.w3.org/2000/svg}desc")
        assert described, name
        assert len(described) > 100, name


def test_every_picture_is_shown_in_light_and_in_dark() -> None:
    pictures: set[str] = set()
    for page in PAGES:
        for picture in re.findall(r"<picture>.*?</picture>", page.read_text(encoding="utf-8"), re.DOTALL):
            (dark,) = re.findall(r'<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">', picture)
            ((words, light),) = re.findall(r'<img alt="([^"]+)" src="([^"]+)"', picture)
            assert dark == light.replace("-light", "-dark")
            assert len(words) > 20
            for name in (dark, light):
                assert (page.parent / name).is_file(), name
                pictures.add(Path(name).name)
    assert pictures == {path.name for path in IMAGES.glob("*.svg")}


def test_the_picture_of_imports_shows_the_order_that_is_enforced(draw_script: ModuleType) -> None:
    tree = ast.parse((ROOT / "tests" / "contract" / "test_imports.py").read_text(encoding="utf-8"))
    (order,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER"
    )
    lines = [[name for name in line if not name.startswith("__")] for line in order]
    pictures = [name.split() for name, *_ in draw_script.LAYERS]
    assert len(pictures) == len(lines)
    for names, line in zip(pictures, lines[::-1], strict=True):
        assert names, "a row without a name"
        assert set(names) == set(line)
