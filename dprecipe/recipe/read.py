"""Reading of recipes from texts, with every finding at its place."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dprecipe import notebook
from dprecipe.contract.plan import RecipeSource
from dprecipe.contract.table import mechanism_of
from dprecipe.data.sources.table import SOURCES, kind_of
from dprecipe.faults import Finding, Place, RecipeError
from dprecipe.language.statement import join_lines
from dprecipe.recipe.root import AnyRecipe, PublicRecipe, Recipe, choose_root
from dprecipe.recipe.vocabulary import list_shared_keys
from dprecipe.text.dump import dump
from dprecipe.text.load import read_file
from dprecipe.text.merge import (
    Chain,
    OpenParent,
    name_override,
    overlay_trees,
    read_chain,
    read_overrides,
    states_split,
)
from dprecipe.text.spelling import nearest_word
from dprecipe.text.tree import Entry, Mapping, Scalar, find_node, to_plain

SHARED = ("Y107", "Y108")
"""Findings of anchors and merge keys."""
OpenText = Callable[[str], str]
"""The text of a file by its path; raises `OSError` or `KeyError` where there is none."""


@dataclass(frozen=True, slots=True)
class Written:
    """The texts a recipe came from, and where each of its values was written."""

    source: RecipeSource
    tree: Mapping
    texts: AnyMapping[str, str]

    def place(self, path: str) -> Place:
        """Returns the place where a dotted path is written; for a default, that of the nearest written block."""
        return find_node(self.tree, path)[1]

    def origin(self, path: str) -> str:
        """Returns the origin of a dotted path's value: `recipe.yaml:8`, `--set #2` or `default`."""
        steps, place = find_node(self.tree, path)
        if ".".join(map(str, steps)) != path:
            return "default"
        return place.file if place.file.startswith("--set #") else f"{place.file}:{place.line}"

    def located(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Returns the findings with their places, in the order of the text."""
        placed = [
            finding if finding.place is not None else _at(finding, self.place(finding.path)) for finding in findings
        ]
        return sort_findings(placed, self.texts)


@dataclass(frozen=True, slots=True)
class Loaded(Written):
    """A recipe with its texts."""

    recipe: Recipe

    def __repr__(self) -> str:
        return f"Loaded({self.source.file!r}: {self.recipe.name})"

    def _repr_html_(self) -> str:
        return show_recipe(self)


@dataclass(frozen=True, slots=True)
class LoadedPublic(Written):
    """A recipe without privacy, with its texts."""

    recipe: PublicRecipe

    def __repr__(self) -> str:
        return f"LoadedPublic({self.source.file!r}: {self.recipe.name})"

    def _repr_html_(self) -> str:
        return show_recipe(self)


def show_recipe(loaded: Loaded | LoadedPublic) -> str:
    """Returns a recipe as a card of a notebook: what was written, and what it means with every default filled in."""
    recipe, source = loaded.recipe, loaded.source
    overrides = [f"--set {override}" for override in source.overrides]
    values = recipe.model_dump(mode="json", by_alias=True, exclude_none=True)
    return notebook.render_card(
        f"Recipe {recipe.name}",
        notebook.render_text(join_lines(recipe.description), "soft"),
        notebook.render_rows(
            [
                ("file", source.file),
                *([("overrides", ", ".join(overrides))] if overrides else []),
                ("mechanism", recipe.mechanism.kind),
                ("model", recipe.model.kind),
                *([("budget", f"ε = {b.epsilon}, δ = {b.delta}")] if (b := getattr(recipe, "budget", None)) else []),
            ]
        ),
        notebook.render_source("as written", source.text),
        notebook.render_source("with every default", dump(values)),
    )


def _at(finding: Finding, place: Place) -> Finding:
    return replace(finding, place=place)


def read(path: str | os.PathLike[str], overrides: Iterable[str] = (), *, open_text: OpenText | None = None) -> Loaded:
    """Reads a recipe file, the parents it extends, what it takes from other files, and overrides of the form `a.b=c`.

    With `open_text` every text comes from that function and the file system is never touched.

    Raises:
        RecipeError: with all that is wrong, in the order of the text; or the recipe is one without privacy.
    """
    return _guaranteed(read_any(path, overrides, open_text=open_text))


def read_any(
    path: str | os.PathLike[str], overrides: Iterable[str] = (), *, open_text: OpenText | None = None
) -> Loaded | LoadedPublic:
    """Reads as `read` does, a recipe with or without privacy."""
    file = os.fspath(path)
    opener = read_file if open_text is None else _guarded(open_text)

    def open_parent(child: str, name: str) -> str:
        return opener(posixpath.normpath(posixpath.join(posixpath.dirname(child), name)))

    loaded = _read(opener(file), file, tuple(overrides), open_parent)
    if isinstance(loaded, LoadedPublic) or open_text is not None:
        return loaded
    return _with_attachments(loaded, Path(file).parent)


def _guaranteed(loaded: Loaded | LoadedPublic) -> Loaded:
    """Returns a recipe whose mechanism has a guarantee.

    Raises:
        RecipeError: it has none.
    """
    if isinstance(loaded, Loaded):
        return loaded
    finding = Finding(
        "R309",
        "mechanism none protects nobody, and this needs a guarantee",
        "choose a mechanism with a guarantee; or use the commands validate, plan, show and run, which take this recipe",
        "mechanism.kind",
    )
    raise RecipeError(loaded.located([finding]), loaded.texts)


def read_text(
    text: str,
    file: str = "recipe.yaml",
    overrides: Iterable[str] = (),
    parents: Sequence[tuple[str, str]] = (),
    attachments: Sequence[tuple[str, str]] = (),
) -> Loaded:
    """Reads a recipe from texts alone; `parents` are (name as written in `extends`, text), nearest first, and
    `attachments` what it takes from other files (`Source.attachments`).

    Pure: reads no file. Untrusted texts are welcome.

    Raises:
        RecipeError: with all that is wrong; also for a parent that is not given, or given and not extended.
    """
    waiting = list(parents)

    def open_parent(child: str, name: str) -> str:
        if not waiting or waiting[0][0] != name:
            raise _absent(name, "its text is not given")
        return waiting.pop(0)[1]

    loaded = _guaranteed(_read(text, file, tuple(overrides), open_parent))
    if waiting:
        raise _absent(file, f"it does not extend {waiting[0][0]}, whose text is given")
    return replace(loaded, source=replace(loaded.source, attachments=tuple(attachments)))


def read_source(source: RecipeSource) -> Loaded:
    """Reads again what a plan or a certificate carries; as `read_text`."""
    return read_text(source.text, source.file, source.overrides, source.parents, source.attachments)


def _with_attachments(loaded: Loaded, folder: Path) -> Loaded:
    result, findings = mechanism_of(loaded.recipe.mechanism.kind).read_attachments(loaded.recipe, folder)
    if findings:
        raise RecipeError(loaded.located(findings), loaded.texts)
    return replace(loaded, source=replace(loaded.source, attachments=tuple(sorted(result.items()))))


def _guarded(open_text: OpenText) -> OpenText:
    def opener(path: str) -> str:
        try:
            return open_text(path)
        except (OSError, LookupError):
            raise _absent(path, "there is no such text") from None

    return opener


def _absent(file: str, message: str) -> RecipeError:
    return RecipeError((Finding("Y101", message, "check the path", place=Place(file, 1, 1)),))


def read_unfinished(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> AnyMapping[str, Any]:
    """Returns the values of a recipe file as they are written, overrides included: of one whose values may be wrong or
    left open."""
    file = os.fspath(path)

    def open_parent(child: str, name: str) -> str:
        return read_file(posixpath.normpath(posixpath.join(posixpath.dirname(child), name)))

    tree = _read_tree(read_chain(read_file(file), file, open_parent), read_overrides(tuple(overrides))[0], [])
    plain = None if tree is None else to_plain(tree)
    return plain if isinstance(plain, dict) else {}


def _read_tree(chain: Chain, over: Mapping, findings: list[Finding]) -> Mapping | None:
    """Returns a recipe with its overrides, and with what its sources share; None where it is no block."""
    if chain.tree is None:
        return None
    merged, more = overlay_trees(chain.tree, over, partial(list_shared_keys, chain.tree))
    findings += more
    return inherit_records(merged if isinstance(merged, Mapping) else chain.tree)


def _read(text: str, file: str, overrides: tuple[str, ...], open_parent: OpenParent) -> Loaded | LoadedPublic:
    chain = read_chain(text, file, open_parent)
    texts = {**chain.texts, **{name_override(index): override for index, override in enumerate(overrides)}}
    over, findings = read_overrides(overrides)
    results = [*chain.findings, *findings]
    tree = _read_tree(chain, over, results)
    if tree is None:
        raise RecipeError(sort_findings(results, texts), texts)
    if any(finding.code in SHARED for finding in results):
        # Values behind anchors are unknown, so findings about the rest would be guesses.
        raise RecipeError(sort_findings(results, texts), texts)
    recipe = _validated(tree, results)
    if recipe is None or results:
        raise RecipeError(sort_findings(results, texts), texts)
    source = _source(text, file, overrides, chain)
    if isinstance(recipe, PublicRecipe):
        return LoadedPublic(source, tree, texts, recipe)
    return Loaded(source, tree, texts, recipe)


def _source(text: str, file: str, overrides: tuple[str, ...], chain: Chain) -> RecipeSource:
    return RecipeSource(text, file, overrides, tuple(chain.parents))


def _validated(tree: Mapping, findings: list[Finding]) -> AnyRecipe | None:
    """Returns the recipe; or None, with the findings appended."""
    text = json.dumps(to_plain(tree))
    try:
        recipe = choose_root(tree).model_validate_json(text)
    except ValidationError as error:
        from dprecipe.recipe.wording import explain_errors  # needed only by recipes that are wrong

        findings += drop_consequences(explain_errors(error, tree))
        findings += _find_blanks(tree, text, findings)
        return None
    from dprecipe.recipe.screening import screen_recipe

    findings += screen_recipe(tree)[0]
    findings += _find_blanks(tree, text, findings)
    return recipe


def _find_blanks(tree: Mapping, text: str, known: Sequence[Finding]) -> list[Finding]:
    if "FILL_IN" not in text:
        return []
    from dprecipe.recipe.blanks import find_blanks

    return find_blanks(tree, known)


def sort_findings(findings: Iterable[Finding], texts: AnyMapping[str, str]) -> tuple[Finding, ...]:
    """Returns the findings without repetitions, in the order of the texts and the places in them. What several sources
    share is written once, and a finding about it is reported once.
    """
    different: dict[Finding, Finding] = {}
    for finding in findings:
        different.setdefault(replace(finding, path=name_origin(finding.path)), finding)
    files = {file: index for index, file in enumerate(texts)}

    def position(finding: Finding) -> tuple[int, int, int]:
        place = finding.place
        return (-1, 0, 0) if place is None else (files.get(place.file, -1), place.line, place.column)

    return tuple(sorted(different.values(), key=position))


ROLES = ("test", "public")


def inherit_records(tree: Mapping) -> Mapping:
    """Returns the recipe, with what `data.test` and `data.public` take over from `data.train`. Values keep their
    places.
    """
    data = tree.entries.get("data")
    if data is None or not isinstance(data.value, Mapping):
        return tree
    entries = dict(data.value.entries)
    train = entries.get("train")
    if train is None or not isinstance(train.value, Mapping):
        return tree
    for role in ROLES:
        entry = entries.get(role)
        if entry is not None and isinstance(entry.value, Mapping) and not states_split(entry.value):
            entries[role] = Entry(entry.place, _completed(entry.value, train.value, labelled=role == "test"))
    whole = Entry(data.place, Mapping(entries, data.value.place))
    return Mapping({**tree.entries, "data": whole}, tree.place)


def drop_consequences(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings, without keys that other sources lack because something is wrong with `data.train`."""
    findings = list(findings)
    own = [finding for finding in findings if name_origin(finding.path) == finding.path]
    if not any(finding.path.startswith("data.") for finding in own):
        return findings
    shared = {key for pair in SOURCES for block in pair for key in block.shared}
    return [f for f in findings if f in own or f.code != "R102" or f.path.rpartition(".")[2] not in shared]


def name_origin(path: str) -> str:
    """Returns the path of a value in `data.train`, if it is one in another source that may have been taken over from
    there.
    """
    for role in ROLES:
        if path.startswith(f"data.{role}."):
            return f"data.train.{path.removeprefix(f'data.{role}.')}"
    return path


def _completed(block: Mapping, train: Mapping, *, labelled: bool) -> Mapping:
    source = _read_source(train)
    key = next((key for key in block.entries if nearest_word(key, ["source"])), "source")
    if _read_source(block, key) not in (source, None):
        return block
    shared = next((pair[0 if labelled else 1].shared for pair in SOURCES if kind_of(pair[0]) == source), ())
    # A misspelt key is reported as what it was meant to be, so nothing takes its place.
    first = () if key in block.entries else ("source",)
    taken = {key: train.entries[key] for key in (*first, *shared) if key in train.entries}
    return Mapping({**taken, **block.entries}, block.place)


def _read_source(block: Mapping, key: str = "source") -> object:
    """Returns the kind of a source, by the entry of this key; None where it is not stated."""
    entry = block.entries.get(key)
    return entry.value.value if entry is not None and isinstance(entry.value, Scalar) else None
