"""Weights that a private run starts from were not learned, without privacy, from the records that it protects."""

from __future__ import annotations

from pathlib import Path

from dprecipe.contract.plan import Plan
from dprecipe.data.schema import AnySource
from dprecipe.faults import DataFault
from dprecipe.models.public_record import InitialWeights, UsedRecords
from dprecipe.training.program.file_digests import digest_files


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
