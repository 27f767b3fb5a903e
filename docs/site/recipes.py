"""The gallery: every recipe with its data, mechanism and budget, and the accuracy that these pages state for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.site.pages import ROOT, place
from dprecipe.cli.gallery import name_data, read_expected
from dprecipe.faults import Fault
from dprecipe.planning.make import plan
from dprecipe.recipe.read import Loaded, read_any

EXPLAINED = {
    "dpsgd": "explanation/dpsgd.md",
    "encoded": "explanation/encoding.md",
    "pate": "explanation/pate.md",
    "pnsgd": "explanation/pnsgd.md",
    "correlated": "explanation/correlated.md",
}
"""The page of each mechanism."""
FIGURES = "project/reproduction"
GROUPS = (
    ("With data that come with the package", "They run at once."),
    ("With public data sets", "[Data](reference/data.md#where-files-are) says where their files belong."),
    ("From papers", "[Reproductions](project/reproduction/index.md) has them beside what the papers printed."),
)


@dataclass(frozen=True)
class Entry:
    """A line of the gallery."""

    source: str
    name: str
    description: str
    data: str
    mechanism: str
    epsilon: str
    delta: str

    @property
    def group(self) -> int:
        """The place of its group in the gallery."""
        if self.source.startswith("recipes/papers/"):
            return 2
        return 0 if self.data == "digits" else 1


def price(loaded: Loaded) -> str:
    """Returns the ε of a recipe: its budget, or, where that is `auto`, what its plan costs, rounded up. A recipe that
    is refused has the code of the finding."""
    if loaded.recipe.budget.epsilon != "auto":
        return f"{loaded.recipe.budget.epsilon:g}"
    try:
        return f"{math.ceil(plan(loaded).guarantee.epsilon * 1000) / 1000:.3f}"
    except Fault as fault:
        (code,) = {finding.code for finding in getattr(fault, "findings", ())}
        return f"refused: [{code}](reference/findings/{code}.md)"


def read_entry(path: Path, root: Path = ROOT) -> Entry:
    """Returns the line of a recipe."""
    loaded = read_any(path)
    recipe, source = loaded.recipe, path.relative_to(root).as_posix()
    data = name_data(recipe.data.train.model_dump())
    if not isinstance(loaded, Loaded):
        return Entry(source, recipe.name, recipe.description, data, "none", "no guarantee", "")
    delta = f"{loaded.recipe.budget.delta:g}".replace("e-0", "e-")
    return Entry(source, recipe.name, recipe.description, data, loaded.recipe.mechanism.kind, price(loaded), delta)


def show_mechanism(kind: str) -> str:
    """Returns the mechanism, with a link to its page."""
    return f"[{kind}]({EXPLAINED[kind]})" if kind in EXPLAINED else kind


def show_accuracy(stated: Mapping[str, str] | None) -> str:
    """Returns the accuracy as its source states it, with a link there, or a dash."""
    if stated is None:
        return "–"
    return f"[{stated['accuracy'].removesuffix(' %')} %]({place(stated['source'])})"


def show_gallery(entries: Iterable[Entry], expected: Mapping[str, Mapping[str, str]], figures: Iterable[str]) -> str:
    """Returns the page of the gallery: a table for each group, and the figures that recipes of papers draw.

    `figures` are the names of pictures in `docs/project/reproduction`, without their endings.
    """
    entries = sorted(entries, key=lambda entry: (entry.group, entry.data, entry.name))
    lines = [
        "# Recipes",
        "",
        "ε is the most that a run may spend, in all; with three decimals, what the plan of a recipe with fixed noise "
        "costs. Accuracy is that on test or held-out records, as the linked page states it: of one run, of each of "
        "several, or their mean. A dash: none is stated for the recipe as it is.",
    ]
    for number, (title, words) in enumerate(GROUPS):
        lines += ["", f"## {title}", "", words, "", "| recipe | ε | δ | accuracy | mechanism | data |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [
            f"| [{entry.name}]({place(entry.source)})<span class=described>{entry.description}</span> "
            f"| {entry.epsilon} | <span class=whole>{entry.delta}</span> | {show_accuracy(expected.get(entry.name))} "
            f"| {show_mechanism(entry.mechanism)} | {entry.data} |"
            for entry in entries
            if entry.group == number
        ]
    drawn = sorted(set(figures) & {entry.name for entry in entries})
    lines += ["", "## Figures"]
    for name in drawn:
        (entry,) = (entry for entry in entries if entry.name == name)
        lines += ["", f"[{name}]({place(entry.source)}): {entry.description}", ""]
        lines += [f"![{entry.description}]({FIGURES}/{name}.svg)"]
    return "\n".join(lines) + "\n"


def make_gallery(root: Path = ROOT) -> str:
    """Returns the gallery of the repository's recipes."""
    entries = [read_entry(path, root) for path in sorted((root / "recipes").rglob("*.yaml"))]
    return show_gallery(entries, read_expected(), (path.stem for path in (root / "docs" / FIGURES).glob("*.svg")))


def list_recipes(root: Path = ROOT) -> list[str]:
    """Returns the recipes, each of which has a page."""
    return [path.relative_to(root).as_posix() for path in sorted((root / "recipes").rglob("*.yaml"))]


def make_schema_list(schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the page of the JSON Schemas, each with its description and a link to the file, which lies beside it."""
    lines = [
        "# Schemas",
        "",
        "JSON Schemas of what dprecipe reads and writes. `dprecipe schema` writes them.",
        "",
        "| schema | of |",
        "|---|---|",
    ]
    for name, schema in sorted(schemas.items()):
        lines.append(f"| [{name}](schemas/{name}) | {schema.get('description', schema['title'])} |")
    return "\n".join(lines) + "\n"
