"""Tests of the probe for sums of codes: each unit adds one code, inside its box.

Magnitudes that are equal in exact arithmetic are ranked by their rounding; with two classes, those of the last layer
are equal in pairs. So a sum is compared with the codes of the very gradients that the engine adds up, computed again in
the same physical batches. The tests also check that these are the gradients of single records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dprecipe.mechanisms.encoded.train.encoded_sum import CodebookLike, Encoder, RankGroup, encoded_sum
from dprecipe.training.engine.clipped_sum import BatchPart
from dprecipe.training.engine.gradient_rows import gradient_rows
from dprecipe.training.probe.case import Case, Failed, ProbeTest
from dprecipe.training.probe.sums import SumTests

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
