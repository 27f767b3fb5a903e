"""Layers of a network that are trained, by name. No torch.

A layer's name is that of its tensors without their last part: `conv_1` of `conv_1.weight` and `conv_1.bias`. Parts of a
network that hold layers have names too: `layers.0` holds `layers.0.norm_1`, `layers.0.up` and others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from dprecipe.faults import Finding
from dprecipe.models.schema import LayerName, TrainedLayers
from dprecipe.text.spelling import nearest_word

MAX_LISTED = 60
"""Names that one message lists."""


def layer_of(tensor: str) -> str:
    """Returns the layer that a tensor or a parameter belongs to."""
    return tensor.rpartition(".")[0]


def select_tensors(spec: TrainedLayers, tensors: Iterable[str]) -> frozenset[str]:
    """Returns the tensors of the layers that are trained. `tensors`: all trainable ones, in the order of the module.

    A name selects the layer, and all layers of a part. `from` selects the first such layer and every one behind it in
    that order. A name that fits nothing selects nothing: `find_unknown_layers` tells.
    """
    listed = list(tensors)
    if spec.from_ is not None:
        first = next((place for place, name in enumerate(listed) if _is_below(name, str(spec.from_))), len(listed))
        return frozenset(listed[first:])
    patterns = [str(pattern) for pattern in spec.only or ()]
    return frozenset(name for name in listed if any(_fits(layer_of(name), pattern) for pattern in patterns))


def find_unknown_layers(spec: TrainedLayers, tensors: Sequence[str]) -> Iterator[Finding]:
    """Names that fit no layer of the network (R285), with the nearest one and the list. Arguments as of
    `select_tensors`."""
    layers = list(dict.fromkeys(map(layer_of, tensors)))
    parts = list(dict.fromkeys(part for layer in layers for part in _parts_of(layer)))
    for path, name in _written_names(spec):
        if any(
            str(name) in _parts_of(layer) if spec.from_ is not None else _fits(layer, str(name)) for layer in layers
        ):
            continue
        near = layer_of(str(name)) if str(name) in tensors else nearest_word(str(name), parts)
        listed = ", ".join(layers[:MAX_LISTED]) + (
            f" and {len(layers) - MAX_LISTED} more" if layers[MAX_LISTED:] else ""
        )
        yield Finding(
            "R285",
            f"{str(name)!a} is no layer of this network; its layers are {listed}",
            f"write {near}" if near is not None else f"choose one of these layers, such as {layers[-1]}",
            path,
        )


def _written_names(spec: TrainedLayers) -> Iterator[tuple[str, LayerName]]:
    if spec.from_ is not None:
        yield "model.train.from", spec.from_
    for place, pattern in enumerate(spec.only or ()):
        yield f"model.train.only.{place}", pattern


def _parts_of(layer: str) -> Iterator[str]:
    """Yields the parts that hold a layer, the outermost first, and the layer itself."""
    words = layer.split(".")
    yield from (".".join(words[: count + 1]) for count in range(len(words)))


def _is_below(tensor: str, part: str) -> bool:
    return tensor.startswith(f"{part}.")


def _fits(layer: str, pattern: str) -> bool:
    return any(fnmatchcase(part, pattern) for part in _parts_of(layer))
