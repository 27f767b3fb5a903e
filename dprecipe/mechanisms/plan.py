"""The plan: everything the runtime obeys, frozen, with every free variable solved.

After `plan` nobody reads the recipe's privacy fields. The digest covers all that can change what is learned or
spent; `runtime` is outside it, because speed knobs can't change privacy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dprecipe.data.schema import Data
from dprecipe.faults import Finding
from dprecipe.language.blocks import Release, Runtime
from dprecipe.language.training import Training
from dprecipe.models.schema import Model
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.guarantee import Guarantee

CheckedBy = Literal["code", "test", "declaration"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something the guarantee rests on, and what checks it."""

    id: str
    text: str
    checked_by: CheckedBy


@dataclass(frozen=True, slots=True)
class Budget:
    """The cap, and how it is counted."""

    epsilon: float
    delta: float
    neighbouring: Neighbouring
    accountant: str


@dataclass(frozen=True, slots=True)
class Length:
    """How long the run is, in integers: `steps` noisy updates, or queries; one nominal epoch is `steps_per_epoch`."""

    steps: int
    steps_per_epoch: int
    expected_lot: float
    """The public divisor of every noisy sum, in units; or how many units a teacher has, on average."""


@dataclass(frozen=True, slots=True)
class Source:
    """The texts a recipe came from, so that a stranger can read it again."""

    text: str
    file: str
    overrides: tuple[str, ...] = ()
    parents: tuple[tuple[str, str], ...] = ()
    """(name as written in `extends`, text), nearest first."""
    attachments: tuple[tuple[str, str], ...] = ()
    """(name, text): what the accounting needs to know of other files the recipe names, such as a codebook."""

    @property
    def digest(self) -> str:
        pairs = (*self.parents, *self.attachments)
        parts = [self.text, *self.overrides, *(part for pair in pairs for part in pair)]
        return digest_of(parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the run will do, spend and release."""

    name: str
    description: str
    source: Source
    resolved: Mapping[str, Any]
    """The recipe with every default filled in and `auto` as written, JSON types only."""
    mechanism: str
    settings: Mapping[str, Any]
    """The mechanism's own solved constants (dpsgd: clip_norm, noise_multiplier, scheme, sampling_rate)."""
    solved: Mapping[str, float | int]
    length: Length
    sampling_rate: float | None
    events: tuple[Charge, ...]
    guarantee: Guarantee
    budget: Budget
    released: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    data: Data
    model: Model
    training: Training
    release: Release
    runtime: Runtime = field(compare=False)
    warnings: tuple[Finding, ...] = ()

    @property
    def publishes_scores(self) -> bool:
        """Held-out records are declared public: what is measured on them may be shown to anyone."""
        return self.data.test is not None and self.data.test.access == "public"

    @property
    def reads(self) -> frozenset[str]:
        """The names of the attachments that the plan was made with."""
        return frozenset(self.settings.get("attachments", ()))

    @property
    def largest_expected_batch(self) -> float:
        """Units of a batch, on average, in the phase whose batches are the largest."""
        phases = self.settings.get("phases", ())
        return max([self.length.expected_lot, *(float(p["expected_lot"]) for p in phases if "expected_lot" in p)])

    @property
    def digest(self) -> str:
        """SHA-256 over everything but the runtime and the texts' layout."""
        content = self._content()
        content["resolved"] = {key: value for key, value in self.resolved.items() if key != "runtime"}
        content["settings"] = dict(self.settings)
        return digest_of(content)

    def _content(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "solved": dict(self.solved),
            "steps": self.length.steps,
            "sampling_rate": self.sampling_rate,
            "events": [charge.to_json() for charge in self.events],
            "guarantee": self.guarantee.to_json(),
            "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
            "released": list(self.released),
            "assumptions": [{"id": a.id, "text": a.text, "checked_by": a.checked_by} for a in self.assumptions],
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as `dprecipe plan --format json` prints it (schema `dprecipe.plan/v1`)."""
        return {
            "schema": "dprecipe.plan/v1",
            "recipe": {"name": self.name, "digest": self.source.digest},
            "digest": self.digest,
            **self._content(),
            "settings": dict(self.settings),
        }


def canonical_json(content: Any) -> str:
    """One text for one value: sorted keys, no spaces, shortest floats, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(content: Any) -> str:
    """`sha256:…` of the canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(content).encode()).hexdigest()
