"""`datasets`: shards of Arrow that `save_to_disk` wrote, or of Parquet as the hub stores them; read with pyarrow alone.

A `ClassLabel` is stored as a number, and its names are with the columns. Where names are declared, names are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from dprecipe.data.arrow import ColumnTypes, select_columns
from dprecipe.data.arrow_table import check_classes, collect_chunks, name_classes, named_columns
from dprecipe.data.columns import Columns
from dprecipe.data.files import DataFile, locate_folder
from dprecipe.data.raw import Raw, Reading
from dprecipe.data.sources.labels import Label
from dprecipe.data.sources.read_parquet import BATCH_ROWS, MAX_BATCH_BYTES, ParquetShards, read_shards
from dprecipe.data.sources.tables import AnyDatasetFolder
from dprecipe.data.words import find_columns
from dprecipe.faults import DataFault
from dprecipe.text.spelling import normalise_text

MAX_JSON = 1 << 20
"""Bytes of a JSON file of the folder."""
PARQUET_NAME = re.compile(r"(?P<split>\w+(?:[.-]\w+)*?)(?:-(?P<number>\d{5})-of-(?P<count>\d{5}))?\.parquet")
COPY = "copy the folder again, with all of its files"
REMEDY = "name a folder that `save_to_disk` wrote, or a snapshot of the hub with Parquet files"


def read(source: AnyDatasetFolder, root: Path, reading: Reading) -> Raw:
    """Returns the selected records of a split, in the order of its shards; as `read_parquet.read`.

    Raises:
        DataFault: a folder, split, shard or column is missing, a shard is damaged, or is not what the recipe declares.
    """
    shards, files = find_shards(source.path, source.split, root)
    named = NamedClasses(shards, source.columns or {}, source.read_label)
    chunks = partial(read_shards, named, files, source.records, reading)
    return collect_chunks(chunks, source.columns, source.image, source.read_label, reading)


def existing_files(source: AnyDatasetFolder, root: Path) -> list[Path]:
    """Returns the files of a split; none where it can't be read."""
    try:
        return [file.path for file in find_shards(source.path, source.split, root)[1] if file.path.exists()]
    except DataFault:
        return []


def find_shards(
    path: str, split: str | None, root: Path, finished: bool = False
) -> tuple[ArrowShards | ParquetShards, list[DataFile]]:
    """Returns the shards of a split, in order, and how they are read. `finished`: see `problems.Problems`.

    Raises:
        DataFault: there is no such folder or split, or a shard is missing.
    """
    folder = locate_folder(path, root)
    if (folder / "dataset_dict.json").is_file():
        splits = _read_json(folder / "dataset_dict.json", path).get("splits")
        names = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
        name = _choose_split(names, split, path)
        return ArrowShards(finished), _saved_shards(folder / name, f"{name}/", path)
    if (folder / "state.json").is_file():
        if split is not None:
            raise DataFault(f"{path}: is one split, and has none named {split!r}", "remove `split`")
        return ArrowShards(finished), _saved_shards(folder, "", path)
    return ParquetShards(finished), _parquet_shards(folder, split, path)


def _choose_split(names: list[str], split: str | None, path: str) -> str:
    listed = ", ".join(map(repr, names[:20])) or "none"
    if split is None and len(names) != 1:
        raise DataFault(f"{path}: has several splits, or none: {listed}", "name one of them in `split`")
    if split is not None and split not in names:
        raise DataFault(f"{path}: has no split {split!r}; its splits are {listed}", "name one of them in `split`")
    return names[0] if split is None else split


def _saved_shards(folder: Path, above: str, path: str) -> list[DataFile]:
    """Returns the files that a split's `state.json` lists."""
    state = _read_json(folder / "state.json", path)
    listed = state.get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed] if listed else []
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataFault(
            f"{path}: its rows are selected by a file of indices, as old versions of `datasets` wrote it",
            "load it and save it again with a newer version: dataset.flatten_indices().save_to_disk(…)",
        )
    if not names:
        raise DataFault(f"{path}: state.json lists no file", REMEDY)
    files = []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise DataFault(f"{path}: state.json lists something that is no file of its folder", "save it again")
        files.append(DataFile(folder / name, path, f"{above}{name}"))
        if not files[-1].path.is_file():
            raise files[-1].fault("a shard that state.json lists is missing", COPY)
    if len(set(names)) < len(names):
        raise DataFault(f"{path}: state.json lists a file twice: its records would count twice", "save it again")
    return files


def _parquet_shards(folder: Path, split: str | None, path: str) -> list[DataFile]:
    """Returns the files `train-00000-of-00002.parquet` or `train.parquet` of the folder or its `data`, or all in
    `train`.
    """
    by_split: dict[str, list[tuple[str, re.Match[str] | None]]] = {}
    for place in (folder, folder / "data"):
        above = "" if place == folder else "data/"
        entries = sorted(place.iterdir()) if place.is_dir() else []
        for entry in entries:
            match = PARQUET_NAME.fullmatch(entry.name)
            if match is not None and entry.is_file():
                by_split.setdefault(match["split"], []).append((f"{above}{entry.name}", match))
            elif entry.is_dir() and entry.name != "data":
                inside = sorted(file.name for file in entry.glob("*.parquet") if file.is_file())
                if inside:
                    by_split.setdefault(entry.name, []).extend((f"{above}{entry.name}/{name}", None) for name in inside)
    if not by_split:
        raise DataFault(f"{path}: holds no data set of `datasets`", REMEDY)
    name = _choose_split(sorted(by_split), split, path)
    files = [DataFile(folder / file, path, file) for file, _ in by_split[name]]
    shards = [match for _, match in by_split[name] if match is not None and match["count"] is not None]
    counts = {int(match["count"]) for match in shards}
    folders = {file.rpartition("/")[0] for file, _ in by_split[name]}
    if len(folders) > 1 or (shards and (len(counts) > 1 or len(shards) < len(files))):
        raise DataFault(
            f"{path}: split {name!r} is there in several versions", "keep one of them, or use `source: parquet`"
        )
    if shards and [int(match["number"]) for match in shards] != list(range(counts.pop())):
        raise DataFault(f"{path}: a shard of split {name!r} is missing", COPY)
    return files


