"""The interface between the program of a run and its canaries, whatever they are; their coins and their places.

Coins are secret: drawn once, before the first step, and kept in `private/` for all attempts.

Places are public: a function of the plan's digest, the step, and the canary's number. A canary's gradient has one
coordinate in each group of clipped parameters, another one in each step. A canary that kept its coordinate would
compete with what the records want of that weight: their gradients there add up over the steps, and far exceed the
canary's. So coordinates and signs change, and what the records add to a score has a random sign of its own in each step
and averages out (as a spread spectrum does). For the same reason canaries pull no weight in one direction: to the model
they are a little more noise.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe import durable
from dprecipe.faults import RunFailed
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.privacy.events import Event
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.clipping import Clipping


class RunCanaries(Protocol):
    """The canaries of a run. Their numbers as units follow those of the records."""

    @property
    def coins(self) -> Coins:
        """Coins that say which of them are in."""

    @property
    def units(self) -> int:
        """Number of units that batches are drawn from: records and canaries."""

    def split(self, units: UnitNumbers) -> tuple[UnitNumbers, Numbers | None]:
        """Returns the units of a batch whose records are read; and the canaries among the others, by number, where they
        are to be added to the sum."""

    def add(
        self, clipped: ClippedSum, model: nn.Module, clipping: Clipping | None, step: int, sampled: Numbers
    ) -> ClippedSum:
        """Returns the sum with those canaries; it may be overwritten."""

    def score(self, noisy: Tensor, event: Event, units: UnitNumbers) -> None:
        """Takes the noisy sum that was released of what `add` returned last.

        `units`: the whole batch, whichever process adds which of them.
        """

    def end_event(self) -> None:
        """Notes that all sums of an event were released."""

    def rank(self, released: Mapping[str, Tensor]) -> Floats:
        """Returns (M,): the larger, the likelier a canary was in. It is made of noisy sums and public numbers; in a
        fixed order, of places, too, which depend on no record.

        `released`: the weights that are released.
        """

    def state(self) -> dict[str, Any]:
        """Returns what a later attempt needs; called between events. Tensors, numbers and text only."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            KeyError, TypeError, ValueError: it is not of these canaries.
        """


FILE = "canaries.json"
"""Name of the file in `private/`."""
SCHEMA = "dprecipe.canaries/v1"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Coins:
    """Outcomes of the canaries' coins, (M,) bool: True is in the training set. They are printed nowhere."""

    inside: NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"Coins({self.count})"

    @property
    def count(self) -> int:
        return len(self.inside)

    @property
    def digest(self) -> str:
        """Digests all coins, for files in `private/` alone."""
        return hashlib.sha256(b"dprecipe canaries\0" + self._bytes()).hexdigest()

    @staticmethod
    def draw(count: int, stream: Stream) -> Coins:
        """Draws fair and independent coins."""
        return Coins((stream.words(count) & np.uint64(1)).astype(bool))

    def _bytes(self) -> bytes:
        return self.inside.tobytes()


def open_coins(private: Path, count: int, secrets: Secrets, *, has_state: bool) -> Coins:
    """Returns the coins of a run: those that an earlier attempt has drawn, or new ones, which are on disk before this
    returns.

    `has_state`: the attempt goes on from a checkpoint, which has scores.

    Raises:
        RunFailed: they are lost or damaged, and the run's scores are of no use without them; or the disk refuses.
    """
    path = private / FILE
    try:
        content = json.loads(durable.read_bytes(path))
        digits = [int(digit) for digit in content["inside"]]
        if content["schema"] != SCHEMA or len(digits) != count or not set(digits) <= {0, 1}:
            raise ValueError("not the coins of this run")
        return Coins(np.array(digits, dtype=bool))
    except FileNotFoundError:
        if has_state:
            raise RunFailed(
                f"{path} is lost: which canaries were in the run so far", "put the run's own file back, or start again"
            ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFailed(
            f"{path} can't be read: which canaries are in the run", "put the run's own file back, or start again"
        ) from None
    coins = Coins.draw(count, secrets.stream("canaries", 0))
    text = json.dumps({"schema": SCHEMA, "inside": "".join(str(int(inside)) for inside in coins.inside)})
    with durable.writing(path, "check the disk; continue with --resume"):
        durable.replace_file(path, text.encode())
    return coins


Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the groups of clipped parameters in a flat gradient: group g has the coordinates
    `starts[g][k]` … `starts[g][k] + lengths[g][k]` of each of its parts k."""

    starts: tuple[Numbers, ...]
    lengths: tuple[Numbers, ...]

    @staticmethod
    def of(groups: Sequence[Sequence[slice]]) -> Layout:
        """Returns the layout of the groups, each a list of slices."""
        return Layout(
            tuple(np.array([part.start for part in parts], np.int64) for parts in groups),
            tuple(np.array([part.stop - part.start for part in parts], np.int64) for parts in groups),
        )

    def flat(self, group: int, places: Numbers) -> Numbers:
        """Returns the coordinates of a flat gradient at these places of a group."""
        ends = np.cumsum(self.lengths[group])
        part = np.searchsorted(ends, places, side="right")
        result: Numbers = self.starts[group][part] + places - (ends - self.lengths[group])[part]
        return result


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """Places in one step, for G groups and M canaries: coordinates of a flat gradient, and signs, (G, M) each."""

    places: Numbers
    signs: Floats


def place_canaries(layout: Layout, count: int, key: str, step: int) -> Placement:
    """Places `count` canaries in a step.

    Guarantees: the same for the same arguments; no two canaries share a coordinate of a group that has at least as many
    as there are canaries.

    `key`: the plan's digest.
    """
    generator = generator_of(key, step)
    numbers, places, signs = np.arange(count), [], []
    for group, lengths in enumerate(layout.lengths):
        size = int(lengths.sum())
        places.append(layout.flat(group, (_draw_stride(generator, size) * numbers + generator.integers(size)) % size))
        signs.append(2.0 * generator.integers(2, size=count) - 1.0)
    return Placement(np.stack(places), np.stack(signs))


def _draw_stride(generator: np.random.Generator, size: int) -> int:
    """Returns a number below `size` whose first `size` multiples are all different modulo it."""
    while True:
        stride = int(generator.integers(1, max(2, size)))
        if math.gcd(stride, size) == 1:
            return stride


def generator_of(key: str, number: int) -> np.random.Generator:
    """Returns public draws: a function of the plan's digest and a number."""
    return np.random.default_rng([int(key.removeprefix("sha256:"), 16), number])
