"""The files of data that a recipe names: that they are there, before a run plans to read them."""

from __future__ import annotations

from pathlib import Path

from dprecipe.contract.table import mechanism_of
from dprecipe.data.files import check_present
from dprecipe.data.problems import combine_faults
from dprecipe.faults import DataFault
from dprecipe.recipe.read import Loaded, LoadedPublic


def check_files(loaded: Loaded | LoadedPublic, root: Path, reads_training: bool = True) -> None:
    """Checks that the files of data are there. `reads_training`: those of `data.train` are read.

    Raises:
        DataFault: some are not: all of them.
    """
    data = loaded.recipe.data
    sources = [data.train if reads_training else None, data.public, data.test_source]
    named = [
        (path, key == "path" and bool(source.folder_suffixes))
        for source in sources
        if source is not None
        for key, path in source.files.items()
    ]
    if isinstance(loaded, Loaded):
        block = loaded.recipe.mechanism
        private = mechanism_of(block.kind).private_files(block)
        named += [(path, False) for path in private.values()]
    faults: list[DataFault] = []
    for path, is_folder in named:
        try:
            check_present(path, root, is_folder)
        except DataFault as fault:
            faults.append(fault)
    if faults:
        raise combine_faults(faults)
