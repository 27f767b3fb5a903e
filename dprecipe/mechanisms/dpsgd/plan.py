"""DP-SGD's plan: batches, clipping and noise, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dprecipe.contract.mechanism import MechanismPlan
from dprecipe.noisy_sum.clipped_plan import ClippedPlan, format_range


@dataclass(frozen=True)
class DpsgdPlan(ClippedPlan):
    """A run of DP-SGD."""

    kind: ClassVar[str] = "dpsgd"
    cap: int | None
    """Upper bound on the batch size in units, from the recipe."""

    @property
    def max_batch_size(self) -> int | None:
        return self.cap

    @property
    def has_one_norm(self) -> bool:
        return self.clip.mode != "per_layer"

    def describe(self) -> list[tuple[str, str]]:
        clip, phases = self.clip, self.phases
        cap = "" if self.cap is None else f", {self.cap:,} at most"
        exact = ", exactly" if self.scheme in ("fixed_size", "permuted") else ""
        name = "clip norm" if clip.norms is None or len(set(clip.norms)) == 1 else "clip norms"
        multiplier = format_range([phase.noise_multiplier for phase in phases])
        family = ", laplace" if self.noise_family == "laplace" else ""
        rows = [
            ("steps", f"{self.length.steps:,}"),
            ("expected batch", f"{format_range([phase.divisor for phase in phases])}{cap}{exact}"),
            ("sampling rate", self._rates()),
            ("noise multiplier", f"{multiplier} × {name} {self.format_norms()}{family}"),
        ]
        groups = self.group_multipliers(phases[-1])
        if groups is not None:
            each = ", ".join(f"{z:.6g} × {norm:g}" for z, norm in zip(groups, clip.norms or (), strict=True))
            rows[-1] = ("noise multiplier", f"{multiplier}, of all layers together")
            rows.append(("noise by layer", each if len(phases) == 1 else f"{each}, in the last phase"))
        rows += super().describe()
        if len(phases) > 1:
            lengths = format_range(sorted(phase.steps for phase in phases))
            rows.append(("phases", f"{len(phases)}, {lengths} steps each"))
        return rows

    def _rates(self) -> str:
        rates = [rate for rate in map(self.rate_of, self.phases) if rate is not None]
        if not rates:
            steps = f"one of the {self.steps_per_epoch:,} steps of an epoch"
            each = {"dealt": steps if self.cap is None else f"at most {steps}", "permuted": f"at most {steps}"}.get(
                self.scheme, "every step"
            )
            return f"each unit in {each}"
        return f"{rates[0]:.6g}" if len(set(rates)) == 1 else format_range([float(f"{rate:.6g}") for rate in rates])


PLAN: type[MechanismPlan] = DpsgdPlan
