"""The test of participation: the batches that the program draws, step by step, against what the event claims of them.

The program's own steps run, with its own streams; only sums are left out, since they take time and decide nothing of
who takes part. Tests are exact: every count is one of independent trials, if the event is right.

Legend: K steps, U units.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe.faults import InternalFault
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.privacy.audit.results import Equality, Excess, Frequency, TestEvidence, Variance
from dprecipe.privacy.events import Event
from dprecipe.privacy.sampling import (
    CyclicPoisson,
    DealtBatches,
    EveryUnit,
    FixedOrder,
    FixedSizeBatch,
    PermutedBatches,
    PoissonBatch,
)
from dprecipe.training.audit.crafted import CraftedRecords
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.audit.rig import Rig
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.sharded_sum import Shards
from dprecipe.training.program.records import Store, StoredBatch
from dprecipe.training.steps.contract import BatchSums, NoisyStep

MAX_STEPS = 400
"""Largest number of steps of both attempts together, but for epochs that are longer."""
MIN_VARIANCE = 25.0
"""Variance of a batch size, from which on its square is nearly that of a normal number."""
FEW = 64
"""Units whose frequency is tested by itself: the first and the last of the data."""
MEMBERS = 128
"""Approximate number of a batch's members that are compared with those of every other batch."""
RARE = 1e-9
"""Probability of a full batch below which a cap changes no test."""


@final
class CountedSums:
    """The sums of a program. Only the units that take part are noted: the sum itself has no unit in it."""

    def __init__(self, sums: BatchSums, records: CraftedRecords) -> None:
        self._sums = sums
        self._units = records.units
        self.batches: list[UnitNumbers] = []
        """Units of each batch; one that was there twice is there twice."""

    def divide(self, shards: Shards) -> None:
        self._sums.divide(shards)

    def group(self, units: UnitNumbers) -> UnitNumbers:
        return self._sums.group(units)

    def batch(self, store: Store, units: UnitNumbers, seed: int) -> StoredBatch:
        stored = self._sums.batch(store, units, seed)
        read = stored.indices if self._units is None else np.unique(self._units[stored.indices])
        self.batches.append(np.sort(read))
        return self._sums.batch(store, units[:0], seed)

    def summed(self, model: nn.Module, batch: StoredBatch, step: NoisyStep) -> ClippedSum:
        return self._sums.summed(model, batch, step)

    def clipping(self, step: NoisyStep) -> Clipping | None:
        return self._sums.clipping(step)

    def gradient(self, noisy: Tensor, step: NoisyStep) -> tuple[Tensor, Tensor | float]:
        return self._sums.gradient(noisy, step)

    def figures(self) -> dict[str, float]:
        return self._sums.figures()

    def remarks(self) -> tuple[str, ...]:
        return self._sums.remarks()

    def state(self) -> dict[str, Any]:
        return self._sums.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._sums.restore(state)


