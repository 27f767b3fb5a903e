"""From a finished run to `release/`: weights, description, metrics, certificate, report; whole or not at all."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dprecipe.data.records import Records
from dprecipe.models.file import describe
from dprecipe.planning.model import Plan
from dprecipe.privacy.ledger import Ledger
from dprecipe.release import folder as release_folder
from dprecipe.release.facts import CheckResult, PublicScore, RunFacts, commit, package_versions
from dprecipe.training.evaluate import Score
from dprecipe.training.folder import RunFolder
from dprecipe.training.program import Program


def publish(
    plan: Plan,
    folder: RunFolder,
    program: Program,
    weights: dict[str, Tensor],
    ledger: Ledger,
    started: datetime,
    score: Score | None,
) -> float:
    """Write `release/`; returns the ε that the certificate claims, computed from the ledger.

    Raises:
        RunFailed: the disk refuses, or the ledger does not support a certificate; the run stays resumable.
    """
    identity = identity_of(folder, program)
    public = plan.data.test is not None and plan.data.test.access == "public" and not program.sets.custom_test
    facts = RunFacts(
        checks=tuple(CheckResult(c.id, c.text, c.passed, c.measured) for c in program.checks),
        versions=package_versions(),
        device=device_name(program.device),
        started=started.isoformat(timespec="seconds"),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        insecure_seed=ledger.insecure_seed,
        commitment=identity["commitment"],
        score=_published(score) if public else None,
        model=identity["model"],
        data=identity["data"],
    )
    history = []
    if public:
        history = [point for point in folder.history() if all(map(math.isfinite, point.values()))]

    def write(path: Path) -> None:
        cpu = {name: value.detach().to("cpu").contiguous() for name, value in weights.items()}
        save_file(cpu, path / "model.safetensors")
        description = describe(None if program.custom_model else plan.model, plan.data)
        (path / "model.json").write_text(json.dumps(description, indent=1), encoding="utf-8")

    return release_folder.publish(folder.release, plan, ledger, facts, history, write)


def _published(score: Score | None) -> PublicScore | None:
    """A diverged model has no loss that could be stated: it is released without a score."""
    if score is None or not math.isfinite(score.loss):
        return None
    return PublicScore(score.accuracy, score.loss, score.records)


def identity_of(folder: RunFolder, program: Program) -> dict[str, Any]:
    """Where the model and the records came from, and a keyed commitment to the records (`None` for a kind of our own).

    The same in every attempt of a run; the ledger holds it.
    """
    records = program.sets.train
    committed = None
    if isinstance(records, Records):
        parts = (array.data for array in (records.features, records.labels, records.units) if array is not None)
        committed = commit(folder.commitment_key, *parts)
    return {
        "model": "python" if program.custom_model else "recipe",
        "data": "python" if program.sets.custom else "recipe",
        "commitment": committed,
    }


def device_name(device: torch.device) -> str:
    """The device as the certificate names it."""
    return f"cuda: {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type
