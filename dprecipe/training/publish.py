"""From a finished run to `release/`: weights, description, metrics, certificate, report; whole or not at all."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from dprecipe.data.records import Records
from dprecipe.faults import CertificateInvalid, RunFailed, UsageFault
from dprecipe.mechanisms.pate.theory.sanitise import Sanitised
from dprecipe.mechanisms.plan import Plan
from dprecipe.models.file import describe
from dprecipe.models.hub_config import Config
from dprecipe.models.origin import InitialWeights
from dprecipe.models.schema import Model
from dprecipe.privacy.ledger import Ledger, held
from dprecipe.progress import say
from dprecipe.release import folder as release_folder
from dprecipe.release.facts import CheckResult, Origin, PublicScore, RunFacts, commit, package_versions
from dprecipe.release.untrusted import to_bytes
from dprecipe.release.verify import verify
from dprecipe.training.evaluate import Score
from dprecipe.training.folder import WHEN, RunFolder
from dprecipe.training.probe.program import Check
from dprecipe.training.released import tensors_of


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run has to show."""

    weights: Mapping[str, Tensor]
    model: Model | None
    """The recipe's block; None for a module that came from Python."""
    identity: Mapping[str, Any]
    """As the ledger has it: `identity_of`."""
    checks: tuple[Check, ...]
    device: torch.device
    score: Score | None
    test_from_python: bool
    trained: frozenset[str] = frozenset()
    """Names of `weights` that noisy steps made."""
    sanitised: Sanitised | None = None
    """What the run published of its votes' cost."""
    initial: InitialWeights | None = None
    """The file that the model started from."""
    config: Config | None = None
    """What a model of transformers is built from."""
    steps_lost: int = 0
    """Steps that were charged and are not in the weights."""
    write: Callable[[Path], None] = lambda path: None
    """Puts further files into a release."""


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a release."""

    epsilon: float
    """What the certificate claims, computed from the ledger."""
    verified: bool
    """It verifies; not so where an attempt's randomness was fixed, which says itself that it is no release."""


def publish(plan: Plan, folder: RunFolder, started: datetime, finished: Finished) -> Published:
    """Write `release/`, verified as a stranger would. The ledger is held so long: no other process can resume the run
    meanwhile.

    Raises:
        RunFailed: the disk refuses, the ledger does not support a certificate, or the release does not verify: it is
            then in `private/`; the run stays resumable.
    """
    say("working out the certificate, and asking the second library")
    with held(folder.ledger) as ledger:
        return _publish(plan, folder, ledger, started, finished)


def _publish(plan: Plan, folder: RunFolder, ledger: Ledger, started: datetime, finished: Finished) -> Published:
    identity = finished.identity
    public = plan.publishes_scores and not finished.test_from_python
    facts = RunFacts(
        checks=tuple(CheckResult(c.id, c.text, c.passed, c.measured) for c in finished.checks),
        versions=package_versions(),
        device=device_name(finished.device),
        started=started.isoformat(timespec="seconds"),
        # A clock that was set back meanwhile has no say.
        finished=max(started, datetime.now(UTC)).isoformat(timespec="seconds"),
        steps_lost=finished.steps_lost,
        insecure_seed=ledger.insecure_seed,
        commitment=identity["commitment"],
        score=_published(finished.score) if public else None,
        sanitised=finished.sanitised,
        model=identity["model"],
        data=identity["data"],
        initial=finished.initial,
        tensors=tensors_of(
            finished.weights, finished.trained, identity["model"] == "python", finished.initial is not None
        ),
    )
    history = _history(plan, folder, finished.score) if public else []
    description = describe(finished.model, plan.data, finished.config)

    def write(path: Path) -> None:
        cpu = {name: value.detach().to("cpu").contiguous() for name, value in finished.weights.items()}
        try:
            save_file(cpu, path / "model.safetensors")
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from None
        (path / "model.json").write_bytes(to_bytes(description))
        finished.write(path)

    def check(draft: Path) -> None:
        say("verifying the release as a stranger would")
        hold_verified(draft, folder.private / "unverified-release", ledger.insecure_seed is not None)

    epsilon = release_folder.publish(folder.release, plan, ledger, facts, history, write, check)
    return Published(epsilon, ledger.insecure_seed is None)


