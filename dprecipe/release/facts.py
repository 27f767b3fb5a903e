"""Facts that a run records about itself and no one can recompute: the recorded half of a certificate's inputs."""

from __future__ import annotations

import hashlib
import hmac
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from dprecipe import __version__
from dprecipe.contract.facts import Published
from dprecipe.contract.plan import PolicyRecord
from dprecipe.models.public_record import InitialWeights
from dprecipe.privacy.audit.results import Audit
from dprecipe.privacy.events import Charge, count_events
from dprecipe.privacy.ledger import Ledger
from dprecipe.release.charged_account import ChargedAccount

PACKAGES = ("dp-accounting", "numpy", "scipy", "scikit-learn", "torch", "lightning", "safetensors", "cryptography")
Origin = Literal["recipe", "python"]


MadeBy = Literal["noisy_steps", "seed", "file", "python"]
Dtype = Literal[
    "BOOL",
    "U8",
    "I8",
    "I16",
    "U16",
    "I32",
    "U32",
    "I64",
    "U64",
    "F8_E5M2",
    "F8_E4M3",
    "F16",
    "BF16",
    "F32",
    "F64",
    "C64",
]
"""The type of a tensor's numbers, as safetensors names it."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was tested on the program before it saw a private record; `measured` is in words.

    `text` is for the screen: a certificate has its own (`CertificatePart.list_checks`).
    """

    id: str
    text: str
    passed: bool
    measured: str = ""


@dataclass(frozen=True, slots=True)
class ReleasedTensor:
    """A tensor of `model.safetensors`, and where its values come from.

    `noisy_steps`: the mechanism. No noisy step changed the others: `seed`, the recipe's own initialisation; `file`,
    the declared initial weights; `python`, a module passed from Python.
    """

    name: str
    shape: tuple[int, ...]
    made_by: MadeBy
    dtype: Dtype = "F32"


@dataclass(frozen=True, slots=True)
class PublicScore:
    """The score of the released model on records that the recipe declares public: an accuracy (of several names, of
    records with every answer right), or a regression's error in the units of its predictions."""

    accuracy: float | None
    loss: float
    records: int
    mean_absolute_error: float | None = None
    full: Mapping[str, Any] = field(default_factory=dict)
    """Further scores of the same records, and those that take no model, by the names of the certificate's block."""


@dataclass(frozen=True, slots=True)
class KeptIterate:
    """The iterate that was released, where the recipe keeps the best one: the number of its steps, and of the iterates
    whose public scores were compared."""

    step: int
    looked_at: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts recorded while the run took place. Nothing in them may depend on private records.

    `score`: set only where `data.test.access` is public.
    `kept`: the iterate that is released, where the recipe keeps the best by that score.
    `published`: what the mechanism's own part of the certificate states; set only where the recipe publishes it, after
    its event was charged.
    `stages`: of each paid step of preprocessing, the digest of the constants that it released.
    `commitment`: the hexadecimal HMAC of the private data (see `commit_to_data`).
    `steps_lost`: steps that were charged and are not in the model.
    `started`, `finished`: ISO 8601, in UTC.
    `initial`: the file of weights that the recipe's model started from.
    `tensors`: all tensors of the release.
    `account`: what the data set's account said when the run was settled there; None where the recipe names none.
    `audit`: how the claim was attacked; None where the recipe asks for no audit.
    `data`: "python" where any set of records was passed from Python.
    `trainer`: "python" where any attempt's steps were taken by a trainer from Python.
    """

    checks: tuple[CheckResult, ...]
    versions: Mapping[str, str]
    device: str
    started: str
    finished: str
    steps_lost: int = 0
    insecure_seed: int | None = None
    commitment: str | None = None
    score: PublicScore | None = None
    kept: KeptIterate | None = None
    published: Published | None = None
    model: Origin = "recipe"
    data: Origin = "recipe"
    trainer: Origin = "recipe"
    initial: InitialWeights | None = None
    tensors: tuple[ReleasedTensor, ...] = ()
    stages: tuple[str, ...] = ()
    policies: tuple[PolicyRecord, ...] = ()
    account: ChargedAccount | None = None
    audit: Audit | None = None


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """Part of a ledger that goes into a certificate."""

    charges: tuple[Charge, ...]
    digest: str
    attempts: int
    stop_reason: str
    settled: int
    unsettled: int
    torn: bool

    @staticmethod
    def of(ledger: Ledger) -> SpentBudget:
        return SpentBudget(
            charges=ledger.charges,
            digest=ledger.digest,
            attempts=ledger.attempts,
            stop_reason=ledger.stop_reason or "interrupted",
            settled=count_events(ledger.settled),
            unsettled=count_events(ledger.unsettled),
            torn=ledger.torn,
        )


def list_versions() -> dict[str, str]:
    """Returns the installed versions of the packages that a run uses, by distribution name; nothing is imported."""
    return dict(_find_versions())


@cache
def _find_versions() -> Mapping[str, str]:
    """Once in a process: it goes on with the packages that it has imported."""
    versions = {"dprecipe": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def commit_to_data(key: bytes, *parts: bytes | memoryview) -> str:
    """Returns a commitment to private data: HMAC-SHA256 over the parts and their lengths, hexadecimal.

    Guarantees: without `key` (which stays in `private/`) it reveals nothing about the data; with it, anyone can check
    that given data are the ones that were used.
    Source: RFC 2104.
    """
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(memoryview(part).nbytes.to_bytes(8, "big"))
        mac.update(part)
    return mac.hexdigest()
