"""Origin of a run's model and records, and what was tried on its program: known before anything is spent.

Processes of a run compare digests of weights and of training records before it begins; those are in memory only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dprecipe import __version__
from dprecipe.data.records import Records, RecordSource
from dprecipe.data.storage import text_arrays
from dprecipe.faults import UsageFault
from dprecipe.models.public_record import InitialWeights
from dprecipe.privacy.ledger import Ledger
from dprecipe.release.facts import CheckResult, Origin, ReleasedTensor, RunFacts, commit_to_data, list_versions
from dprecipe.release.untrusted import one_line
from dprecipe.training.probe.program import Check
from dprecipe.training.program.records import CHUNK_RECORDS
from dprecipe.training.run.folder import RunFolder

RULES = 1
"""The rules of training: how a step samples, clips and adds noise, and what an attempt leaves to the next one. A change
after which the attempts of one run would not be one run is another number."""
UNTESTED = "this version was not tested on CUDA"
"""Until `make gpu-check` has passed somewhere: docs/project/gpu.md."""

Private = Mapping[str, Sequence[NDArray[Any] | bytes] | None]
"""The data that an attempt commits to under a key, by the name in the ledger: `commitment` is for the training records;
None for records of a custom kind, which can't be committed to."""


@dataclass(frozen=True, slots=True)
class RunProvenance:
    """The half of a certificate's recorded facts that no step changes."""

    checks: tuple[Check, ...]
    device: torch.device
    model: Origin = "recipe"
    data: Origin = "recipe"
    initial: InitialWeights | None = None
    """The file whose weights the model starts from, where the recipe names one."""

    def facts(self, tensors: Sequence[ReleasedTensor], commitment: str | None, started: str, finished: str) -> RunFacts:
        """Returns the facts of a run that lost no step and publishes no score; `started` and `finished` are ISO
        8601."""
        return RunFacts(
            checks=tuple(CheckResult(c.id, c.text, c.passed, c.measured) for c in self.checks),
            versions=list_versions(),
            device=device_name(self.device),
            started=started,
            finished=finished,
            commitment=commitment,
            model=self.model,
            data=self.data,
            initial=self.initial,
            tensors=tuple(tensors),
        )

    def identity(self, folder: RunFolder, private: Private) -> dict[str, Any]:
        """Returns what every attempt of a run records about itself in the ledger, and what must be the same in all of
        them."""
        identity: dict[str, Any] = {"rules": RULES, "model": self.model, "data": self.data}
        for name, parts in private.items():
            identity[name] = None if parts is None else commit_to_data(folder.commitment_key, *map(as_bytes, parts))
        return identity if self.initial is None else {**identity, "initial_weights": self.initial.digest}


def as_bytes(part: NDArray[Any] | bytes) -> bytes | memoryview:
    """Returns a part as `commit_to_data` takes it."""
    return part if isinstance(part, bytes) else np.ascontiguousarray(part).data


def digest_records(records: object, private: Private) -> bytes:
    """Returns a digest of the training records as the run takes them, in memory alone: what an account knows data by
    that came from no file. Two recipes that take other columns of one table have two.

    `private`: what the attempt commits to, for runs whose records have no arrays (votes).

    Raises:
        UsageFault: they are a custom source, about which nothing is known.
    """
    parts = private_of(records) or private.get("commitment")
    if not parts:
        raise UsageFault(
            "the training records are a source from Python, and an account can't tell one from another",
            "pass two arrays or dprecipe.Records as `train`, or name a file in the recipe",
        )
    digest = hashlib.sha256(b"dprecipe data set\0records\0")
    for part in parts:
        content = memoryview(as_bytes(part))
        kind = "" if isinstance(part, bytes) else f"{part.dtype.str}{part.shape}"
        digest.update(f"{kind} {content.nbytes}\0".encode())
        digest.update(content)
    return digest.digest()


def private_of(records: object) -> list[NDArray[Any] | bytes] | None:
    """Returns the arrays of training records, and their texts that a paid step will encode; None for a kind of our
    own."""
    if not isinstance(records, Records):
        return None
    arrays = [array for array in (records.features, records.labels, records.units) if array is not None]
    return [*arrays, *(part for name in sorted(records.texts) for part in _texts_of(name, records.texts[name].values))]


def _texts_of(name: str, values: Sequence[str]) -> list[NDArray[Any] | bytes]:
    return [json.dumps(name).encode(), *text_arrays(values)]


OTHERS = {
    "commitment": "other training records",
    "public": "other public records",
    "initial_weights": "other initial weights",
    "partition": "another key of its partition",
}
"""Descriptions of what an attempt can differ in."""


def check_identity(identity: Mapping[str, Any], before: Ledger | None) -> None:
    """Checks that a resumed run goes on by the rules, with the records and the kind of model it was started with.

    Raises:
        UsageFault: it was started with others.
    """
    for earlier in () if before is None else before.programs:
        if earlier.get("rules") != identity["rules"]:
            raise UsageFault(
                f"this run was started by other rules of training than those of dprecipe {__version__}",
                f"resume it with dprecipe {name_version(earlier)}, or start a new run with --out",
            )
        for name, value in identity.items():
            if earlier.get(name) != value:
                raise UsageFault(
                    f"this run was started with {OTHERS.get(name, f'its {name} from elsewhere')}",
                    "resume with what it was started with, or start a new run with --out",
                )


def name_version(program: Mapping[str, Any]) -> str:
    """Names the version that made an attempt, by what its ledger says."""
    return one_line(str(program.get("version", "as it was then")))[:40]


def check_trial(is_trial: bool, before: Ledger | None) -> None:
    """Refuses to resume one of a tuned run's runs by itself: its own release would claim the cost of one run, though it
    was chosen among several.

    Raises:
        UsageFault: it is to be gone on with as a run of its own, or a run of its own as one of several.
    """
    if any(earlier.get("trial", False) != is_trial for earlier in (() if before is None else before.programs)):
        raise UsageFault(
            "this folder is that of a run of its own" if is_trial else "this is one of the runs of a tuned run",
            "continue the tuned run with dprecipe tune RECIPE --resume; or start a new run with --out",
        )


def device_name(device: torch.device) -> str:
    """Returns the device as the certificate names it."""
    return f"cuda: {torch.cuda.get_device_name(device)} ({UNTESTED})" if device.type == "cuda" else device.type


def digest_set(records: RecordSource) -> str:
    """Returns a digest of training records; for a custom source, of all that it gives. A unit that differs between
    processes would be in two parts of a batch, and could move the sum twice as far as is accounted for."""
    private = private_of(records)
    return digest_of(_read_all(records) if private is None else private)


def _read_all(records: RecordSource) -> Iterator[NDArray[Any]]:
    yield np.array([len(records), records.unit_count])
    if records.units is not None:
        yield np.asarray(records.units)
    for start in range(0, len(records), CHUNK_RECORDS):
        yield from map(np.asarray, records.batch(slice(start, min(len(records), start + CHUNK_RECORDS))))


def digest_of(parts: Iterable[NDArray[Any] | bytes]) -> str:
    """Returns a digest of the numbers, their types and shapes; sent to other processes of the run and never written to
    disk."""
    digest = hashlib.sha256()
    for part in parts:
        kind = f"bytes {len(part)}" if isinstance(part, bytes) else f"{part.dtype.str} {part.shape}"
        digest.update(f"{kind}\0".encode())
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return digest.hexdigest()
