"""The runner of gradient encoding's plans, and their program: it encodes, sums, adds noise, denoises and steps.

The step multiplier is the distance of a noisy sum from its noise alone. As post-processing, it costs no privacy: its
argument is the noisy sum and what is public, never the noise, the clean sum or the size of a batch.

The tests of the probe are for sums of codes: each unit adds one code, inside its box. Magnitudes that are equal in
exact arithmetic are ranked by their rounding; with two classes, those of the last layer are equal in pairs. So a sum is
compared with the codes of the very gradients that the engine adds up, computed again in the same physical batches. The
tests also check that these are the gradients of single records.

Legend: P parameters, D coordinates of a group, G groups.
Source: Nasr, Shokri and Houmansadr 2020, Algorithm 1; docs/explanation/encoding.md, denoising.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.encoded.codebook import Codebook
from dprecipe.mechanisms.encoded.files import codebook_of
from dprecipe.mechanisms.encoded.plan import EncodedPlan
from dprecipe.mechanisms.encoded.train.encoded_sum import CodebookLike, Encoder, RankGroup, encoded_sum
from dprecipe.noise.distributions import Distribution
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.privacy.events import Event
from dprecipe.training.engine.clipped_sum import BatchPart, ClippedSum, parameters_of
from dprecipe.training.engine.gradient_rows import gradient_rows
from dprecipe.training.engine.sharded_sum import Shards
from dprecipe.training.engine.sizes import size_on
from dprecipe.training.probe.case import Case, Failed, ProbeTest
from dprecipe.training.probe.sums import SumTests
from dprecipe.training.program.own_loss import loss_of
from dprecipe.training.program.records import Store, StoredBatch
from dprecipe.training.run.gate import distribution_of, multiplier_of
from dprecipe.training.steps.contract import NoisyStep, StepContext
from dprecipe.training.steps.noisy_steps import NoisySteps
from dprecipe.training.steps.stepwise import StepwiseRunner

NULL = 0.87
"""Mean Kolmogorov-Smirnov distance of D draws from their own distribution, times sqrt(D): just below this value, which
is Kolmogorov's limit, sqrt(π/2) log 2."""
STRIDE = 16
"""Spacing of the sorted values that are compared with the distribution at first."""
At = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""A function from ranks, counted from 0, to the values there."""


def kolmogorov_smirnov(
    noisy: Tensor | NDArray[np.float64],
    distribution: Distribution,
    scale: float,
    groups: Sequence[int] | None = None,
    *,
    shrink: bool = False,
) -> tuple[float, ...]:
    """Returns the Kolmogorov-Smirnov distance of the coordinates of a noisy sum from its noise: one, or one for each
    group.

    `noisy`: (P,) float64, the sum before it is divided by anything; `distribution` has scale 1 and `scale` is the
    noise's; `groups`: how many coordinates each group has, in order; `shrink` takes off what noise alone is expected to
    show, `NULL` / sqrt(coordinates).

    Guarantees: each is in [0, 1], and the same wherever the sum is: where it is on a GPU it is sorted there, and only
    one value in `STRIDE` and a few more are fetched.
    """
    sizes = [len(noisy)] if groups is None else list(groups)
    ordered: Iterator[At]
    if isinstance(noisy, Tensor) and sorts_on_device(noisy.device):
        # Divides by a tensor: to divide by a number, a GPU multiplies by its reciprocal, which may round differently.
        values = noisy / noisy.new_full((), scale)
        ordered = (_fetch_from(part.sort().values) for part in torch.split(values, sizes))
    else:
        values_P = np.asarray(noisy) / scale
        parts = [values_P] if groups is None else np.split(values_P, np.cumsum(groups)[:-1])
        ordered = (np.sort(part).__getitem__ for part in parts)
    return tuple(
        max(0.0, _distance(at, size, distribution) - (NULL / math.sqrt(size) if shrink else 0.0))
        for at, size in zip(ordered, sizes, strict=True)
    )


def sorts_on_device(device: torch.device) -> bool:
    """Returns True if a sum is sorted on this device."""
    return device.type == "cuda"


def _fetch_from(ordered_D: Tensor) -> At:
    return lambda ranks: ordered_D[torch.from_numpy(ranks).to(ordered_D.device)].cpu().numpy()


def _distance(at: At, size: int, distribution: Distribution) -> float:
    """Returns the largest difference of the empirical distribution function from the distribution's, on either side of
    a value; `at` returns some of the `size` values, in order.

    Both functions ascend, so every `STRIDE`-th value bounds where the largest difference may be.
    """
    some = np.append(np.arange(0, size - 1, STRIDE), size - 1)
    cdf = distribution.cdf(at(some))
    largest = _largest(some, cdf, size)
    upper = np.maximum(some[1:] / size - cdf[:-1], cdf[1:] - (some[:-1] + 1) / size)
    between = np.add.outer(some[:-1][upper > largest], np.arange(1, STRIDE)).ravel()
    between = between[between < size]
    return max(largest, _largest(between, distribution.cdf(at(between)), size))


def _largest(ranks: NDArray[np.int64], cdf: NDArray[np.float64], size: int) -> float:
    return float(np.max([(ranks + 1) / size - cdf, cdf - ranks / size], initial=0.0))


SLOTS = 1 << 62
"""Number of the stream that deals units to micro-batches; no run has as many steps."""


def build(context: StepContext) -> NoisySteps:
    """Builds the program of a plan."""
    plan, model = context.plan, context.model
    planned, slot_of = plan.as_plan_of(EncodedPlan), None
    if planned.slots is not None:
        # Dealt unit by unit from a stream of its own: one more unit moves no other.
        slot_of = context.secrets.stream("sampling", SLOTS).integers(planned.slots, context.store.units)
    encoder = encoder_of(planned, model, codebook_of(planned, Path(plan.source.file).parent))
    return NoisySteps(context, Encoding(plan, model, encoder, slot_of))


def sum_tests(plan: Plan, model: nn.Module) -> SumTests:
    """Returns the probe's tests of this mechanism's sums."""
    planned = plan.as_plan_of(EncodedPlan)
    codebook = codebook_of(planned, Path(plan.source.file).parent)
    return encoding_tests(encoder_of(planned, model, codebook), codebook, planned.codebook.norm)


def encoder_of(plan: EncodedPlan, model: nn.Module, codebook: Codebook) -> Encoder:
    """Returns the encoder of a plan, on the model's device.

    Raises:
        RunFailed: the codebook is not for this model.
    """
    trained = parameters_of(model)
    groups = list(plan.groups)
    result = _layers(trained) if len(groups) > 1 else [sum(p.numel() for p in trained.values())]
    if result != groups:
        raise RunFailed(
            f"the codebook is for the recipe's model, {_format_sizes(groups)}; this one has {_format_sizes(result)}",
            "pass a model with the recipe's layers, or use mechanism dpsgd",
        )
    device = next(iter(trained.values())).device
    return Encoder(codebook, plan.codebook.norm, device, exchanged=plan.slots is not None)


def _format_sizes(sizes: list[int]) -> str:
    text = ", ".join(f"{size:,}" for size in sizes)
    return f"{text} parameters" if len(sizes) == 1 else f"layers of {text} parameters"


def _layers(trained: dict[str, Tensor]) -> list[int]:
    sizes: dict[str, int] = {}
    for name, parameter in trained.items():
        layer = name.rpartition(".")[0]
        sizes[layer] = sizes.get(layer, 0) + parameter.numel()
    return list(sizes.values())


@final
class Encoding:
    """Algorithm 1 of Nasr et al. 2020, repaired: see docs/explanation/encoding.md."""

    def __init__(self, plan: Plan, model: nn.Module, encoder: Encoder, slot_of: UnitNumbers | None) -> None:
        self._encoder = encoder
        self._slot_of = slot_of
        planned = plan.as_plan_of(EncodedPlan)
        self._loss = loss_of(plan, model)
        self._divisor = planned.divisor
        self._physical_batch = size_on(encoder.device, planned.divisor, plan.runtime.physical_batch_size)
        self._denoise = planned.denoise
        self._sensitivity = planned.sensitivity
        self._groups = list(planned.groups)
        relative = planned.group_noise
        self._relative = None
        if relative is not None:
            sizes = torch.tensor(self._groups)
            self._relative = torch.repeat_interleave(torch.tensor(relative, dtype=torch.float64), sizes)
            self._relative = self._relative.to(encoder.device)

    def group(self, units: UnitNumbers) -> UnitNumbers:
        return units if self._slot_of is None else self._slot_of[units]

    def batch(self, store: Store, units: UnitNumbers, seed: int) -> StoredBatch:
        if self._slot_of is None:
            return store.batch(units, seed)
        order = np.argsort(self._slot_of[units], kind="stable")
        _, groups = np.unique(self._slot_of[units][order], return_inverse=True)
        return store.batch(units[order], seed, groups)

    def divide(self, shards: Shards) -> None:
        raise RunFailed("runtime.sharding is for mechanism dpsgd", "remove runtime.sharding")

    def summed(self, model: nn.Module, batch: StoredBatch, step: NoisyStep) -> ClippedSum:
        encoded = encoded_sum(model, self._loss, batch, self._encoder, self._physical_batch)
        if self._relative is None:
            return encoded
        # Coordinates in units of their own noise; `gradient` turns them back.
        return ClippedSum(encoded.value / self._relative, self._sensitivity)

    def clipping(self, step: NoisyStep) -> None:
        return None

    def gradient(self, noisy: Tensor, step: NoisyStep) -> tuple[Tensor, Tensor | float]:
        factor = self._factor(noisy, step.event)
        return (noisy if self._relative is None else noisy * self._relative) / (self._divisor * step.size_share), factor

    def figures(self) -> dict[str, float]:
        return {}

    def remarks(self) -> tuple[str, ...]:
        return ()

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass

    def _factor(self, noisy: Tensor, event: Event) -> Tensor | float:
        """Returns the step multiplier κ, or one for each coordinate."""
        if self._denoise is None:
            return 1.0
        by_group = self._denoise.per == "group"
        factors = kolmogorov_smirnov(
            noisy,
            distribution_of(event),
            multiplier_of(event) * self._sensitivity,
            self._groups if by_group else None,
            shrink=self._denoise.shrink,
        )
        if not by_group:
            return float(factors[0])
        factors_P = torch.repeat_interleave(torch.as_tensor(factors, dtype=torch.float64), torch.tensor(self._groups))
        return factors_P.to(noisy.device)


RUNNER = StepwiseRunner(build, sum_tests)


Envelopes = Sequence[tuple[slice, Tensor]]
"""The coordinates of each group, and the most that their magnitudes may be, rank by rank."""
RANKS = 1e-2
"""Largest relative error of a sum, in L2 norm: on some devices gradients that are computed again differ by a
rounding, which can exchange neighbouring ranks, and so their bounds."""


def encoding_tests(encoder: Encoder, codebook: CodebookLike, norm: float) -> SumTests:
    """Returns the tests of sums that encode each unit into the box of one of the codewords, scaled to `norm`."""
    envelopes = [(slice(group.start, group.start + group.size), norm * _by_rank(group)) for group in codebook.groups]

    def tests(case: Case) -> Iterator[ProbeTest]:
        yield (
            "encoded_sum",
            "the encoded sum equals that of a loop over single records, and each code lies in its codeword's box",
            lambda: _encoded_sum_equal(case, encoder, envelopes),
        )
        yield (
            "encoded_sum_edges",
            "an empty batch gives zero, a non-finite record adds zero, and a unit adds one code",
            lambda: _encoded_sum_edges(case, encoder, envelopes),
        )

    return tests


def _encoded_sum_equal(case: Case, encoder: Encoder, envelopes: Envelopes) -> str:
    gradients = case.single_gradients
    codes = torch.cat([encoder.encode(gradient[None]) for gradient in gradients])
    if not torch.equal(codes, encoder.encode(gradients)):
        raise Failed("the code of a record depends on the records beside it")
    worst = 0.0
    for index, (gradient, code) in enumerate(zip(gradients.double().to(codes.device), codes, strict=True)):
        if not bool(((code.abs() <= gradient.abs()) & (code * gradient >= 0)).all()):
            raise Failed(f"the code of record {index} is no clipped gradient")
        worst = max(worst, _fullness(code, envelopes))
    if not worst <= 1:
        raise Failed(f"a code reaches {worst:.9f} of its box")
    largest, batch = 0.0, BatchPart(case.features, case.labels)
    for physical_batch in (len(codes), 2):
        rows = _gradients(case, batch, physical_batch)
        case.compare_gradients(torch.stack(rows))
        expected = _codes(encoder, rows).sum(0)
        error = _relative(_encoded(case, encoder, batch, physical_batch), expected)
        if not error <= RANKS:
            raise Failed(f"relative error {error:.1e} with physical batches of {physical_batch}")
        largest = max(largest, error)
    return f"relative error {largest:.1e}, at most {worst:.6f} of the box"


def _by_rank(group: RankGroup) -> Tensor:
    """Returns the envelope of a group's codewords, rank by rank, (D,)."""
    counts_K = torch.from_numpy(np.diff(np.append(group.ranks, group.size)))
    return torch.from_numpy(group.levels.max(axis=0)).repeat_interleave(counts_K)


