"""Minimise, add noise once, publish. Until the event is settled nobody sees anything of it: an attempt that begins
anew carries its reservation on."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.faults import RunFailed
from dprecipe.models.build import build
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_gaussian, draw_noise
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.privacy.ledger import Ledger
from dprecipe.training.probe.program import Check
from dprecipe.training.program.evaluate import HeldOut
from dprecipe.training.program.program import Sets, Synthetic, check_width, declared_records
from dprecipe.training.program.records import RecordSource
from dprecipe.training.publish.draft import check_publishable
from dprecipe.training.publish.provenance import RunProvenance, private_of
from dprecipe.training.publish.publish import Finished
from dprecipe.training.run.attempt import open_attempt
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.runner import PythonInputs, Rehearsal, Run, Runner, Start
from dprecipe.training.run.spend_once import check_affordable, is_settled, spend_once
from output_perturbation.certificate import PART
from output_perturbation.plan import OutputPerturbationPlan

Floats = NDArray[np.float64]


def read_rows(own: OutputPerturbationPlan, records: RecordSource) -> tuple[Floats, NDArray[np.int64]]:
    """Features, clipped once more in float64 and with the bias as a feature of 1: (N, D); and labels, (N,). A record
    with a feature that is not finite has zeros, as `clip_features` makes it."""
    features, labels = records.batch(slice(0, len(records)))
    rows = features.reshape(len(features), -1).astype(np.float64)
    rows[~np.isfinite(rows).all(axis=1)] = 0.0
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / own.feature_norm)
    return (np.pad(rows, ((0, 0), (0, 1)), constant_values=1.0) if own.bias else rows), labels.astype(np.int64)


def gradient(own: OutputPerturbationPlan, w_CD: Floats, rows_ND: Floats, labels_N: NDArray[np.int64]) -> Floats:
    """Of the mean loss without its regulariser."""
    scores = rows_ND @ w_CD.T
    chances = np.exp(scores - scores.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    chances[np.arange(len(labels_N)), labels_N] -= 1
    found: Floats = chances.T @ rows_ND / len(labels_N)
    return found


def minimise(own: OutputPerturbationPlan, rows_ND: Floats, labels_N: NDArray[np.int64], classes: int) -> Floats:
    """All steps of the plan, whatever the records say."""
    w_CD = np.zeros((classes, rows_ND.shape[1]))
    for _ in range(own.descent_steps):
        w_CD -= (gradient(own, w_CD, rows_ND, labels_N) + own.l2 * w_CD) / own.smoothness
    return w_CD


def draw_spherical_noise(scale: float, stream: Stream, count: int) -> Floats:
    """Density ∝ exp(-‖b‖ / scale) in `count` dimensions: a direction of no preference, and a norm that is a sum of
    `count` exponential draws."""
    direction = draw_gaussian(stream, count)
    norm = float(np.abs(draw_noise(Distribution("laplace"), stream, count)).sum())
    return direction * (scale * norm / float(np.linalg.norm(direction)))


def probe(plan: Plan) -> tuple[Check, ...]:
    """The plan's constants, tried on synthetic records.

    Raises:
        RunFailed: one does not hold.
    """
    own, classes = plan.as_plan_of(OutputPerturbationPlan), describe_data(plan.data).outputs
    rows, labels = read_rows(own, Synthetic(plan))
    other = labels.copy()
    other[0] = (other[0] + 1) % classes
    w, v = minimise(own, rows, labels, classes), minimise(own, rows, other, classes)
    longest = max(
        float(np.linalg.norm(gradient(own, v * 9, rows[[i]], labels[[i]]))) for i in range(min(64, len(rows)))
    )
    left = float(np.linalg.norm(gradient(own, w, rows, labels) + own.l2 * w))
    allowed = own.smoothness * own.lipschitz / own.l2 * (1 - own.l2 / own.smoothness) ** own.descent_steps + 1e-12
    apart, count, draws = float(np.linalg.norm(w - v)), w.size, 400
    stream = Secrets().stream("noise", 0)
    noise = np.array([draw_spherical_noise(own.noise_scale, stream, count) for _ in range(draws)]) / own.noise_scale
    norm, drift = np.linalg.norm(noise, axis=1).mean() / count, np.linalg.norm(noise.mean(0)) / count
    spread = 6 / np.sqrt(draws)
    measured = {
        "gradient_bound": (longest <= own.lipschitz * (1 + 1e-9), f"{longest:.4g} of {own.lipschitz:.4g}"),
        "minimum": (left <= allowed, f"{left:.1e} of {allowed:.1e}"),
        "sensitivity": (apart <= own.sensitivity, f"{apart:.4g} of {own.sensitivity:.4g}"),
        "noise_scale": (abs(norm - 1) < spread and drift < spread, f"mean norm {norm:.4f} of 1, drift {drift:.4f}"),
    }
    texts = PART.list_checks(plan)
    checks = tuple(Check(name, texts[name], bool(ok), found) for name, (ok, found) in measured.items())
    for check in checks:
        if not check.passed:
            raise RunFailed(f"expected: {check.text}; found: {check.measured}", "don't trust this installation")
    return checks


@dataclass(frozen=True, slots=True)
class Program:
    """What a run needs besides its ledger."""

    sets: Sets
    provenance: RunProvenance


@final
class MinimumRunner(Runner[Program]):
    """The runner of output perturbation; on the processor, in float64."""

    def prepare(self, plan: Plan, root: Path, inputs: PythonInputs) -> Program:
        checks, sets = probe(plan), declared_records(plan, root, inputs)
        check_width(plan, sets.train)
        provenance = RunProvenance(checks, torch.device("cpu"), data="python" if sets.from_python else "recipe")
        check_publishable(plan, provenance)
        return Program(sets, provenance)

    def attempt(self, plan: Plan, folder: RunFolder, program: Program, start: Start) -> Run:
        own, event, kept = plan.as_plan_of(OutputPerturbationPlan), plan.events[0].event, folder.private / "minimum.npy"
        public, records = describe_data(plan.data), program.sets.train

        def check(before: Ledger | None) -> None:
            if is_settled(event, before) and not kept.is_file():
                raise RunFailed(f"the event was settled, and {kept} is gone", "start anew in another folder")
            check_affordable(plan, event, before)

        private = {"commitment": private_of(records)}
        with open_attempt(plan, folder, start, program.provenance, private, check) as attempt:

            def release() -> None:
                w_CD = minimise(own, *read_rows(own, records), public.outputs)
                noise = draw_spherical_noise(own.noise_scale, attempt.secrets.stream("noise", 0), w_CD.size)
                with durable.replacing_file(kept) as file:
                    np.save(file, w_CD + noise.reshape(w_CD.shape), allow_pickle=False)

            spend_once(attempt.ledger, event, release)
            attempt.ledger.close("completed")
        noisy = torch.from_numpy(np.load(io.BytesIO(durable.read_bytes(kept)), allow_pickle=False)).float()
        module = build(plan.model, public.shape, public.outputs, plan.runtime.seed)
        parts = {"weight": noisy[:, : public.width], "bias": noisy[:, -1]}
        weights = {name: parts[name.rsplit(".", 1)[-1]].contiguous() for name in module.state_dict()}
        test, score = program.sets.test, None
        if test is not None:
            rows = plan.runtime.physical_batch_size
            score = HeldOut(module, test, torch.device("cpu"), rows, public.target).score(weights)
        return attempt.publish(Finished(weights, frozenset(weights), plan.model, score, program.sets.custom_test))

    def rehearse(self, plan: Plan) -> Rehearsal:
        clock = time.monotonic()
        checks = probe(plan)  # two minima of as many records as the recipe declares
        seconds = time.monotonic() - clock
        return Rehearsal(f"two minima of synthetic records in {seconds:.2g} s", seconds / 2, checks)


RUNNER = MinimumRunner()
