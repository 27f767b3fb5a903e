"""Digests of the files that a source reads.

Weights that saw public records name the files by them, and an account knows its data by them. Records and digests have
one content.

By them it is checked that weights that a private run starts from were not learned, without privacy, from the records
that it protects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dprecipe.contract.plan import Plan
from dprecipe.data.known_digests import State, state_of
from dprecipe.data.schema import AnySource
from dprecipe.faults import DataFault
from dprecipe.models.public_record import MAX_FILES, InitialWeights, UsedRecords
from dprecipe.release.untrusted import sha256_of


def digest_files(source: AnySource, root: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file by its name; for more than `MAX_FILES` files, one of the sorted digests of all
    of them."""
    digests = [(file, sha256_of(file)) for file in source.all_files(root)]
    if len(digests) > MAX_FILES:
        whole = hashlib.sha256("\n".join(sorted(digest for _, digest in digests)).encode()).hexdigest()
        return {f"{len(digests)} files": f"sha256:{whole}"}
    names: dict[str, str] = {}
    for file, digest in digests:
        name = file.name[:150]
        names[name if name not in names else f"{name} ({len(names) + 1})"] = digest
    return names


@contextmanager
def holding_still(source: AnySource | None, root: Path) -> Iterator[None]:
    """A block that reads a source's files more than once: they are the same files at its end, with the same times of
    change. None: it reads none.

    Raises:
        DataFault: one was changed or replaced meanwhile, or can't be read.
    """
    before = _list_states(source, root)
    yield
    if _list_states(source, root) != before:
        raise DataFault(
            f"{', '.join((source.files if source else {}).values()) or 'a source'}: changed while it was read",
            "start again when nothing writes to it",
        )


def _list_states(source: AnySource | None, root: Path) -> list[tuple[Path, State]]:
    try:
        return [] if source is None else [(file, state_of(file)) for file in source.all_files(root)]
    except OSError as error:
        raise DataFault(
            f"a file can't be read: {error.strerror}", "check that it is there, and its permissions"
        ) from None


def check_initial_weights(plan: Plan, root: Path, initial: InitialWeights | None) -> None:
    """Compares the training files with those that the weights say they were learned from or scored on.

    Files are compared by their content, wherever they lie; parts of one file whose ranges don't meet are other records.
    Weights that say nothing of their origin, and copies of records in other files, can't be recognised: that they are
    sound remains an assumption.

    Raises:
        DataFault: the weights have seen these records.
    """
    if initial is None or initial.learned is None:
        return
    source = plan.data.train
    digests = set(digest_files(source, root).values())
    for used in initial.learned.data:
        if _share_records(source, digests, used):
            raise DataFault(
                f"model.init: {initial.name} has seen the records of data.train: the recipe "
                f"{initial.learned.recipe.name} used them without privacy (as its data.{used.role}), so no noise could "
                "protect them any more",
                "start from other weights, or train on other records",
            )


def _share_records(source: AnySource, digests: set[str], used: UsedRecords) -> bool:
    if digests.isdisjoint(used.files.values()) and (digests or used.files or source.source != used.source):
        return False
    if source.part != used.part:
        return False
    if source.records is None or used.records is None:
        return True
    return source.records[0] < used.records[1] and used.records[0] < source.records[1]
