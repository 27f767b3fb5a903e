"""The gallery: the recipes that come with dprecipe, and the accuracy that its pages state for each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from dprecipe.faults import RunFailed, UsageFault
from dprecipe.language.statement import join_lines
from dprecipe.recipe.read import Loaded, LoadedPublic, read_any, read_unfinished
from dprecipe.recipe.suggest import suggest_word
from dprecipe.screen import align_columns
from dprecipe.text.dump import dump
from dprecipe.text.load import read_file

PACKAGE = Path(__file__).parents[1]
PLACES = (PACKAGE / "gallery", PACKAGE.parent / "recipes")
"""Folders of the recipes: in a wheel inside the package, in a checkout beside it."""
HEAD = ("recipe", "data", "mechanism", "ε", "accuracy")
COSTS = "by its noise"
NAME = re.compile(r"(?m)^name:[ \t]*[\w.-]+(?=[ \t]*(?:#.*)?$)")


@final
@dataclass(frozen=True)
class Exhibit:
    """A recipe of the gallery: its file, what it declares, and the accuracy in % that a page states, if one does."""

    path: Path
    loaded: Loaded | LoadedPublic
    accuracy: str

    @property
    def data(self) -> str:
        """The name of its data: the folder of the training file, or the source."""
        return name_data(self.loaded.recipe.data.train.model_dump())

    @property
    def epsilon(self) -> str:
        """The most that a run may spend."""
        if isinstance(self.loaded, LoadedPublic):
            return "no guarantee"
        epsilon = self.loaded.recipe.budget.epsilon
        return COSTS if epsilon == "auto" else f"{epsilon:g}"


def name_data(train: Mapping[str, Any]) -> str:
    """Returns the name of a recipe's data: the folder of its training file, or its source."""
    path = train.get("path") or train.get("images") or train["source"]
    return str(path).partition("/")[0]


def find_gallery() -> Path:
    """Returns the folder of the recipes.

    Raises:
        RunFailed: they are not installed.
    """
    folder = next((place for place in PLACES if (place / "expected.toml").is_file()), None)
    if folder is None:
        raise RunFailed("the recipes of the gallery are not installed", "install dprecipe again")
    return folder


def read_expected() -> dict[str, dict[str, str]]:
    """Returns the accuracy of each recipe and the source that states it."""
    return tomllib.loads((find_gallery() / "expected.toml").read_text("utf-8"))


def list_recipes() -> dict[str, Path]:
    """Returns the recipes of the gallery by their names."""
    folder = find_gallery()
    places = ("*.yaml", "best/*.yaml", "papers/*.yaml")
    return {path.stem: path for place in places for path in sorted(folder.glob(place))}


def show_gallery() -> list[str]:
    """Returns the gallery as lines: those with data that come with the package first, those of papers last."""
    expected = read_expected()
    exhibits = [Exhibit(path, read_any(path), _say(expected.get(name))) for name, path in list_recipes().items()]
    exhibits.sort(key=lambda one: (one.path.parent.name == "papers", one.data != "digits", one.data, one.path.stem))
    rows = [
        HEAD,
        *((x.path.stem, x.data, x.loaded.recipe.mechanism.kind, x.epsilon, x.accuracy) for x in exhibits),
    ]
    return [
        *align_columns(rows),
        "accuracy in % on test or held-out records, of one run, of several or their mean; -: none is stated",
        "begin from one: dprecipe init --like RECIPE; digits come with dprecipe, other data do not",
    ]


def _say(stated: Mapping[str, str] | None) -> str:
    return "-" if stated is None else stated["accuracy"].removesuffix(" %")


def copy_recipe(like: str, name: str) -> str:
    """Returns the text of a recipe of the gallery under another name. One that extends others has all their keys.

    Raises:
        UsageFault: there is none of that name.
    """
    recipes = list_recipes()
    if like not in recipes:
        close = suggest_word(like, list(recipes))
        meant = "list them: dprecipe init --list" if close is None else f"write --like {close}"
        raise UsageFault(f"there is no recipe {like} in the gallery", meant)
    text = read_file(str(recipes[like]))
    if "extends" not in _list_top_keys(text):
        return NAME.sub(lambda _: f"name: {name}", text, count=1)
    values = dict(read_unfinished(recipes[like]))
    description = join_lines(str(values.get("description", "")))
    values.pop("extends", None)
    return f"# As the recipe {like} of dprecipe's gallery. {description}\n\n" + dump({**values, "name": name})


def _list_top_keys(text: str) -> list[str]:
    return re.findall(r"(?m)^(\w+):", text)
