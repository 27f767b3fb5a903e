"""Several processes that run one program: what they agree on, between two that are really two.

A second process is started, which joins this one as the processes of a run do. Both take their parts of batches, add up
sums, and hand out a noisy one; the second writes what it has, and this one compares.

Where the weights are in shards of the two, a small model's clipped sums, and its weights, are compared with those of
one process.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.models.schema import Transformer
from dprecipe.models.zoo.transformer import TextTransformer
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.audit.results import Equality
from dprecipe.privacy.events import Charge, Event, charge_from_json
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.engine.clipped_sum import BatchPart, ClippedSum, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.sharded_sum import plan_passes, sharded_clipped_sum
from dprecipe.training.processes.processes import FollowerGate, Processes, ProcessGroup
from dprecipe.training.processes.sharded_weights import ShardedWeights
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.run.gate import SumNoise, Ticket, distribution_of, multiplier_of

UNITS, NUMBERS, ROUNDS = 101, 64, 3
GROUP = 3
"""Units of a group, which one process takes whole."""
SHARDED = 8000
"""Coordinates of a sum that is divided in two shards of one size: of another, one stream would give other draws."""
WITHIN = 0.25
"""Largest distance of the mean square of a shard's noise from its expectation, as a share: more than 7 standard
deviations, with Laplace noise, and so with a probability below 1e-6 in any of the rounds."""
PATIENCE = timedelta(seconds=120)
COMMAND = "import sys; from dprecipe.training.audit.several import follow; follow(sys.argv[1])"
_ROOT = Path(__file__).resolve().parents[3]


def examine_processes(plan: Plan) -> Iterator[AuditFinding]:
    """Yields the tests of two processes, with shards where the plan's run has some.

    Raises:
        RunFailed: the second process ended before it was done.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        event = None if plan.runtime.sharding == "none" else plan.mechanism_plan.events[0].event
        content = None if event is None else Charge(event, 1).to_json()
        facts = {"event": content, "gathers": plan.runtime.sharding == "parameters"}
        (Path(folder) / "event.json").write_text(json.dumps(facts), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        second = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", COMMAND, folder], env=environment, stderr=subprocess.PIPE, text=True
        )
        try:
            own = _take_part(Path(folder), 0)
            _, said = second.communicate(timeout=PATIENCE.total_seconds())
        except (RuntimeError, subprocess.TimeoutExpired, RunFailed) as error:
            second.kill()
            second.communicate()
            raise RunFailed(f"two processes of the program can't work together: {str(error).splitlines()[0]}") from None
        if second.returncode:
            raise RunFailed(f"the second process of the audit ended: {said.strip().splitlines()[-1]}")
        other = json.loads((Path(folder) / "second.json").read_text("utf-8"))
    yield from _compare(own, other)
    if event is not None:
        yield from _compare_shards(own, other, event)
    if plan.runtime.sharding == "parameters":
        yield from compare_gathered(own["gathered"], other["gathered"])


def follow(folder: str) -> None:
    """Runs the second process."""
    torch.set_num_threads(1)
    content = _take_part(Path(folder), 1)
    (Path(folder) / "second.json").write_text(json.dumps(content), encoding="utf-8")


