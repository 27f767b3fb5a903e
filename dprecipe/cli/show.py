"""`dprecipe show`: the resolved recipe, every default filled in."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dprecipe.cli.arguments import Overrides, RecipePath
from dprecipe.recipe.read import Loaded, LoadedPublic, read_any
from dprecipe.screen import make_printable, show_document
from dprecipe.text.dump import dump


def show(
    recipe: RecipePath,
    overrides: Overrides = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value came from.")] = False,
) -> None:
    """Prints the recipe with `extends` and overrides applied; with `origin`, where each value came from.

    Raises:
        RecipeError: with every finding.
    """
    loaded = read_any(recipe, overrides or ())
    comment = (lambda path: make_printable(loaded.origin(".".join(map(str, path))))) if origin else None
    show_document(dump(resolved_text(loaded), comment))


def resolved_text(loaded: Loaded | LoadedPublic) -> dict[str, Any]:
    """Returns every value of the recipe, including defaults; optional values that are absent stay absent."""
    values = loaded.recipe.model_dump(mode="json", by_alias=True, exclude_none=True)
    values["meta"] = loaded.recipe.meta  # free-form: the author's nulls stay
    return values
