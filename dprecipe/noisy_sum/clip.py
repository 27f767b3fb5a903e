"""The `clip` block: how far one unit can move a sum of gradients. Shared by the mechanisms that clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Block, Fraction, PositiveFloat, PositiveInt, Schedule, word_form

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
CLIP_SCHEMA: dict[str, Any] = {
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
}
"""The JSON Schema of a key `clip` beyond that of its type: the mode of a block without one is `flat`."""