def draw_batches(rig: Rig, records: CraftedRecords, seconds: float, beat: Callable[[], None]) -> list[UnitNumbers]:
    """Returns the batches of an attempt's first steps, an even number, in about `seconds` processor seconds."""
    counted = CountedSums(rig.module.sums, records)
    rig.module.sums = counted
    until = time.process_time() + seconds
    wanted = min(max(MAX_STEPS // 2, min(rig.event.steps, MAX_STEPS)), rig.releases)
    while len(counted.batches) < wanted and (len(counted.batches) % 2 or time.process_time() < until):
        beat()
        rig.module.take_step()
        rig.gate.seen.clear()
        rig.given.clear()
    return counted.batches


def examine_batches(event: Event, units: int, attempts: Sequence[Sequence[UnitNumbers]]) -> Iterator[AuditFinding]:
    """Yields the tests of batches of `units` units, against what the event says of them. `attempts`: of one run."""
    sampling = event.sampling()
    if isinstance(sampling, FixedOrder):
        yield from _examine_order(attempts, sampling.batches)
        attempts = [attempt[: sampling.batches] for attempt in attempts]  # later passes are the first one again
    whole = [attempt[: len(attempt) // event.steps * event.steps] for attempt in attempts]
    # Where no attempt gets through an epoch, the first one is all there is.
    batches = [batch for attempt in (whole if any(whole) else attempts[:1]) for batch in attempt]
    member_KU = np.zeros((len(batches), units), dtype=bool)
    for row, batch in zip(member_KU, batches, strict=True):
        row[batch] = True
    sizes = np.array([len(batch) for batch in batches])
    strangers = sum(len(batch) - int(row.sum()) for batch, row in zip(batches, member_KU, strict=True))
    yield _finding(
        "units_once", "no unit is in a batch twice", Equality(differing=strangers, compared=max(1, int(sizes.sum())))
    )
    match sampling:
        case PoissonBatch(rate, cap):
            yield from _examine_cap(sizes, cap)
            if event.full_chance < RARE:
                yield from _examine_poisson(member_KU, sizes, rate)
            elif cap is not None:
                yield from _examine_rates(member_KU, _capped_rate(units, rate, cap))
        case FixedSizeBatch(planned):
            text = "every batch has the planned size"
            yield _finding("batch_size", text, Equality(differing=int((sizes != planned).sum()), compared=len(sizes)))
            yield from _examine_rates(member_KU, planned / units)
            yield from _examine_overlap(member_KU, sizes, planned / units)
        case EveryUnit():
            text = "every unit is in every batch"
            yield _finding("batch_size", text, Equality(differing=int((sizes != units).sum()), compared=len(sizes)))
        case DealtBatches(count, taken, cap):
            yield from _examine_cap(sizes, cap)
            if event.full_chance < RARE:
                yield from _examine_partition(member_KU, sizes, count, taken or count)
            elif cap is not None:
                yield from _examine_rates(member_KU, _capped_rate(units, 1 / count, cap))
                yield from _examine_epochs(member_KU, taken or count, every=False)
        case FixedOrder(count, int(block)):
            yield from _examine_epochs(member_KU, count, every=True)
            first = member_KU[:, ::block]  # of each block: the others have to follow
            apart = int((np.repeat(first, block, axis=1)[:, :units] != member_KU).sum())
            text = "units of a block take part together"
            yield _finding("blocks_whole", text, Equality(differing=apart, compared=member_KU.size))
            member_KU = first
        case FixedOrder(count):
            yield from _examine_partition(member_KU, sizes, count, count)
        case CyclicPoisson(parts, rate):
            yield from _examine_parts(attempts, units, parts)
            # A unit joins one batch of a cycle at most, as it would a Poisson batch of the part's rate.
            cycles = member_KU[: len(member_KU) // parts * parts].reshape(-1, parts, units)
            member_KU = np.logical_or.reduce(cycles, axis=1)
            yield from _examine_poisson(member_KU, member_KU.sum(axis=1), rate)
        case PermutedBatches(planned, count):
            text = "every batch has the planned size"
            yield _finding("batch_size", text, Equality(differing=int((sizes != planned).sum()), compared=len(sizes)))
            yield from _examine_rates(member_KU, planned / units)
            yield from _examine_epochs(member_KU, count, every=False)
        case _:
            raise InternalFault(f"batches of an event of kind {event.kind}")
    yield from _examine_repeats(member_KU)


def _examine_cap(sizes: NDArray[np.int64], cap: int | None) -> Iterator[AuditFinding]:
    if cap is not None:
        text = "no batch is larger than its maximum"
        yield _finding("batch_cap", text, Excess(largest=float(sizes.max()), allowed=float(cap)))


def _examine_order(attempts: Sequence[Sequence[UnitNumbers]], count: int) -> Iterator[AuditFinding]:
    """Tests that every pass of an attempt has the batches of the one before."""
    pairs = [pair for attempt in attempts for pair in zip(attempt, attempt[count:], strict=False)]
    if pairs:
        moved = sum(not np.array_equal(one, other) for one, other in pairs)
        text = "every unit takes part at the same place of every pass"
        yield _finding("order_kept", text, Equality(differing=moved, compared=len(pairs)))


def _examine_parts(attempts: Sequence[Sequence[UnitNumbers]], units: int, count: int) -> Iterator[AuditFinding]:
    """Tests that a unit takes part in steps of one part alone, and that parts are dealt independently. Each part has as
    many turns as the others, so a unit that was seen is in each with the same chance."""
    turns_APU = np.zeros((len(attempts), count, units), dtype=bool)
    for turns_PU, attempt in zip(turns_APU, attempts, strict=True):
        for step, batch in enumerate(attempt[: len(attempt) // count * count]):
            turns_PU[step % count, batch] = True
    seen_AU, part_AU = np.logical_or.reduce(turns_APU, axis=1), turns_APU.argmax(axis=1)
    text = "every unit takes part in the turns of one part alone"
    moved = Equality(differing=int((turns_APU.sum(axis=1) > 1).sum()), compared=max(1, int(seen_AU.sum())))
    yield _finding("parts_kept", text, moved)
    even = units // 2 * 2
    of_two = seen_AU[:, 0:even:2] & seen_AU[:, 1:even:2]
    of_both = seen_AU[:1] & seen_AU[1:2]
    alike = {
        "rate": ("parts are dealt with equal chances", part_AU[seen_AU] == 0),
        "pairs": (
            "two units are in one part as often as by chance",
            (part_AU[:, 0:even:2] == part_AU[:, 1:even:2])[of_two],
        ),
        "again": ("a later attempt deals new parts", (part_AU[:1] == part_AU[1:2])[of_both]),
    }
    for name, (text, same) in alike.items():
        if same.size:
            yield _finding(f"parts_{name}", text, _frequency(int(same.sum()), same.size, 1 / count))


def _examine_poisson(member_KU: NDArray[np.bool_], sizes: NDArray[np.int64], rate: float) -> Iterator[AuditFinding]:
    steps, units = member_KU.shape
    text = "units take part with the claimed probability"
    yield _finding("sampling_rate", text, _frequency(int(sizes.sum()), steps * units, rate))
    if rate >= 1:
        return
    variance = units * rate * (1 - rate)
    if variance >= MIN_VARIANCE:
        total = float(((sizes - units * rate) ** 2 / variance).sum())
        text = "batch sizes vary as those of units that join independently"
        yield _finding("batch_sizes", text, Variance(sum_squares=total, degrees=steps))
    yield from _examine_rates(member_KU, rate)
    yield from _examine_overlap(member_KU, sizes, rate, exact=True)
    even = units // 2 * 2
    if even:
        both = int((member_KU[:, 0:even:2] & member_KU[:, 1:even:2]).sum())
        text = "two units join a batch independently of each other"
        yield _finding("sampling_pairs", text, _frequency(both, steps * (even // 2), rate * rate))


def _capped_rate(units: int, rate: float, cap: int) -> float:
    """Returns how often a unit takes part if batches are cut to `cap` random units: by symmetry all are alike."""
    from scipy import stats

    below = np.arange(cap)
    return float(cap - ((cap - below) * stats.binom.pmf(below, units, rate)).sum()) / units


def _examine_rates(member_KU: NDArray[np.bool_], rate: float) -> Iterator[AuditFinding]:
    """Tests the rates of the first units and of the last: no place in the data is drawn more often."""
    steps, units = member_KU.shape
    few = min(FEW, units)
    for name, part in (("first", member_KU[:, :few]), ("last", member_KU[:, -few:])):
        text = f"the {name} units take part with the claimed probability"
        yield _finding(f"sampling_{name}", text, _frequency(int(part.sum()), steps * few, rate))


def _examine_overlap(
    member_KU: NDArray[np.bool_], sizes: NDArray[np.int64], rate: float, *, exact: bool = False
) -> Iterator[AuditFinding]:
    """Pairs of consecutive steps; no step is in two pairs."""
    pairs = len(member_KU) // 2
    if not pairs:
        return
    both = int((member_KU[0 : 2 * pairs : 2] & member_KU[1 : 2 * pairs : 2]).sum())
    trials, expected = (
        (pairs * member_KU.shape[1], rate * rate) if exact else (int(sizes[0 : 2 * pairs : 2].sum()), rate)
    )
    text = "who was in a batch is as likely to be in the next as anybody"
    yield _finding("sampling_steps", text, _frequency(both, trials, expected))


def _examine_repeats(member_KU: NDArray[np.bool_]) -> Iterator[AuditFinding]:
    """Tests the two batches, of all, that are most alike: given their sizes, none has more of another than chance
    gives it. Of large batches some of the units are looked at, which the data does not decide."""
    from scipy import stats

    step = max(1, int(member_KU.sum(axis=1).mean()) // MEMBERS)
    some_KU = member_KU[:, ::step]
    sizes = some_KU.sum(axis=1)
    one, other = np.triu_indices(len(sizes), 1)
    telling = (sizes[one] > 0) & (sizes[other] < some_KU.shape[1])
    one, other = one[telling], other[telling]
    if not len(one):
        return
    drawn_KU = some_KU[:, some_KU.any(axis=0)].astype(np.float32)
    both = np.rint(drawn_KU @ drawn_KU.T).astype(np.int64)[one, other]
    shares = sizes[other] / some_KU.shape[1]
    worst = int(np.argmin(stats.binom.logsf(both - 1, sizes[one], shares)))
    text = "no batch comes again, neither later in an attempt nor after a resume"
    evidence = _frequency(int(both[worst]), int(sizes[one[worst]]), float(shares[worst]))
    yield AuditFinding("program", "sampling_again", text, evidence, len(one))


def _examine_epochs(member_KU: NDArray[np.bool_], count: int, *, every: bool) -> Iterator[AuditFinding]:
    """Tests the whole epochs: `every` unit is in one batch, or none is in two."""
    epochs = len(member_KU) // count
    if epochs:
        times_EU = member_KU[: epochs * count].reshape(epochs, count, -1).sum(axis=1)
        text, wrong_EU = (
            ("every unit is in one batch of an epoch", times_EU != 1)
            if every
            else ("no unit is in two batches of an epoch", times_EU > 1)
        )
        yield _finding("partition", text, Equality(differing=int(wrong_EU.sum()), compared=times_EU.size))


def _examine_partition(
    member_KU: NDArray[np.bool_], sizes: NDArray[np.int64], count: int, taken: int
) -> Iterator[AuditFinding]:
    yield from _examine_epochs(member_KU, taken, every=taken == count)
    whole, units = len(member_KU) // taken * taken, member_KU.shape[1]
    first = int(sizes[::taken].sum())
    trials = len(sizes[::taken]) * units
    yield _finding("partition_rate", "batches are drawn with equal chances", _frequency(first, trials, 1 / count))
    if whole and taken == count > 1 and units / count >= MIN_VARIANCE:
        total = float(((sizes[:whole] - units / count) ** 2).sum() * count / units)
        text = "batch sizes vary as those of units that are dealt independently"
        yield _finding("batch_sizes", text, Variance(sum_squares=total, degrees=whole // count * (count - 1)))
    even = units // 2 * 2
    if whole and even:
        both = int((member_KU[:whole, 0:even:2] & member_KU[:whole, 1:even:2]).sum())
        text = "two units are dealt to a batch independently of each other"
        yield _finding("sampling_pairs", text, _frequency(both, whole * (even // 2), 1 / count**2))


def _frequency(successes: int, trials: int, expected: float) -> TestEvidence:
    return Frequency(successes=successes, trials=trials, expected=expected)


def _finding(name: str, text: str, evidence: TestEvidence) -> AuditFinding:
    return AuditFinding("program", name, text, evidence)
