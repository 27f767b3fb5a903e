"""Weights in shards of two processes: a small model's clipped sums, and its weights, against those of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dprecipe.models.schema import Transformer
from dprecipe.models.zoo.transformer import TextTransformer
from dprecipe.privacy.audit.results import Equality
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.sharded_sum import plan_passes, sharded_clipped_sum
from dprecipe.training.processes.processes import Processes
from dprecipe.training.processes.sharded_weights import ShardedWeights
from dprecipe.training.program.losses import cross_entropy

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
