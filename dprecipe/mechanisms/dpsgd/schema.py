"""The `mechanism` block of DP-SGD: clip each unit's gradient, add noise to the sum, step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Auto, Block, Fraction, PositiveFloat, PositiveInt, Schedule, word_form
from dprecipe.noise.schema import MovingGaussianNoise, MovingNoise, phases
from dprecipe.noisy_sum.sampling import BatchSampling, UniformSteps, find_cap

Threshold = Annotated[float, Field(ge=1e-6, le=1e6)]
Weight = Annotated[float, Field(ge=1e-3, le=1e3)]


class NormSchedule(Schedule):
    """A clip norm that moves from one value to another, then stays."""

    from_: Annotated[float, Field(ge=1e-6, le=1e6, alias="from", description="at the first step")]
    to: Annotated[float, Field(ge=1e-6, le=1e6, description="at the last step of the schedule")]


Norm = Annotated[
    Annotated[Threshold, Tag("number")] | Annotated[NormSchedule, Tag("block")],
    Discriminator(lambda value: "block" if word_form(value) == "block" else "number"),
]
NORM = "largest norm of a unit's gradient, L2 (with Laplace noise L1): a number or a schedule"


class FlatClip(Block):
    """One norm over all parameters."""

    mode: Literal["flat"] = Field("flat", description="`flat`: one norm over all parameters")
    norm: Norm = Field(description=NORM)


class PerLayerClip(Block):
    """A norm for the parameters of each layer, or group of layers. Exactly one of `norm` and `norms`."""

    mode: Literal["per_layer"]
    norm: Norm | None = Field(
        None, description="of all layers together, shared out evenly: norm / √layers each (with Laplace noise / layers)"
    )
    norms: Annotated[tuple[Threshold, ...], Field(min_length=1)] | None = Field(
        None, description="of each layer, in the model's order"
    )
    groups: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = Field(
        None,
        description="how many layers, in the model's order, are clipped together as one; each by itself when left out",
    )
    noise: Annotated[tuple[Weight, ...], Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="of each layer or group: its noise over its own norm, in units of noise.multiplier; when left out, "
        "noise.multiplier is that of all together, and each has the same part of it",
    )


class AutomaticClip(Block):
    """A scaling of every gradient, long or short, to norm · ‖g‖ / (‖g‖ + stability) (Bu et al. 2023, AUTO-S)."""

    mode: Literal["automatic"]
    norm: Norm = Field(description=NORM)
    stability: PositiveFloat = Field(
        0.01, description="γ; the smaller it is, the closer all gradients get to the same norm"
    )


class AdaptiveClip(Block):
    """A norm that follows a quantile of the gradients' norms, by noisy counts (Andrew et al. 2021)."""

    mode: Literal["adaptive"]
    norm: Threshold = Field(description="at the first step; L2")
    quantile: Fraction = Field(0.5, description="target share of gradients within the norm")
    learning_rate: PositiveFloat = Field(0.2, description="η: the norm moves by exp(-η (share - quantile)) a step")
    count_noise: PositiveFloat | None = Field(
        None, description="standard deviation of the noise on the count, in units; batch_size / 20 when left out"
    )


def _mode(value: Any) -> Any:
    """Returns the tag of a clip block; `flat` if it has none."""
    mode = value.get("mode", "flat") if isinstance(value, Mapping) else getattr(value, "mode", "flat")
    return mode if isinstance(mode, str) else None


Clip = Annotated[
    Annotated[FlatClip, Tag("flat")]
    | Annotated[PerLayerClip, Tag("per_layer")]
    | Annotated[AutomaticClip, Tag("automatic")]
    | Annotated[AdaptiveClip, Tag("adaptive")],
    Discriminator(_mode),
]


class Dpsgd(Block):
    """DP-SGD (Abadi et al. 2016)."""

    kind: Literal["dpsgd"]
    clip: Clip = Field(
        description="how far one unit can move the sum of gradients",
        json_schema_extra={
            "discriminator": {
                "propertyName": "mode",
                "default": "flat",
                "mapping": {
                    "flat": "#/$defs/FlatClip",
                    "per_layer": "#/$defs/PerLayerClip",
                    "automatic": "#/$defs/AutomaticClip",
                    "adaptive": "#/$defs/AdaptiveClip",
                },
            }
        },
    )
    noise: MovingNoise = Field(description="one noise, or a list of phases in order")
    sampling: BatchSampling
    augmentations: PositiveInt = Field(
        1, description="independently augmented copies of each record; their gradients are averaged before clipping"
    )

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """The values that may be `auto`, by dotted path."""
        result = {f"{path}.multiplier": noise.multiplier for path, noise in phases(self.noise)}
        return {path: value for path, value in result.items() if not isinstance(value, Schedule)}

    def uniform_steps(self) -> UniformSteps | None:
        """Returns the steps, if all are equal and the noise is Gaussian; else None."""
        noise, norm, sampling = self.noise, self.clip.norm, self.sampling
        if (
            not isinstance(norm, float)
            or getattr(self.clip, "noise", None) is not None
            or not isinstance(noise, MovingGaussianNoise)
            or isinstance(noise.multiplier, Schedule)
            or sampling.scheme not in ("poisson", "dealt", "full_batch")
            or find_cap(sampling) is not None
            or isinstance(getattr(sampling, "batch_size", None), Schedule)
        ):
            return None
        return UniformSteps(norm, noise.multiplier, sampling)


BLOCK = Dpsgd