def hold_verified(draft: Path, kept: Path, insecure: bool) -> None:
    """The release in `draft` verifies; but for its fixed randomness, where that is `insecure`.

    Raises:
        RunFailed: it does not; it is moved to `kept`, in private/, for whoever looks into it.
    """
    try:
        verify(draft, max_seconds=None, max_memory=None)  # nobody else made it
    except CertificateInvalid as invalid:
        failures = [line for line in invalid.failures if not insecure or not line.startswith(INSECURE)]
        if not failures:
            return
        shutil.rmtree(kept, ignore_errors=True)
        os.rename(draft, kept)
        raise RunFailed(
            f"the release does not verify, so there is none: {'; '.join(failures)}",
            f"don't publish it (it is in {kept}); see to what is named, then continue with --resume, which spends "
            "nothing more; if it stays, please report this",
        ) from None


INSECURE = "randomness.insecure_seed"


def _history(plan: Plan, folder: RunFolder, score: Score | None) -> list[dict[str, float]]:
    """The public scores along the run that are whole; what is damaged in the log is left out, and told."""
    points, damaged = folder.history()
    names = {*WHEN, *(() if score is None else score.metrics)}
    sound = [point for point in points if names <= point.keys() and _possible(plan, point)]
    damaged += len(points) - len(sound)
    if damaged:
        say(f"{folder.metrics}: damaged lines, left out of metrics.json: {damaged}")
    return [point for point in sound if all(map(math.isfinite, point.values()))]


def _possible(plan: Plan, point: Mapping[str, float]) -> bool:
    return point["step"] <= plan.length.steps and 0 <= point["epsilon"] <= plan.budget.epsilon


def _published(score: Score | None) -> PublicScore | None:
    """A diverged model has no loss that could be stated: it is released without a score."""
    if score is None or not math.isfinite(score.loss):
        return None
    return PublicScore(score.accuracy, score.loss, score.records, score.mean_absolute_error)


def identity_of(
    folder: RunFolder,
    private: Sequence[NDArray[Any]] | None,
    model: Origin,
    data: Origin,
    initial: InitialWeights | None = None,
) -> dict[str, Any]:
    """Where the model, its first weights and the records came from, and a keyed commitment to what is private (`None`
    for records of a kind of our own, which can't be committed to).

    The same in every attempt of a run; the ledger holds it.
    """
    committed = None
    if private is not None:
        committed = commit(folder.commitment_key, *(np.ascontiguousarray(array).data for array in private))
    found = {"model": model, "data": data, "commitment": committed}
    return found if initial is None else {**found, "initial_weights": initial.digest}


def private_of(records: object) -> list[NDArray[Any]] | None:
    """The arrays of training records; None for a kind of our own."""
    if not isinstance(records, Records):
        return None
    return [array for array in (records.features, records.labels, records.units) if array is not None]


OTHERS = {
    "commitment": "other training records",
    "public": "other public records",
    "initial_weights": "other initial weights",
    "partition": "another key of its partition",
}
"""What an attempt can differ in, in words."""


def hold_identity(identity: Mapping[str, Any], before: Ledger | None) -> None:
    """A resumed run goes on with the records and the kind of model it was started with.

    Raises:
        UsageFault: it was started with others.
    """
    for earlier in () if before is None else before.programs:
        for name, value in identity.items():
            if earlier.get(name) != value:
                raise UsageFault(
                    f"this run was started with {OTHERS.get(name, f'its {name} from elsewhere')}",
                    "resume with what it was started with, or start anew with --out",
                )


UNTESTED = "this version was not tested on CUDA"
"""Until `make gpu-check` has passed somewhere: docs/gpu.md."""


def device_name(device: torch.device) -> str:
    """The device as the certificate names it."""
    return f"cuda: {torch.cuda.get_device_name(device)} ({UNTESTED})" if device.type == "cuda" else device.type
