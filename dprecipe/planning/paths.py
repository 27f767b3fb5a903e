"""Checks of paths of data files by their text alone; no file is opened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from dprecipe.faults import Finding
from dprecipe.recipe.root import AnyRecipe

VARIABLE = re.compile(r"\$\{[^}]*\}|\$\w+|%\w+%|\{\{.*?\}\}|\$\([^)]*\)|^~[^/\\]*")
_FORMATS = {
    ".xlsx": "a workbook",
    ".xls": "a workbook",
    ".xlsm": "a workbook",
    ".ods": "a workbook",
    ".parquet": "a parquet file",
    ".pq": "a parquet file",
    ".npz": "an archive of arrays",
    ".npy": "an array",
    ".csv": "a csv file",
    ".tsv": "a csv file",
    ".json": "a json file",
    ".jsonl": "a json file",
    ".ndjson": "a json file",
    ".feather": "a feather file",
    ".arrow": "an arrow file",
    ".pkl": "a pickle",
    ".pickle": "a pickle",
    ".sqlite": "a database",
    ".zip": "an archive",
}
_READ_BY = {
    "a csv file": "csv",
    "a parquet file": "parquet",
    "an archive of arrays": "npz",
    "a json file": "json_lines",
}


def declared_files(recipe: AnyRecipe) -> Iterator[tuple[str, str, str]]:
    """Yields the data files of a recipe: the path of the key, the source that reads such files, the file's path."""
    data = recipe.data
    for role, source in (("train", data.train), ("public", data.public), ("test", data.test_source)):
        if source is not None:
            for key, path in source.files.items():
                yield f"data.{role}.{key}", source.format_of(key, path), path


def check_data_files(recipe: AnyRecipe) -> Iterator[Finding]:
    """Checks that paths have no variables, and name files of the kind that the source reads."""
    for key, source, path in declared_files(recipe):
        variable = VARIABLE.search(path)
        if variable is not None:
            rest = path[variable.end() :].lstrip("/\\") if variable.start() == 0 else ""
            name = f"`{rest}`" if rest and not VARIABLE.search(rest) else "the path"
            yield Finding(
                "R121",
                f"`{variable[0]}` is not replaced: recipes have no variables",
                f"write {name} relative to the data folder (--data-root or $DPRECIPE_DATA)",
                key,
            )
            continue
        kind = _FORMATS.get(_suffix(path))
        if kind is not None and _READ_BY.get(kind) != source:
            other = _READ_BY.get(kind)
            save = {"csv": "save it as csv", "parquet": "save it as parquet", "npz": "save its arrays as npz"}
            save["json_lines"] = "save it as json lines"
            save["image_folder"], save["datasets"] = "name the folder that holds the images", "name the folder"
            remedy = save.get(source, "name the idx file") + (f", or set source to {other}" if other else "")
            yield Finding("R122", f"{path} looks like {kind}, which source {source} does not read", remedy, key)


def _suffix(path: str) -> str:
    name = PurePosixPath(path.replace("\\", "/"))
    suffix = name.suffix.lower()
    return PurePosixPath(name.stem).suffix.lower() if suffix in (".gz", ".bz2", ".xz") else suffix
