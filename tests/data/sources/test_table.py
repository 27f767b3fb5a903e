"""What every source says of itself, in both of its blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dprecipe.data.schema import Data
from dprecipe.data.sources.base import Labelled, SourceBlock
from dprecipe.data.sources.table import SOURCES
from dprecipe.data.targets import ClassTarget

COLUMNS = {"n": {"kind": "numeric", "min": 0, "max": 1}}
LABEL = {"column": "y", "values": ["a", "b", "c"]}
EXAMPLES: dict[str, dict[str, Any]] = {
    "digits": {"split": "train"},
    "idx": {"images": "f/../x", "labels": "l"},
    "csv": {"path": "f/../x", "columns": COLUMNS, "label": LABEL},
    "parquet": {"path": "f/../x", "columns": COLUMNS, "label": LABEL},
    "json_lines": {"path": "f/../x", "columns": COLUMNS, "label": LABEL},
    "npz": {"path": "f/../x", "shape": [4], "classes": 3},
    "datasets": {"path": "f/../x", "split": "train", "columns": COLUMNS, "label": LABEL},
    "duckdb": {"tables": {"t": "f/../x"}, "query": "SELECT * FROM t", "columns": COLUMNS, "label": LABEL},
    "postgres": {
        "connection": "DATABASE",
        "tables": {"t": "public.t"},
        "query": "SELECT * FROM t",
        "columns": COLUMNS,
        "label": LABEL,
    },
    "image_folder": {"path": "f/../x", "shape": [4, 4, 3], "label": {"column": "folder", "values": ["a", "b", "c"]}},
}
KINDS = [block.model_fields["source"].annotation.__args__[0] for block, _ in SOURCES]


def blocks(kind: str) -> tuple[Labelled, SourceBlock]:
    block = {"source": kind, **EXAMPLES[kind]}
    data = Data.model_validate_json(__import__("json").dumps({"train": block, "public": block, "size": 3}))
    assert data.public is not None
    return data.train, data.public


def test_there_is_an_example_of_each() -> None:
    assert set(EXAMPLES) == set(KINDS)
    assert len(KINDS) == len(set(KINDS)) >= 5


@pytest.mark.parametrize("kind", KINDS)
def test_both_blocks_of_a_source_read_the_same_features(kind: str) -> None:
    labelled, public = blocks(kind)
    assert isinstance(labelled, Labelled)
    assert not isinstance(public, Labelled)
    assert (labelled.access, public.access) == ("private_internal", "public")
    for trait in ("source", "record_shape", "table_columns", "has_names", "features_paths", "part", "origins"):
        assert getattr(labelled, trait) == getattr(public, trait), trait
    assert set(public.files) <= set(labelled.files)
    assert (labelled.table_columns is None) != (labelled.record_shape == ())
    assert labelled.target.outputs == (10 if kind in ("digits", "idx") else 3)
    assert isinstance(labelled.target, ClassTarget)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_source_reads_is_told_by_its_path_as_it_is(kind: str) -> None:
    labelled, _ = blocks(kind)
    paths = labelled.features_paths
    assert (paths == ()) == (labelled.files == {})
    if paths:
        (file,) = paths
        assert labelled.origins[0][0] == "x"
        assert file in labelled.files.values()
        key = next(key for key, path in labelled.files.items() if path == file)
        update = {"tables": {"t": "y"}} if key.startswith("tables.") else {key: "y"}
        assert labelled.model_copy(update=update).origins != labelled.origins
    else:
        other = {"split": "test"} if kind == "digits" else {"tables": {"t": "public.other"}}
        assert labelled.model_copy(update=other).origins != labelled.origins


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_sources_have_an_origin_in_common_by_chance(kind: str, tmp_path: Path) -> None:
    others = [blocks(other)[0] for other in KINDS if other != kind]
    mine = blocks(kind)[0]
    for other in others:
        # The same file is the same file, whichever source reads it.
        same_file = bool(mine.features_paths and other.features_paths)
        assert (mine.origins[0][0] == other.origins[0][0]) == same_file
