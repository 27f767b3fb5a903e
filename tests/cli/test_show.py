"""`dprecipe show`: what it prints is the same recipe, with every default in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.cli.init import SOURCES, make_starter
from dprecipe.cli.show import show
from dprecipe.recipe.read import read, read_text

FINE = Path(__file__).parents[1] / "golden" / "recipes" / "fine.yaml"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("origin", [False, True])
def test_what_is_shown_reads_back_as_the_same_recipe(
    source: str, origin: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(make_starter("dpsgd", source, "r") + 'meta: {a: null, b: "1e-5", c: [{d: no}]}\n')
    show(path, ["description=no"], origin)
    printed = capsys.readouterr().out
    assert read_text(printed).recipe == read(path, ["description=no"]).recipe
    assert "checkpoint_seconds: 30.0" in printed


def test_origins(capsys: pytest.CaptureFixture[str]) -> None:
    show(FINE, ["budget.delta=1e-6"], origin=True)
    lines = capsys.readouterr().out.splitlines()
    assert f"  epsilon: 3.0  # {FINE}:13" in lines
    assert "  delta: 1.0e-06  # --set #1" in lines
    assert "  accountant: pld  # default" in lines
