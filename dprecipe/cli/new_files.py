"""The files of new records that a command is given: what they are, by the model and by what training read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from dprecipe.data.columns import Columns
from dprecipe.data.files import DataFile
from dprecipe.data.images import ImageForm
from dprecipe.data.new_arrays import ArrayNames, NewArrays
from dprecipe.data.new_records import NewQuery, NewRecords, NewTables
from dprecipe.data.sources.arrays import AnyNpz
from dprecipe.data.sources.image_folder import AnyImageFolder
from dprecipe.data.sources.queries import AnyDuckDb, QueryResult
from dprecipe.data.sources.tables import TableOrImages
from dprecipe.faults import Fault, UsageFault
from dprecipe.models.file import ModelFile
from dprecipe.text.spelling import normalise_text

if TYPE_CHECKING:
    from dprecipe.data.schema import Data
    from dprecipe.release.verify import Verified

TABLE = re.compile(r"(?P<table>[A-Za-z_][A-Za-z0-9_]*)=(?P<path>.+)")
"""An argument that names a table of the release's query, and a file of it."""
ADDRESS = re.compile(r"(?:^|=)(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")

EXPORT = (
    "read data.train.query in the release's recipe, run it on your database and save its result as CSV "
    "(psql: \\copy (SELECT …) TO new.csv CSV HEADER), and name that file"
)


@final
@dataclass(frozen=True, slots=True)
class NewFiles:
    """Files as a command line names them. `table`: a CSV file that lists images; `image_column`, `delimiter`: of
    files, None where training's or the file's own are meant."""

    files: Sequence[Path]
    table: Path | None = None
    image_column: str | None = None
    delimiter: str | None = None


def read_training_data(release: Path, verified: Verified | None) -> Data | None:
    """Returns what the recipe in a release's certificate says of the records of training; None where there is no
    certificate to read. `verified`: what verifying has found; without it the certificate is not checked.
    """
    from dprecipe.recipe.read import read_source
    from dprecipe.release.folder import CERTIFICATE
    from dprecipe.release.rebuild import stated_source
    from dprecipe.release.schema import Statement
    from dprecipe.release.untrusted import ContentError, parse_object, read_bytes, validate_document

    try:
        if verified is not None:
            statement = verified.statement
        else:
            statement = validate_document(Statement, parse_object(read_bytes(release / CERTIFICATE), ""), "")
        return read_source(stated_source(statement.predicate)).recipe.data
    except (ContentError, Fault, OSError):
        return None


def check_given(named: NewFiles) -> None:
    """Checks, before any work is done, that all files are there.

    Raises:
        UsageFault: one is not.
    """
    for path in (*named.files, *(() if named.table is None else (named.table,))):
        if address := ADDRESS.search(str(path)):  # which may hold a password
            raise UsageFault(f"{address['scheme']}:…: no address is opened", "save the records as a file, and name it")
        match = TABLE.fullmatch(str(path))
        if not path.exists() and (match is None or not Path(match["path"]).exists()):
            raise UsageFault(f"{path}: there is no such file", "check the spelling of the path")


def open_new_records(named: NewFiles, model: ModelFile, data: Data | None) -> NewRecords:
    """Returns the records of files, which are checked when they are read.

    Raises:
        UsageFault: an option or an argument does not fit the model.
        DataFault: a file can't be read, or is of a table where the release's query is needed.
    """
    source = None if data is None else data.train
    if named.table is not None and model.columns is not None:
        raise UsageFault("--table lists the images of a folder, and the model reads columns", "leave it out")
    of_tables = [path for path in named.files if not path.exists()]
    if of_tables and isinstance(source, AnyDuckDb):
        return _open_query(named, source)
    if of_tables:
        remedy = EXPORT if isinstance(source, QueryResult) else "name files alone"
        raise UsageFault(f"{of_tables[0]}: names a table, and the release has no query of tables of files", remedy)
    files = [DataFile.of(path) for path in named.files]
    if model.columns is not None:
        tables = NewTables(files, model.columns, named.delimiter)
        if isinstance(source, QueryResult):
            _check_result(tables, model.columns, source)
        return tables
    shape = model.source_shape or ()
    form = None
    if len(shape) in (2, 3):
        form = ImageForm(shape if len(shape) == 3 else (*shape, 1), model.resize)
    table = None if named.table is None else DataFile.of(named.table)
    column, features = named.image_column, None
    if isinstance(source, AnyImageFolder) and table is not None:
        column = column or source.image_column
    elif isinstance(source, TableOrImages) and source.image is not None and table is None:
        column = column or source.image.column
    elif isinstance(source, AnyNpz):
        features = source.features
    return NewArrays(files, shape, form, table, ArrayNames(column, features, named.delimiter))


def _check_result(tables: NewTables, columns: Columns, source: QueryResult) -> None:
    """Checks that tables are such as the query's result; if they are those that it reads, it has to be run: here by
    DuckDB, and otherwise by the owner of the database."""
    present = {normalise_text(name) for name in tables.list_columns()}
    missing = next((name for name in columns if normalise_text(name) not in present), None)
    if missing is not None:
        raise tables.files[0].fault(
            f"has no column {missing!r}, which a query made in training",
            f"name the query's tables, and it is run on them: {_name_tables(source)}"
            if isinstance(source, AnyDuckDb)
            else EXPORT,
        )


def _name_tables(source: AnyDuckDb) -> str:
    return " ".join(f"{name}=FILE" for name in source.tables)


def _open_query(named: NewFiles, source: AnyDuckDb) -> NewQuery:
    tables: dict[str, list[DataFile]] = {name: [] for name in source.tables}
    example = _name_tables(source)
    for argument in named.files:
        match = TABLE.fullmatch(str(argument))
        if match is None or match["table"] not in tables:
            raise UsageFault(
                f"{argument}: names no table of the release's query, which has {', '.join(tables)}",
                f"name a file of each table: {example}",
            )
        tables[match["table"]].append(DataFile.of(Path(match["path"])))
    missing = [name for name, files in tables.items() if not files]
    if missing:
        raise UsageFault(f"the release's query also reads the table {missing[0]}", f"name a file of it: {example}")
    changed = {} if named.delimiter is None else {"delimiter": named.delimiter}
    return NewQuery(source.model_copy(update=changed), tables)
