"""All records of a run, opened and checked before anything is built: the faults of all sources at once. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, cast, final

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.copies import find_folder
from dprecipe.data.counts import SourceCounts, as_text
from dprecipe.data.disjoint import check_files, check_records
from dprecipe.data.facts import Role
from dprecipe.data.held import HeldRecords
from dprecipe.data.load import open_all_tokens, read
from dprecipe.data.preprocess import is_pending
from dprecipe.data.problems import combine_faults
from dprecipe.data.python_records import records_from_python
from dprecipe.data.records import Records, RecordSource
from dprecipe.data.schema import AnySource
from dprecipe.data.tokens import TOKENIZER, LibraryTokens, SequenceTokens
from dprecipe.faults import DataFault, UsageFault
from dprecipe.models.schema import Pretrained
from dprecipe.progress import report_progress
from dprecipe.screen import is_watched, write_note

T = TypeVar("T")


@final
@dataclass(slots=True)
class Gathered:
    """The records of each role, whose steps of preprocessing may not have been taken yet, and what became of those
    that were read from files."""

    sources: dict[Role, RecordSource] = field(default_factory=dict)
    counts: dict[Role, SourceCounts] = field(default_factory=dict)
    tokenizer: bytes | None = None
    """The file of the recipe's tokeniser, which a release needs."""

    def prepared(self, role: Role) -> RecordSource | None:
        """Returns the records of a role as a run reads them; None where there are none. They are kept once."""
        source = self.sources.get(role)
        if isinstance(source, Records):
            if source.awaits_slow_steps and not is_watched():  # a terminal shows progress, which counts records
                report_progress("computing features of images")
            source = self.sources[role] = source.prepared()
        return source

    def write(self, private: Path) -> None:
        """Writes `data-check.json` and `data-check.txt`, counts of private records, into a run's private folder, and
        the tokeniser, for the release.

        Raises:
            RunFailed: the disk refuses the tokeniser.
        """
        if self.tokenizer is not None:
            with durable.writing(private / TOKENIZER, "make room"):
                durable.replace_file(private / TOKENIZER, self.tokenizer)
        content = {
            "schema": "dprecipe.data-check/v1",
            "sources": {role: counts.as_json() for role, counts in self.counts.items()},
        }
        for name, text in (
            ("data-check.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n"),
            ("data-check.txt", as_text(self.counts)),
        ):
            try:
                durable.replace_file(private / name, text.encode())
            except OSError as error:  # no run needs it
                write_note(f"{private / name}: can't be written ({error.strerror}); the run goes on without it")


def _waits_for_stages(plan: Plan, value: object) -> bool:
    """Returns True if all paid steps of the plan are pending on an object from Python, or if there is no object."""
    if not plan.stages or isinstance(value, HeldRecords):
        return True
    steps = [plan.data.preprocess[stage.step] for stage in plan.stages]
    return type(value) is Records and [step for step in value.pending if is_pending(step)] == steps


def gather_records(plan: Plan, root: Path, objects: Mapping[Role, object | None] | None = None) -> Gathered:
    """Gathers what a plan reads, from its files or from the `objects` that Python passed instead of them.

    Raises:
        UsageFault: an object is nothing to read from.
        DataFault: anything is not what the recipe declares: all faults of all sources.
    """
    objects = objects or {}
    if objects.get("public") is not None and not mechanism_of(plan.mechanism).has_student:
        raise UsageFault(f"mechanism {plan.mechanism} asks nothing of public records", "leave `public` out")
    if objects.get("train") is not None and not plan.mechanism_plan.reads_training_records:
        raise UsageFault("the votes come from a file, so no training records are read", "leave `train` out")
    train = objects.get("train")
    if train is not None and not isinstance(train, HeldRecords) and plan.data.split is not None:
        raise UsageFault(
            "data.test.split cuts held-out records out of the source in the recipe, and `train` replaces that source",
            "pass the records as they are (dprecipe.Records.from_pandas and its like), and the recipe divides them; or "
            "remove data.test from the recipe, divide the records by whom they belong to, and pass `train` and `test`",
        )
    if objects.get("test") is not None and plan.data.split is not None:
        raise UsageFault("data.test.split takes `test` out of the training records", "leave `test` out")
    for role, value in objects.items():
        if value is not None and not _waits_for_stages(plan, value):
            raise UsageFault(
                f"`{role}` comes from Python, prepared as the model takes it, and paid steps have to run first",
                "name a file in the recipe, or pass a table or arrays as they are: dprecipe.Records.from_pandas, "
                "from_arrow, from_datasets or from_torch",
            )
    gathered = Gathered()
    faults: list[DataFault] = []

    def attempt(action: Callable[[], T]) -> T | None:
        try:
            return action()
        except DataFault as fault:
            faults.append(fault)
            return None

    for role in cast("tuple[Role, ...]", ("train", "public", "test")):
        value = objects.get(role)
        if value is not None and not isinstance(value, HeldRecords):
            source = attempt(partial(records_from_python, value, plan.data, role))
            if source is not None:
                gathered.sources[role] = source
    declared: dict[Role, AnySource | None] = {
        # Votes that were cast elsewhere stand for the training records.
        "train": plan.data.train if plan.mechanism_plan.reads_training_records else None,
        "public": plan.data.public,
        "test": plan.data.held_out,
    }
    tokens = attempt(lambda: open_all_tokens(plan.data.preprocess, root))
    if isinstance(tokens, LibraryTokens | SequenceTokens):
        gathered.tokenizer = tokens.content
    attempt(lambda: check_files(plan.data, root))
    copies = find_folder(plan.runtime.prepared, plan.source.file)
    # An account, and weights that have seen records, are compared with the files: these must be what is trained on.
    is_compared = plan.budget.account is not None or (
        isinstance(plan.model, Pretrained) and plan.model.init is not None
    )
    for role, block in declared.items():
        value = objects.get(role)
        if role == "test" and value is None and plan.data.split is not None:
            value = train  # cut out of what was passed
        held = value if isinstance(value, HeldRecords) else None
        if held is not None and block is None:  # described as the training records are
            block = plan.data.train.model_copy(update={"records": None})
        if block is None or (value is not None and held is None):
            continue
        identity = plan.mechanism_plan.identity if role == "train" else None
        both = attempt(partial(read, block, plan.data, root, role, identity, copies, held, tokens, is_compared))
        if both is not None:
            gathered.sources[role], gathered.counts[role] = both
    if not faults:
        files = {role for role in gathered.counts if objects.get(role) is None}
        read_from_files = {role: source for role, source in gathered.sources.items() if role in files}
        attempt(lambda: check_records(plan.data, root, read_from_files.get))
    if faults:
        raise combine_faults(faults)
    return gathered
