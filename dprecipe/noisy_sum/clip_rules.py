"""Rules of the `clip` block that every mechanism which clips has, and what is assumed of clipped sums."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import Assumption
from dprecipe.data.image_steps import Crop, Flip
from dprecipe.faults import Finding
from dprecipe.noisy_sum.clip import AdaptiveClip, AutomaticClip, Clip, PerLayerClip


def check_layer_norms(clip: Clip, facts: Facts) -> Iterator[Finding]:
    """Per-layer clipping has either one norm to split, or one norm for each layer."""
    if not isinstance(clip, PerLayerClip):
        return
    if (clip.norm is None) == (clip.norms is None):
        both = clip.norm is not None
        yield Finding(
            "R264",
            "the clip block has both norm and norms" if both else "the clip block has no norm",
            "remove one of them" if both else "add norm, which is split over the layers, or norms, one for each layer",
            "mechanism.clip.norms" if both else "mechanism.clip",
        )
    elif clip.norms is not None and clip.groups is None and facts.layers and len(clip.norms) != len(facts.layers):
        yield Finding(
            "R264",
            f"the model has {len(facts.layers)} layers, mechanism.clip.norms {len(clip.norms)} entries",
            f"write {len(facts.layers)} norms, in the order of the layers; or norm, which is split over them",
            "mechanism.clip.norms",
        )


def check_groups(clip: Clip, facts: Facts) -> Iterator[Finding]:
    """Groups of layers fit the model, and each has its norm and its noise."""
    if not isinstance(clip, PerLayerClip):
        return
    layers, count = len(facts.layers), len(clip.groups or clip.norms or clip.noise or ())
    grouped = "layers" if clip.groups is None else "groups"
    if clip.groups is not None and layers and sum(clip.groups) != layers:
        yield Finding(
            "R264",
            f"the model has {layers} layers, the groups of mechanism.clip.groups {sum(clip.groups)} together",
            f"write numbers that add up to {layers}, in the order of the layers",
            "mechanism.clip.groups",
        )
    elif clip.groups is None and clip.norms is None and clip.noise is not None and layers and count != layers:
        yield Finding(
            "R264",
            f"the model has {layers} layers, mechanism.clip.noise {count} entries",
            f"write {layers} numbers, in the order of the layers; or groups of layers, with a number for each",
            "mechanism.clip.noise",
        )
    for name, values in (("norms", clip.norms), ("noise", clip.noise)):
        if values is not None and len(values) != count:
            yield Finding(
                "R264",
                f"the clip block has {count} {grouped}, mechanism.clip.{name} {len(values)} entries",
                f"write {count} numbers, one for each of the {grouped}",
                f"mechanism.clip.{name}",
            )


def assume_clipping(clip: Clip, unit: str, norm: str, augmentations: int) -> tuple[Assumption, ...]:
    """Returns what is assumed of the gradients that are summed."""
    clipping = Assumption("clipping", describe_sensitivity(clip, unit, norm), "code")
    if augmentations == 1:
        return (clipping,)
    averaged = f"the {augmentations} copies of a record are averaged before the gradient of their {unit} is clipped"
    return clipping, Assumption("augmentations", averaged, "code")


def check_augmentations(augmentations: int, facts: Facts) -> Iterator[Finding]:
    """Several copies of a record need preprocessing that makes them differ."""
    steps = [step.operation for step in facts.data.preprocess]
    differ = any(isinstance(step, Crop) or (isinstance(step, Flip) and 0 < step.probability < 1) for step in steps)
    if augmentations > 1 and not differ:
        yield Finding(
            "R265",
            f"all {augmentations} copies of a record are equal: no step of data.preprocess makes them differ",
            "add crop, or flip with a probability between 0 and 1, to data.preprocess; or remove augmentations",
            "mechanism.augmentations",
        )


def describe_sensitivity(clip: Clip, unit: str, norm: str) -> str:
    """Returns what one unit can move, and by how much. `norm`: L1 or L2."""
    value = clip.norm
    bound = f"at most {value:g}" if isinstance(value, float) else "at most the clip norm of the phase"
    start = f"one {unit} more or less moves a sum of gradients by"
    if isinstance(clip, PerLayerClip):
        part = "layer" if clip.groups is None else "group of layers"
        layer_norm = "share of it" if clip.norms is None else "norm of its own"
        movement = f"{bound} in {norm} norm" if clip.norms is None else f"at most a {norm} norm a {part}"
        noise = "its noise is in proportion" if clip.noise is None else "its noise has a multiplier of its own"
        return f"{start} {movement}: the gradient of each {part} is clipped to a {layer_norm}, and {noise}"
    if isinstance(clip, AutomaticClip):
        return f"{start} {bound} in {norm} norm: every gradient is scaled to less than it"
    if isinstance(clip, AdaptiveClip):
        return (
            f"{start} at most the clip norm of the step in L2 norm, and the count of gradients within it by ½; both "
            "are one release, and the next clip norm is computed from it alone"
        )
    return f"{start} {bound} in {norm} norm"
