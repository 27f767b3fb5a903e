"""The attack on one unit's move of a sum: an adversarial search over records, labels, weights and places in a batch.

Whatever is found is a lower bound of the sensitivity. A sound program never exceeds what its sums state, so the test
is deterministic, and a search that misses a fault says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from torch import Tensor

from dprecipe.data.targets import Target
from dprecipe.models.form import Form
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.privacy.audit.results import Equality, Excess
from dprecipe.training.audit.crafted import CraftedRecords, list_broken, list_candidates
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.audit.rig import UNBOUNDED, Rig, move_between
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.program.losses import Loss, synthetic_labels

SCALES = (1.0, 30.0, 0.01)
"""Factors of the first weights: long gradients, and saturated ones, wherever training may lead."""
LABELS = 2
"""Labels that each candidate is tried with."""
FINALISTS = 3
"""Records that are tried at every place of a batch."""
ROUNDING = 2.0**-16
"""A share of the bound: what single precision rounds where only one unit is in a batch."""
AS_GOOD = 0.99
"""A record is as good as the best one if it moves the sum as far, up to this share."""
RANKS = 1e-2
"""A share of the bound of sums that keep no reserve for rounding: a gradient that is computed in another batch is
rounded otherwise, which can exchange two of its ranks."""


@final
@dataclass(frozen=True, slots=True)
class Crafted:
    """A record that an attack has found."""

    move: float
    """Move of the sum, where its unit is alone in a batch, in bounds."""
    scale: float
    """Factor of the first weights."""
    features: Tensor
    label: float


@final
@dataclass
class SumSearch:
    """One search for the record that moves a sum farthest."""

    rig: Rig
    records: CraftedRecords
    form: Form
    loss: Loss
    target: Target
    part: int
    """Units in a part of the engine."""
    coupled: bool
    """Records, or the model, draw numbers: a record that is left out changes what others draw, and one that is replaced
    does not."""
    beat: Callable[[], None]
    """Called between sums."""
    found: list[Crafted] = field(default_factory=list)
    _start: list[Tensor] = field(default_factory=list)

    def run(self) -> Iterator[AuditFinding]:
        """Yields the tests of sums; leaves the weights as they were."""
        self.search()
        empty = self.rig.sum(np.zeros(0, np.int64))
        alone = self.found[0].move if self.found else 0.0
        allowed = (1 + ROUNDING) / (1 + empty.reserve)
        yield _excess(
            "sum_alone", "a unit alone in a batch moves the sum by no more than the clip norm", alone, allowed
        )
        amid, replaced = 0.0, 0.0
        for found in self.found[:FINALISTS]:
            self._set(found.scale)
            for units, place in self._places():
                amid = max(amid, *self._moves(self.rig, found, units, place))
                opposite = Crafted(0.0, 1.0, -found.features, self.found[-1].label)
                replaced = max(replaced, self._replaced(found, opposite, units, place))
        self._set(1.0)
        amid = max(amid, self._turn_others())
        more = RANKS if empty.reserve == 0 else 0.0
        yield _excess(
            "sum_amid_others", "anywhere in a batch, a unit moves the sum by no more than it states", amid, 1 + more
        )
        yield _excess("sum_replaced", "a replaced unit moves the sum by no more than twice that", replaced, 2 + more)
        differing = int((empty.value != 0).sum())
        yield AuditFinding(
            "program",
            "sum_empty",
            "the sum of an empty batch is zero",
            Equality(differing=differing, compared=len(empty.value)),
        )

    def search(self) -> None:
        """Fills `found`, the farthest first; leaves the weights as they were."""
        self._start = [parameter.detach().clone() for parameter in self.rig.trained]
        for number, scale in enumerate(SCALES):
            self._set(scale)
            self._search_alone(number, scale)
        self.found.sort(key=lambda found: -found.move)
        self._set(1.0)

    def run_planned_size(self, rig: Rig, units: int, seconds: float) -> Iterator[AuditFinding]:
        """Tries the best record in a batch and in parts of the planned size; nothing where a sum takes longer than
        `seconds`."""
        begun = time.process_time()
        few = np.arange(max(1, units // 16))
        rig.sum(few)
        if not self.found or (time.process_time() - begun) * units / len(few) * 4 > seconds:
            return
        heavy = self._heaviest()
        moves = self._moves(rig, heavy, np.arange(units), units - 1)
        self._write(np.arange(units), heavy)  # so that every place has a record that is clipped
        moves.append(length_of(rig.sum(np.arange(units))) / units)
        self.records.forget()
        text = "in a batch of the planned size, a unit moves the sum by no more than it states"
        yield _excess("sum_planned_size", text, max(moves), 1 + (RANKS if rig.sum(few[:0]).reserve == 0 else 0.0))

    def _search_alone(self, number: int, scale: float) -> None:
        for label in synthetic_labels(torch.arange(LABELS) + number, self.target):
            for features in list_candidates(self.form, self.rig.model, self.loss, label[None], number):
                self.beat()
                self.records.write(0, features, label.item())
                summed = self.rig.sum(np.zeros(1, np.int64))
                self.found.append(Crafted(length_of(summed), scale, features, label.item()))
        self.records.forget()

    def _heaviest(self) -> Crafted:
        """Returns a record of those that move the sum farthest at the first weights: the one of the largest numbers,
        whose gradient is the longest before it is clipped."""
        usual = [found for found in self.found if found.scale == 1.0]
        best = max(found.move for found in usual)
        return max((f for f in usual if f.move >= AS_GOOD * best), key=lambda f: float(f.features.abs().max()))

    def _turn_others(self) -> float:
        """Returns a heavy record's move of the sum of others that are all alike: a mean of several gradients that is
        clipped as one turns to where the heavy one points."""
        heavy, units, move = self._heaviest(), np.arange(self.part), 0.0
        if self.coupled:
            return move
        for other in {found.label: found for found in self.found if found.scale == 1.0 and found.move > 0}.values():
            self.beat()
            self._write(units[:-1], other)
            self._write(units[-1:], heavy)
            move = max(move, move_between(self.rig.sum(units), self.rig.sum(units[:-1])))
            self.records.forget()
        return move

    def _places(self) -> Iterator[tuple[UnitNumbers, int]]:
        """Batches, and the place in them of the unit that is written: alone; first; last of a full part; first and last
        of a padded one."""
        yield np.arange(1), 0
        units = np.arange(self.part + 3)
        yield from ((units, place) for place in (0, self.part - 1, self.part, len(units) - 1))

    def _moves(self, rig: Rig, found: Crafted, units: UnitNumbers, place: int) -> list[float]:
        """Returns the record's moves of the sum: from the batch without it, from one with a broken record in its place,
        and as one of several that are the same."""
        self.beat()
        self._write(units[place : place + 1], found)
        with_it, moves = rig.sum(units), []
        # Augmentation may cut a single number off.
        for broken in list_broken(self.form)[: 1 if self.coupled else None]:
            self.records.write(int(units[place]), broken, found.label)
            moves.append(move_between(with_it, rig.sum(units)))
        self.records.forget()
        if not self.coupled:
            moves.append(move_between(with_it, rig.sum(np.delete(units, place))))
            few = units[: min(len(units), self.part)]
            self._write(few, found)
            moves.append(move_between(rig.sum(few), rig.sum(few[:-1])))
            self.records.forget()
        return moves or [0.0]

    def _replaced(self, found: Crafted, other: Crafted, units: UnitNumbers, place: int) -> float:
        sums = []
        for each in (found, Crafted(0.0, 1.0, self.form.limited(other.features[None])[0], other.label)):
            self._write(units[place : place + 1], each)
            sums.append(self.rig.sum(units))
        self.records.forget()
        return move_between(*sums)

    def _write(self, units: UnitNumbers, found: Crafted) -> None:
        for unit in units.tolist():
            self.records.write(unit, found.features, found.label)

    def _set(self, scale: float) -> None:
        with torch.no_grad():
            for parameter, start in zip(self.rig.trained, self._start, strict=True):
                parameter.copy_(scale * start)


def length_of(summed: ClippedSum) -> float:
    """Returns the length of a sum, in the bound that it states."""
    return move_between(summed, ClippedSum(torch.zeros_like(summed.value), summed.bound, summed.norm))


def _excess(name: str, text: str, largest: float, allowed: float) -> AuditFinding:
    return AuditFinding("program", name, text, Excess(largest=min(largest, UNBOUNDED), allowed=allowed))