def _compare(own: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[AuditFinding]:
    wrong = sum(
        sorted([*mine, *theirs]) != list(range(UNITS)) or not _groups_of(mine).isdisjoint(_groups_of(theirs))
        for mine, theirs in zip(own["parts"], other["parts"], strict=True)
    )
    text = "every unit of a batch is in the part of one process, with all of its group"
    yield AuditFinding("program", "processes_parts", text, Equality(differing=wrong, compared=ROUNDS))
    wrong = 0
    for mine, theirs, one, two in zip(own["sums"], other["sums"], own["given"], other["given"], strict=True):
        expected = np.add(one, two)
        wrong += int(not np.array_equal(mine, expected)) + int(not np.array_equal(theirs, expected))
    text = "the sum over processes is that of all parts, in each of them"
    yield AuditFinding("program", "processes_sums", text, Equality(differing=wrong, compared=2 * ROUNDS))
    wrong = sum(
        int(not np.array_equal(noisy, mine)) + int(not np.array_equal(noisy, theirs))
        for noisy, mine, theirs in zip(own["noisy"], own["released"], other["released"], strict=True)
    )
    text = "every process goes on with the noisy sum of the leader, and with nothing else"
    yield AuditFinding("program", "processes_noise", text, Equality(differing=wrong, compared=2 * ROUNDS))
    equal = sum(one == two for one, two in zip(own["seeds"], other["seeds"], strict=True))
    text = "no two processes draw from one seed"
    yield AuditFinding("program", "processes_seeds", text, Equality(differing=equal, compared=ROUNDS))


def _compare_shards(own: Mapping[str, Any], other: Mapping[str, Any], event: Event) -> Iterator[AuditFinding]:
    wrong = differing = 0
    expected = deviation_of(event)
    for number in range(ROUNDS):
        both = [each["shards"][number] for each in (own, other)]
        total = np.add(*(each["given"] for each in both))
        noisy = np.concatenate([each["noisy"] for each in both])
        sums = [total[slice(*each["place"])] for each in both]
        placed = both[0]["place"] == [0, both[1]["place"][0]] and both[1]["place"][1] == SHARDED
        wrong += int(not placed) + sum(
            int(not np.array_equal(each["sum"], part)) + int(not np.array_equal(each["whole"], noisy))
            for each, part in zip(both, sums, strict=True)
        )
        noise = [np.subtract(each["noisy"], each["sum"]) for each in both]
        ratios = [float(np.mean(part**2)) / expected**2 for part in noise]
        differing += sum(not 1 - WITHIN < ratio < 1 + WITHIN for ratio in ratios)
        differing += int(np.allclose(noise[0][:10], noise[1][:10], rtol=0, atol=expected * 2.0**-12))
    text = "every coordinate of the sum is in one shard, and every process goes on with the noisy sums of all shards"
    yield AuditFinding("program", "processes_shards", text, Equality(differing=wrong, compared=5 * ROUNDS))
    text = "the noise of every shard has the planned scale, and is that of no other"
    yield AuditFinding("program", "processes_shard_noise", text, Equality(differing=differing, compared=3 * ROUNDS))


def deviation_of(event: Event) -> float:
    """Returns the standard deviation of an event's noise, of a sum bounded by 1."""
    return multiplier_of(event) * (math.sqrt(2) if distribution_of(event).family == "laplace" else 1.0)


def _groups_of(units: list[int]) -> set[int]:
    return {unit // GROUP for unit in units}


def _take_part(folder: Path, rank: int) -> dict[str, Any]:
    """Returns what a process has of each round: its own sums are of its rank, the noisy one of the leader alone."""
    results: dict[str, Any] = {key: [] for key in ("parts", "given", "sums", "noisy", "released", "seeds", "shards")}
    facts = json.loads((folder / "event.json").read_text("utf-8"))
    event = None if facts["event"] is None else charge_from_json(facts["event"]).event
    with _joined(folder, rank):
        processes = ProcessGroup(torch.device("cpu"))
        for number in range(ROUNDS):
            generator = torch.Generator().manual_seed(2 * number + rank)
            given = torch.randn(NUMBERS, dtype=torch.float64, generator=generator)
            noisy = torch.randn(NUMBERS, dtype=torch.float64, generator=generator)
            results["parts"].append(processes.part(np.arange(UNITS), np.arange(UNITS) // GROUP).tolist())
            results["given"].append(given.tolist())
            summed = processes.summed(given)
            results["sums"].append(summed.tolist())
            results["noisy"].append(noisy.tolist())
            results["released"].append(processes.released(noisy.clone, summed).tolist())
            results["seeds"].append(processes.seed(Secrets(number).stream("augmentation", number)))
            if event is not None:
                results["shards"].append(_release_shard(processes, event, number))
        if facts["gathers"]:
            results["gathered"] = sum_gathered(processes)
    return results


def _release_shard(processes: ProcessGroup, event: Event, number: int) -> dict[str, Any]:
    """Returns a sum in shards, and its noise, as in a step."""
    generator = torch.Generator().manual_seed(2 * number + processes.rank)
    given = torch.randn(SHARDED, dtype=torch.float64, generator=generator)
    place = processes.shard(SHARDED)
    kept = processes.scattered(given.clone())
    own = kept.tolist()
    ticket, secrets = Ticket(event, number + 1), Secrets(number)
    gate = FollowerGate(secrets) if processes.rank else SumNoise(secrets)
    noisy = gate.release(ticket, ClippedSum(kept, 1.0, event.norm), processes.rank)
    whole = processes.gathered(noisy, SHARDED)
    return {
        "given": given.tolist(),
        "place": [place.start, place.stop],
        "sum": own,
        "noisy": noisy.tolist(),
        "whole": whole.tolist(),
    }


@contextmanager
def _joined(folder: Path, rank: int) -> Iterator[None]:
    """Makes this one of two processes, which meet in a file."""
    store = (folder / "meeting").resolve().as_uri()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()


LENGTH, TOKENS, CLASSES = 6, 20, 3
SIZES = (5, 9)
"""Records of two processes, which pass through the model in parts of `PART`: the first has fewer parts."""
PART = 4
NORM = 0.5
TOLERANCE = 1e-5
"""Relative, of a sum: records are added up in double precision."""


def sum_gathered(processes: Processes) -> dict[str, Any]:
    """Returns what a process has of two sums; the second is of weights that have moved."""
    model, batch = _make_model(), _draw_records()
    counts = SIZES if processes.count > 1 else (sum(SIZES),)
    start = sum(counts[: processes.rank])
    part = slice(start, start + counts[processes.rank])
    own = BatchPart(batch.features[part], batch.labels[part])
    shards = ShardedWeights(processes, model, torch.device("cpu"))
    example = BatchPart(batch.features[:1], batch.labels[:1])
    sizes = plan_passes(model, cross_entropy, example, PART, PART, shards)
    sums = []
    for _ in range(2):
        clipped = sharded_clipped_sum(model, cross_entropy, own, Clipping.flat(NORM), sizes, shards)
        sums.append(clipped.value.tolist())
        with torch.no_grad():
            shards.weights.sub_(clipped.value.float())
    with shards.gathering(), torch.no_grad():
        outputs = model(batch.features).flatten().tolist()
    return {"sums": sums, "outputs": outputs, "bound": float(torch.as_tensor(clipped.bound).max())}


def compare_gathered(own: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[AuditFinding]:
    """Compares both with one process that has all records and all weights."""
    model, batch = _make_model(), _draw_records()
    differing = 0
    for number in range(2):
        expected = clipped_sum(model, cross_entropy, batch, Clipping.flat(NORM), PART)
        both = np.concatenate([each["sums"][number] for each in (own, other)])
        differing += int(not _are_equal(both, expected.value))
        differing += sum(each["bound"] < float(torch.as_tensor(expected.bound).max()) for each in (own, other))
        start = 0
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(expected.value[start : start + parameter.numel()].view_as(parameter).float())
                start += parameter.numel()
    text = "the clipped sum of a model whose weights are in shards is that of one process, each coordinate once"
    yield AuditFinding("program", "processes_gathered_sums", text, Equality(differing=differing, compared=6))
    with torch.no_grad():
        outputs = model(batch.features).flatten()
    wrong = sum(int(not _are_equal(np.array(each["outputs"]), outputs)) for each in (own, other))
    text = "every process computes with the weights that the shards of all have moved to"
    yield AuditFinding("program", "processes_gathered_weights", text, Equality(differing=wrong, compared=2))


def _are_equal(result: Any, expected: torch.Tensor) -> bool:
    if result.shape != tuple(expected.shape):
        return False
    return bool(np.abs(result - expected.numpy()).max() <= TOLERANCE * float(expected.abs().max()))


def _make_model() -> TextTransformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TextTransformer(Transformer(kind="transformer", width=8, layers=2, heads=2), LENGTH, TOKENS, CLASSES)


def _draw_records() -> BatchPart:
    generator = torch.Generator().manual_seed(1)
    features = torch.randint(1, TOKENS, (sum(SIZES), LENGTH), generator=generator).float()
    return BatchPart(features, torch.randint(CLASSES, (sum(SIZES),), generator=generator))
