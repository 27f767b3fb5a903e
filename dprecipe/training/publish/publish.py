"""From a finished run to `release/`: weights, description, metrics, certificate, report; whole or not at all.

A run has learned a usable model if its weights are finite: others answer nothing. They are what noisy steps made, and
what is tried on them are synthetic records: that a run ends without a model is a function of what it may release, and
costs nothing.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from dprecipe.contract.facts import Published
from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.data.paid.constants import StageConstants
from dprecipe.data.schema import Data
from dprecipe.faults import NothingLearned
from dprecipe.models.file import describe_file
from dprecipe.models.hub_config import Config
from dprecipe.models.library_files import name_weights
from dprecipe.models.schema import Model
from dprecipe.privacy import accountants
from dprecipe.privacy.audit.program import make_audit
from dprecipe.privacy.audit.results import AuditBound, Guesses, Scores, SpecificationTest
from dprecipe.privacy.ledger import Ledger, lock_ledger
from dprecipe.privacy.rounding import round_up
from dprecipe.progress import report_progress
from dprecipe.release import folder as release_folder
from dprecipe.release.environment import record_environment
from dprecipe.release.facts import KeptIterate, PublicScore, RunFacts
from dprecipe.release.scores import score_block
from dprecipe.release.specification import describe_test
from dprecipe.release.stages import digest_constants
from dprecipe.release.tensors import releases_adapters
from dprecipe.release.untrusted import to_bytes
from dprecipe.timeline import phase
from dprecipe.training.audit.kept import join_audits, read_audit
from dprecipe.training.canaries.run import judge_guesses, judge_scores, refuse_release
from dprecipe.training.processes.sharded_weights import gathers_weights
from dprecipe.training.program.evaluate import HeldOut, Score
from dprecipe.training.program.program import StepwiseProgram, Synthetic
from dprecipe.training.publish import held
from dprecipe.training.publish.provenance import RunProvenance
from dprecipe.training.publish.released import tensors_of
from dprecipe.training.run.folder import TRAINING, WHEN, RunFolder


@dataclass(frozen=True, slots=True)
class Finished:
    """The results of a finished run."""

    weights: Mapping[str, Tensor]
    trained: frozenset[str]
    """Names of `weights` that noisy steps made."""
    model: Model | None
    """The recipe's block; None for a module that came from Python."""
    score: Score | None
    test_from_python: bool
    published: Published | None = None
    """The run's own published facts, for its mechanism's statement."""
    config: Config | None = None
    """The configuration that a model of transformers is built from."""
    steps_lost: int = 0
    """Steps that were charged and are not in the weights."""
    kept: KeptIterate | None = None
    """The iterate that `weights` are of, where the recipe keeps the best one."""
    guesses: Guesses | None = None
    """The run's guesses about its canaries, and how many were right, where it has any."""
    scores: Scores | None = None
    """The difference of their scores, where the plan specifies their distribution."""
    write: Callable[[Path], None] = lambda path: None
    """Puts further files into a release."""
    remarks: tuple[str, ...] = ()
    """Further remarks on the run, in words."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """The outcome of a release."""

    epsilon: float
    """The ε that the certificate claims, computed from the ledger."""
    verified: bool
    """The release verifies; not so where an attempt's randomness was fixed: it then says itself that it is no
    release."""


@phase("certificate")
def publish(
    plan: Plan,
    folder: RunFolder,
    started: datetime,
    provenance: RunProvenance,
    commitment: str | None,
    finished: Finished,
    constants: Sequence[StageConstants] = (),
) -> PublishedRun:
    """Writes `release/`, and verifies it with nothing but its files. The ledger is locked meanwhile: no other process
    can resume the run.

    Raises:
        RunFailed: the disk refuses, the ledger does not support a certificate, or the release does not verify: it is
            then in `private/`; the run stays resumable.
    """
    report_progress("computing the certificate, and its ε again with an independent library")
    with lock_ledger(folder.ledger) as ledger:
        facts = run_facts(plan, ledger, started, provenance, commitment, finished, constants)
        test = test_specification(plan, ledger, finished.scores)
        bound = judge_canaries(plan, folder, ledger, finished.guesses, test)
        if bound is not None:
            facts = replace(facts, audit=make_audit(plan.digest, bounds=(bound,), specification=test))
        description = describe_release(plan, provenance, finished, constants) if plan.has_model else None
        history = _history(plan, folder, finished.score) if _is_public(plan, finished) else []

        def write(path: Path) -> None:
            if description is not None:
                write_weights(path, plan, finished, description)
                release_folder.copy_tokenizer(plan, folder.private, path)
                release_folder.write_library_files(plan, path)
            finished.write(path)

        return release_run(plan, folder, ledger, facts, history, write)


@phase("certificate")
def publish_nothing(
    plan: Plan, folder: RunFolder, started: datetime, provenance: RunProvenance, commitment: str | None
) -> PublishedRun:
    """Writes the `release/` of a run that ended without a model, and verifies it with nothing but its files.

    Guarantees: nothing that was drawn is in it; the certificate claims what the ledger says was spent.

    Raises:
        RunFailed: see `publish`.
    """
    report_progress("nothing was learned; computing the certificate of what was spent, and verifying it")
    with lock_ledger(folder.ledger) as ledger:
        facts = replace(
            provenance.facts((), commitment, *state_times(plan, started)),
            insecure_seed=ledger.insecure_seed,
            trainer=ledger.trainer,
        )
        return release_run(plan, folder, ledger, facts, [], lambda path: None)


def judge_canaries(
    plan: Plan, folder: RunFolder, ledger: Ledger, guesses: Guesses | None, test: SpecificationTest | None
) -> AuditBound | None:
    """Compares what the run's canaries show with what its certificate claims; None where there are none. `test`: of
    `test_specification`.

    Raises:
        RunFailed: they refute the claim.
    """
    if guesses is None:
        return None
    budget = plan.budget
    spent = accountants.epsilon(ledger.charges, budget.delta, budget.neighbouring, budget.accountant)
    bound = judge_guesses(plan, guesses, ledger.charges, round_up(spent))
    if bound.refuted:
        raise refuse_release(folder.refuted, bound, test)
    return bound


def test_specification(plan: Plan, ledger: Ledger, scores: Scores | None) -> SpecificationTest | None:
    """Compares the scores of the run's canaries with its specification, and reports an alarm; None where they are not
    compared."""
    if scores is None:
        return None
    test = judge_scores(plan, scores, ledger.charges)
    if not test.consistent:
        report_progress(describe_test(test))
    return test


def release_run(
    plan: Plan,
    folder: RunFolder,
    ledger: Ledger,
    facts: RunFacts,
    history: Sequence[Mapping[str, float]],
    write: Callable[[Path], None],
) -> PublishedRun:
    """Settles the run in its account, if it has one, and writes `release/`; the ledger is locked meanwhile.

    Raises:
        ReleaseHeldBack: the account can't be reached; see `dprecipe.training.publish.held`.
        RunFailed: see `publish`.
    """

    def check(draft: Path) -> None:
        report_progress("verifying the release from its folder alone")
        held.check_verified(draft, folder, ledger)

    with suppress(OSError):  # no release waits for it
        record_environment(folder.private, plan.digest)
    facts = replace(facts, audit=join_audits(read_audit(folder), facts.audit))

    def settle(recorded: RunFacts, release: str) -> RunFacts:
        told = held.settle_or_hold(plan, folder, ledger, recorded, history, write, release)
        return replace(recorded, account=told)

    epsilon = release_folder.publish_draft(folder.release, plan, ledger, facts, history, write, check, settle)
    held.discard(folder)
    return PublishedRun(epsilon, ledger.insecure_seed is None)


def run_facts(
    plan: Plan,
    ledger: Ledger,
    started: datetime,
    provenance: RunProvenance,
    commitment: str | None,
    finished: Finished,
    constants: Sequence[StageConstants] = (),
) -> RunFacts:
    """Returns the facts of a finished run; a score only where the recipe declares its records public."""
    tensors = tensors_of(
        finished.weights, finished.trained, provenance.model == "python", provenance.initial is not None
    )
    return replace(
        provenance.facts(tensors, commitment, *state_times(plan, started)),
        steps_lost=finished.steps_lost,
        insecure_seed=ledger.insecure_seed,
        trainer=ledger.trainer,
        score=select_public(finished.score, plan.data) if _is_public(plan, finished) else None,
        kept=finished.kept,
        published=finished.published,
        stages=tuple(map(digest_constants, constants)),
    )


def state_times(plan: Plan, started: datetime) -> tuple[str, str]:
    """Returns the beginning and the end of a run that ends now, as its certificate states them: ISO 8601. Where its
    duration is secret, the end is the beginning."""
    # A clock that was set back meanwhile has no say.
    ended = started if plan.hides_duration else max(started, datetime.now(UTC))
    return started.isoformat(timespec="seconds"), ended.isoformat(timespec="seconds")


def _is_public(plan: Plan, finished: Finished) -> bool:
    return plan.publishes_scores and not finished.test_from_python


def describe_release(
    plan: Plan, provenance: RunProvenance, finished: Finished, constants: Sequence[StageConstants]
) -> dict[str, Any]:
    """Returns the content of `model.json`. Adapters name the weights that they belong to."""
    base = provenance.initial.digest if releases_adapters(plan) and provenance.initial is not None else None
    return describe_file(finished.model, plan.data, finished.config, constants, base)


def write_weights(path: Path, plan: Plan, finished: Finished, description: Mapping[str, Any]) -> None:
    """Writes the weights and `model.json`. Raises `OSError`."""
    name, metadata = name_weights(finished.model, adapters=releases_adapters(plan))
    cpu = {name: value.detach().to("cpu").contiguous() for name, value in finished.weights.items()}
    try:
        save_file(cpu, path / name, None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from None
    (path / "model.json").write_bytes(to_bytes(description))


def _history(plan: Plan, folder: RunFolder, score: Score | None) -> list[dict[str, float]]:
    """Returns the public scores along the run that are whole; what is damaged in the log is left out, and reported."""
    lines, damaged = folder.history()
    points = [{name: value for name, value in line.items() if not name.startswith(TRAINING)} for line in lines]
    names = {*WHEN, *(() if score is None else score.metrics)}
    sound = [point for point in points if names <= point.keys() and _possible(plan, point)]
    damaged += len(points) - len(sound)
    if damaged:
        report_progress(f"{folder.metrics}: damaged lines, left out of metrics.json: {damaged}")
    return [point for point in sound if all(map(math.isfinite, point.values()))]


def _possible(plan: Plan, point: Mapping[str, float]) -> bool:
    return point["step"] <= plan.length.steps and 0 <= point["epsilon"] <= plan.budget.epsilon


STATED = frozenset({"accuracy", "loss", "mean_absolute_error"})
"""Scores that a `PublicScore` has fields for."""


def select_public(score: Score | None, data: Data) -> PublicScore | None:
    """Returns the statement of a score on public records. A diverged model has no loss or no perplexity that could be
    stated: it is released without a score."""
    if score is None or not all(map(math.isfinite, (score.loss, score.full.get("perplexity", 0.0)))):
        return None
    known = score_block(describe_data(data).target).model_fields
    others = {name: value for name, value in score.full.items() if name in known and name not in STATED}
    # The square of a range overflows.
    full = {name: value for name, value in others.items() if not isinstance(value, float) or math.isfinite(value)}
    return PublicScore(score.accuracy, score.loss, score.records, score.mean_absolute_error, full)


TRIED = 8
"""Synthetic records that a model is tried on."""


class _Few:
    """The first few of synthetic records."""

    def __init__(self, plan: Plan) -> None:
        self._records = Synthetic(plan)
        self.batch = self._records.batch

    def __len__(self) -> int:
        return min(TRIED, len(self._records))


def check_learned(plan: Plan, program: StepwiseProgram, state: Mapping[str, Tensor]) -> None:
    """Checks that weights, as they would be released, are finite, and so is the loss of a model of ours on synthetic
    records.

    Raises:
        NothingLearned: they are not.
    """
    weights = [value for value in state.values() if value.is_floating_point()]
    if not all(bool(torch.isfinite(value.float()).all()) for value in weights):  # torch has no test for 8 bits
        raise _diverged("its weights are not finite numbers")
    if program.custom_model or gathers_weights(plan):
        return  # whose code may not take synthetic records; or no process has the weights whole
    tried = HeldOut(program.model, _Few(plan), program.device, TRIED, program.facts.target)
    if not math.isfinite(tried.score(state).loss):
        raise _diverged("its answers to synthetic records are not finite numbers")


def _diverged(what: str) -> NothingLearned:
    return NothingLearned(
        f"training has left the range of numbers: {what}",
        "lower training.optimizer.lr, and start over in a new folder: what was spent stays spent",
    )
