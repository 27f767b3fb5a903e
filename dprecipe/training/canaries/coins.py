"""The secret coins of a run's canaries: drawn once, before its first step, and kept in `private/` for all attempts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe import durable
from dprecipe.faults import RunFailed
from dprecipe.noise.entropy import Secrets, Stream

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