def _fullness(code: Tensor, envelopes: Envelopes) -> float:
    """Returns the largest share of the envelope that a code fills, rank by rank."""
    worst = 0.0
    for columns, bound in envelopes:
        ranked = code[columns].abs().double().cpu().sort().values
        worst = max(worst, float(torch.where(ranked > 0, ranked / bound, 0.0).max()))
    return worst


def _encoded_sum_edges(case: Case, encoder: Encoder, envelopes: Envelopes) -> str:
    empty = _encoded(case, encoder, BatchPart(case.features[:0], case.labels[:0]))
    if bool((empty != 0).any()):
        raise Failed("an empty batch gave a sum that is not zero")
    broken = case.features.clone()
    broken[0] = torch.nan
    batch = BatchPart(broken, case.labels)
    if not _relative(_encoded(case, encoder, batch), _codes(encoder, _gradients(case, batch))[1:].sum(0)) <= RANKS:
        raise Failed("a record of NaN changed the sum")
    one_unit = torch.zeros(len(case.labels), dtype=torch.long, device=case.labels.device)
    share = _fullness(_encoded(case, encoder, BatchPart(case.features, case.labels, one_unit)), envelopes)
    if not share <= 1:
        raise Failed(f"a unit of {len(case.labels)} records reaches {share:.6f} of the box of one code")
    return f"zero, zero, {share:.6f} of the box"


def _codes(encoder: Encoder, gradients: list[Tensor]) -> Tensor:
    """Returns the code of each gradient by itself, (B, P)."""
    return torch.cat([encoder.encode(row[None]) for row in gradients])


def _gradients(case: Case, batch: BatchPart, physical_batch: int | None = None) -> list[Tensor]:
    """Returns the gradients whose codes `_encoded` adds up, (P,) for each record."""
    size = len(batch.labels) if physical_batch is None else physical_batch
    few = gradient_rows(case.module, case.loss, batch, size, len(batch.labels))
    return [row.clone() for rows in few for row in rows]


def _relative(actual: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.vector_norm(actual - expected) / torch.linalg.vector_norm(expected).clamp_min(1e-30))


def _encoded(case: Case, encoder: Encoder, batch: BatchPart, physical_batch: int | None = None) -> Tensor:
    size = len(case.labels) if physical_batch is None else physical_batch
    return encoded_sum(case.module, case.loss, batch, encoder, size).value
