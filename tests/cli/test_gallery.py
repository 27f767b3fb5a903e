"""The gallery: each recipe is listed as the site lists it, and can be begun from."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dprecipe.cli import gallery as module
from dprecipe.cli.gallery import copy_recipe, list_recipes, read_expected, show_gallery
from dprecipe.cli.main import app
from dprecipe.faults import RunFailed
from dprecipe.recipe.read import read_any
from tests.sweeps import sweep


def init(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["init", *arguments])


def test_each_recipe_is_listed_with_its_accuracy() -> None:
    rows = {line.split()[0]: line.split()[1:] for line in show_gallery()[1:-2]}
    assert set(rows) == set(list_recipes()) == {path.stem for path in module.find_gallery().rglob("*.yaml")}
    assert rows["quickstart"] == ["digits", "dpsgd", "3", "about", "94.5"]
    assert rows["mnist-dpsgd"] == ["mnist", "dpsgd", "3", "98.23"]
    assert rows["papernot2018-mnist-lnmax"] == ["mnist", "pate", "by", "its", "noise", "-"]
    for name, stated in read_expected().items():
        assert " ".join(rows[name]).endswith(stated["accuracy"].removesuffix(" %"))
    assert init("--list").stdout.splitlines() == show_gallery()


@pytest.mark.parametrize("name", sweep([*list_recipes()], (0, 14, -1)))
def test_a_copy_says_the_same_under_another_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(copy_recipe(name, "mine"), encoding="utf-8")
    copied, original = read_any(path).recipe, read_any(list_recipes()[name]).recipe
    assert copied.name == "mine"
    assert copied.model_copy(update={"name": original.name}) == original


def test_a_recipe_is_begun_from_and_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "digits.yaml"
    made = init("--like", "quickstart", str(path))
    assert (made.exit_code, made.stdout) == (0, f"wrote {path}; next: dprecipe validate {path}\n")
    assert "name: digits " in path.read_text("utf-8") or "name: digits\n" in path.read_text("utf-8")
    assert init("--like", "quickstart", str(path)).exit_code == 2


def test_names_that_are_none_and_ways_that_exclude_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "r.yaml")
    assert "write --like quickstart" in init("--like", "quikstart", path).stderr
    assert "dprecipe init --list" in init("--like", "nothing of the kind", path).stderr
    for more in (("--from", "t.csv"), ("--list",)):
        assert "choose one" in init("--like", "quickstart", *more, path).stderr


def test_recipes_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "PLACES", (tmp_path,))
    with pytest.raises(RunFailed, match="not installed"):
        show_gallery()