def _read_json(file: Path, path: str) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            content = json.loads(stream.read(MAX_JSON))
    except (OSError, ValueError, RecursionError) as error:
        raise DataFault(f"{path}: {file.name} can't be read, or is no JSON", "save the data set again") from error
    if not isinstance(content, dict):
        raise DataFault(f"{path}: {file.name} is not as `datasets` writes it", "save the data set again")
    return content


@final
class ArrowShards:
    """Files of Arrow's stream format, mapped into memory. `finished`: see `problems.Problems`."""

    def __init__(self, finished: bool = False) -> None:
        self._finished = finished

    def count_rows(self, file: DataFile, names: tuple[str, ...], types: ColumnTypes) -> int:
        """See `ShardFormat`."""
        with pa.memory_map(str(file.path)) as stream, pa.ipc.open_stream(stream) as reader:
            stored = find_columns(names, reader.schema.names, file, finished=self._finished)
            for name in names:
                types.check(name, reader.schema.field(stored[name]).type, file)
            return sum(batch.num_rows for batch in reader)

    def batches(self, file: DataFile, part: slice, names: tuple[str, ...], max_bytes: int) -> Iterator[tuple[int, Any]]:
        """See `ShardFormat`. Each batch is validated: a damaged one may point anywhere."""
        rows, first = max(1, min(BATCH_ROWS, MAX_BATCH_BYTES // max_bytes)), 0
        with pa.memory_map(str(file.path)) as stream, pa.ipc.open_stream(stream) as reader:
            stored = find_columns(names, reader.schema.names, file, finished=self._finished)
            for whole in reader:
                begin, end = max(part.start - first, 0), min(part.stop - first, whole.num_rows)
                if begin < end:
                    batch = select_columns(whole, stored)
                    batch.validate(full=True)
                    for start in range(begin, end, rows):
                        yield first + start, batch.slice(start, min(rows, end - start))
                first += whole.num_rows
                if first >= part.stop:
                    return

    def list_columns(self, file: DataFile) -> list[str]:
        """See `ShardFormat`."""
        with pa.memory_map(str(file.path)) as stream, pa.ipc.open_stream(stream) as reader:
            return list(reader.schema.names)

    def read_metadata(self, file: DataFile) -> Mapping[bytes, bytes]:
        """Returns the file's metadata about its columns."""
        with pa.memory_map(str(file.path)) as stream, pa.ipc.open_stream(stream) as reader:
            return reader.schema.metadata or {}

    def describe(self, file: DataFile, error: Exception) -> DataFault:
        """See `ShardFormat`."""
        return file.unreadable(error)


@final
class NamedClasses:
    """Shards whose class labels are their names, where names are declared."""

    def __init__(self, shards: ArrowShards | ParquetShards, columns: Columns, label: Label | None) -> None:
        self._shards, self._label = shards, label
        self._named = named_columns(columns, label)
        self._first: dict[str, list[str]] | None = None

    def count_rows(self, file: DataFile, names: tuple[str, ...], types: ColumnTypes) -> int:
        """See `ShardFormat`.

        Raises:
            DataFault: a class of the label is not declared, or a shard names other classes than the first.
        """
        count, classes = self._shards.count_rows(file, names, types), self._classes(file)
        self._first = classes if self._first is None else self._first
        if any(classes.get(name) != self._first.get(name) for name in names):
            # A unit would be a name in one shard and a number in another.
            raise file.fault("its columns name other classes than those of the first shard", "save the data set again")
        if self._label is not None:
            check_classes(classes, self._label, file.name)
        return count

    def batches(self, file: DataFile, part: slice, names: tuple[str, ...], max_bytes: int) -> Iterator[tuple[int, Any]]:
        """See `ShardFormat`."""
        classes = {name: values for name, values in self._classes(file).items() if name in names}
        for first, batch in self._shards.batches(file, part, names, max_bytes):
            yield first, name_classes(batch, classes)

    def list_columns(self, file: DataFile) -> list[str]:
        """See `ShardFormat`."""
        return self._shards.list_columns(file)

    def describe(self, file: DataFile, error: Exception) -> DataFault:
        """See `ShardFormat`."""
        return self._shards.describe(file, error)

    def _classes(self, file: DataFile) -> dict[str, list[str]]:
        """Returns the names of the classes of each column that has some and whose names are declared."""
        try:
            info = json.loads(self._shards.read_metadata(file).get(b"huggingface", b"{}"))["info"]["features"]
            features = dict(info)
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
        found = {}
        for name, feature in features.items():
            values = (
                feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
            )
            column = normalise_text(name)
            if column in self._named and isinstance(values, list) and all(isinstance(value, str) for value in values):
                found[column] = values
        return found
