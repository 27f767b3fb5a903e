"""The table of sources. A new one is two blocks and a reader here, and a line below and in `base.READERS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union, get_args

from pydantic import Field

from dprecipe.data.sources.arrays import Digits, Idx, Npz, PublicDigits, PublicIdx, PublicNpz
from dprecipe.data.sources.base import Labelled, SourceBlock
from dprecipe.data.sources.elsewhere import Elsewhere
from dprecipe.data.sources.image_folder import ImageFolder, PublicImageFolder
from dprecipe.data.sources.queries import DuckDb, Postgres, PublicDuckDb, PublicPostgres
from dprecipe.data.sources.tables import (
    Csv,
    DatasetFolder,
    JsonLines,
    Parquet,
    PublicCsv,
    PublicDatasetFolder,
    PublicJsonLines,
    PublicParquet,
)

SOURCES: tuple[tuple[type[Labelled], type[SourceBlock]], ...] = (
    (Digits, PublicDigits),
    (Idx, PublicIdx),
    (Csv, PublicCsv),
    (Parquet, PublicParquet),
    (JsonLines, PublicJsonLines),
    (Npz, PublicNpz),
    (ImageFolder, PublicImageFolder),
    (DatasetFolder, PublicDatasetFolder),
    (DuckDb, PublicDuckDb),
    (Postgres, PublicPostgres),
)
"""Each with labels, and as unlabelled public records."""


def kind_of(block: type[SourceBlock]) -> str:
    """Returns the word that names a source in a recipe."""
    return str(get_args(block.model_fields["source"].annotation)[0])


AnySource = SourceBlock
if TYPE_CHECKING:
    Source = Labelled
    TrainSource = Labelled
    PublicSource = SourceBlock
else:
    Source = Annotated[Union[tuple(labelled for labelled, _ in SOURCES)], Field(discriminator="source")]  # noqa: UP007
    TrainSource = Annotated[Union[*(labelled for labelled, _ in SOURCES), Elsewhere], Field(discriminator="source")]
    """Where private records come from: of a source, or from `elsewhere`."""
    PublicSource = Annotated[Union[tuple(public for _, public in SOURCES)], Field(discriminator="source")]  # noqa: UP007
    """Where unlabelled public records come from. Their labels may be named and are never read."""
