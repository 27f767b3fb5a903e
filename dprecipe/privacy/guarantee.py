"""The guarantee of a list of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dprecipe.privacy.adjacency import Neighbouring


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The (ε, δ) of a list of events: upper bounds, rounded up, by a named accountant and a second one."""

    epsilon: float
    delta: float
    neighbouring: Neighbouring
    unit: str
    accountant: str
    alternative_accountant: str
    alternative_epsilon: float
    profile: tuple[tuple[float, float], ...]
    by_position: tuple[tuple[int, float, float], ...] = ()
    """Rows (position, ε at δ, δ at ε), if protection depends on a record's place in the file; `epsilon` is the
    largest."""

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighbouring": self.neighbouring.value,
            "unit": self.unit,
            "accountant": self.accountant,
            "alternative": {"accountant": self.alternative_accountant, "epsilon": self.alternative_epsilon},
            "profile": [{"epsilon": epsilon, "delta": delta} for epsilon, delta in self.profile],
        }
        if self.by_position:
            content["by_position"] = [
                {"position": position, "epsilon": epsilon, "delta": delta}
                for position, epsilon, delta in self.by_position
            ]
        return content
