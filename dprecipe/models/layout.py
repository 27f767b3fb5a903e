"""The tensors of the zoo's modules by name and shape, and the sizes of their layers, in plain arithmetic: no torch.

A layer's name is that of its tensors without their last part: `conv_1` of `conv_1.weight` and `conv_1.bias`. Parts of a
network that hold layers have names too: `layers.0` holds `layers.0.norm_1`, `layers.0.up` and others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import assert_never

from dprecipe.faults import Finding
from dprecipe.models.schema import (
    CausalLm,
    Cnn,
    GradientBoosting,
    HuberRegression,
    HuberSvm,
    LayerName,
    LeastSquares,
    Linear,
    Location,
    LogisticRegression,
    Mlp,
    Model,
    NoModel,
    Pretrained,
    RandomForest,
    SoftmaxRegression,
    Timm,
    TrainedLayers,
    Transformer,
    Transformers,
    WideResNet,
)
from dprecipe.text.spelling import nearest_word


@dataclass(frozen=True, slots=True)
class PoolWindow:
    """A convolution or pooling window, square."""

    kernel: int
    stride: int = 1
    padding: int = 0

    def output(self, size: int) -> int:
        """Returns the length of the output along one axis; below 1 where the window does not fit."""
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


_BLOCK = (PoolWindow(3, 1, 1), PoolWindow(3, 1, 1), PoolWindow(2, 2))

_LENET = (PoolWindow(5, 1, 2), PoolWindow(2, 2), PoolWindow(5), PoolWindow(2, 2))

CNN_WINDOWS: dict[str, tuple[PoolWindow, ...]] = {
    "tempered-mnist": (PoolWindow(8, 2, 2), PoolWindow(2, 1), PoolWindow(4, 2), PoolWindow(2, 1)),
    "tempered-cifar": _BLOCK * 3,
    "lenet": _LENET,
    "lenet-norm": _LENET,
    "scattering": (PoolWindow(2, 2), PoolWindow(1), PoolWindow(3, 1, 1)),
}
"""The windows that an image passes through, in order, by preset."""


def length_after(windows: Sequence[PoolWindow], size: int) -> int:
    """Returns the length of one axis after all windows; 0 where one of them does not fit."""
    for window in windows:
        size = window.output(size)
        if size < 1:
            return 0
    return size


def smallest_size(preset: str) -> int:
    """Returns the smallest height (and width) of an image that the preset accepts."""
    return next(size for size in range(1, 1000) if length_after(CNN_WINDOWS[preset], size) > 0)


GROUPS = 16
"""Groups in the group normalisation of wide residual networks."""
MIN_WIDE_RESNET_SIZE = 4
"""Height and width of an image: the last stage sees a quarter of them, and a group is more than one number."""


def block_channels(depth: int, width: int) -> list[tuple[int, int, int, bool]]:
    """Lists the blocks of a wide residual network: channels before and after, stride, and whether a stage begins."""
    blocks = []
    before = 16
    for stage, after in enumerate((16 * width, 32 * width, 64 * width)):
        for number in range((depth - 4) // 6):
            blocks.append((before, after, 2 if stage and not number else 1, number == 0))
            before = after
    return blocks


Shapes = dict[str, tuple[int, ...]]

TREES = {"root": "I64", "child": "I64", "feature": "I64", "threshold": "F32", "value": "F64"}
"""The tensors of trees, by type; how many trees and nodes there are is learned."""

_CONVOLUTIONS = {
    "tempered-mnist": ((0, 16), (3, 32)),
    "tempered-cifar": ((0, 32), (2, 32), (5, 64), (7, 64), (10, 128), (12, 128)),
    "lenet": ((0, 6), (3, 16)),
    "lenet-norm": ((0, 8), (4, 16)),
    "scattering": ((1, 64), (3, 64)),
}
"""Place and output channels of the convolutions."""
_KERNELS = {
    "tempered-mnist": (0, 2),
    "tempered-cifar": (0, 1, 3, 4, 6, 7),
    "lenet": (0, 2),
    "lenet-norm": (0, 2),
    "scattering": (1, 2),
}
"""Places of the convolutions among a preset's windows."""
_DENSE: dict[str, tuple[tuple[int, int | None], ...]] = {
    "tempered-mnist": ((7, 32), (9, None)),
    "tempered-cifar": ((16, 128), (18, None)),
    "lenet": ((7, 120), (9, None)),
    "lenet-norm": ((9, 120), (12, None)),
    "scattering": ((6, None),),
}
"""Place and width of the dense layers; None: the classes."""
_NORMS = {"lenet-norm": ((2, 8), (6, 16), (10, 120))}
"""Place and width of the normalisations."""


def layer_shapes(model: Model, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> Shapes | None:
    """Returns all tensors of the built module's state, adapters merged, by name, layer by layer in their order in the
    module. None for trees and for models of other libraries, whose tensors are unknown until they are built or grown.

    `shape`: of one record's features; it has to pass `dprecipe.models.checks`. `classes` are the outputs: 1 of a
    number or a count. `vocabulary`: how many tokens there are, of a model of tokens.
    """
    match model:
        case LogisticRegression() | SoftmaxRegression() | HuberSvm() | LeastSquares() | HuberRegression() | Linear():
            weight: Shapes = {"1.weight": (classes, math.prod(shape))}
            return weight | {"1.bias": (classes,)} if model.bias else weight
        case Location():
            return {"location": (1,)}
        case NoModel():
            return {}
        case Mlp(hidden=hidden):
            widths = (math.prod(shape), *hidden, classes)
            pairs = itertools.pairwise(widths)
            return dict(_all(_layer(2 * i + 1, (after, before)) for i, (before, after) in enumerate(pairs)))
        case Cnn(preset=preset):
            tensors = dict(_all(_convolutional(preset, shape, classes)))
            return dict(sorted(tensors.items(), key=lambda tensor: int(tensor[0].partition(".")[0])))
        case WideResNet(depth=depth, width=width):
            return dict(_all(_wide_resnet(depth, width, shape[0], classes)))
        case Transformer():
            return dict(_all(_transformer(model, math.prod(shape), vocabulary, classes)))
        case RandomForest() | GradientBoosting() | Timm() | Transformers() | CausalLm():
            return None
        case other:
            assert_never(other)


def layer_sizes(model: Model, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> tuple[int, ...]:
    """Returns trained weights and biases of each layer together, in the order of every flat gradient; none for trees,
    nor for models of other libraries, whose sizes are unknown until they are built. Adapters are layers of their own.

    Arguments as of `layer_shapes`.
    """
    tensors = layer_shapes(model, shape, classes, vocabulary) or {}
    sizes: dict[str, int] = {}
    learned = trained_parameters(model, tensors)
    for name in (name for name in tensors if name in learned):
        layer = layer_of(name)
        if isinstance(model, Transformer) and model.lora is not None and layer != "head":
            after, before = tensors[name]
            sizes |= {f"{layer}.down": model.lora.rank * before, f"{layer}.up": model.lora.rank * after}
        else:
            sizes[layer] = sizes.get(layer, 0) + math.prod(tensors[name])
    return tuple(sizes.values())


def trained_parameters(model: Model, names: Iterable[str]) -> frozenset[str]:
    """Returns the tensors of the model that are trained; adapters train the layers that they are merged into."""
    listed = list(names)
    if isinstance(model, Transformer) and model.lora is not None:
        layers, target = ("mix_in.weight", "mix_out.weight", "up.weight", "down.weight"), model.lora.target or ("*",)
        adapted = [name for name in listed if name.endswith(layers)]
        chosen = [name for name in adapted if any(fnmatchcase(layer_of(name), pattern) for pattern in target)]
        return frozenset((*chosen, *(name for name in listed if name.startswith("head."))))
    if not isinstance(model, Pretrained) or model.train == "all":
        return frozenset(listed)
    return select_tensors(model.train, listed) if isinstance(model.train, TrainedLayers) else frozenset(listed[-2:])


def _all(parts: Iterable[Shapes]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part in parts:
        yield from part.items()


def _layer(name: int | str, weight: tuple[int, ...]) -> Shapes:
    """Returns a layer with a weight, and a bias as long as its first axis."""
    return {f"{name}.weight": weight, f"{name}.bias": weight[:1]}


def _convolutional(preset: str, shape: tuple[int, ...], classes: int) -> Iterator[Shapes]:
    windows, channels = CNN_WINDOWS[preset], shape[0]
    for (place, width), index in zip(_CONVOLUTIONS[preset], _KERNELS[preset], strict=True):
        kernel = windows[index].kernel
        yield _layer(place, (width, channels, kernel, kernel))
        channels = width
    for place, width in _NORMS.get(preset, ()):
        yield _layer(place, (width,))
    before = channels * length_after(windows, shape[1]) * length_after(windows, shape[2])
    for place, after in _DENSE[preset]:
        yield _layer(place, (after or classes, before))
        before = after or classes


def _wide_resnet(depth: int, width: int, channels: int, classes: int) -> Iterator[Shapes]:
    yield _layer(0, (16, channels, 3, 3))
    blocks = block_channels(depth, width)
    for number, (before, after, _, first) in enumerate(blocks, start=1):
        if first:
            yield _layer(f"{number}.around.1", (before,))
            yield _layer(f"{number}.around.2", (after, before, 1, 1))
        yield _layer(f"{number}.norm_1", (before,))
        yield _layer(f"{number}.conv_1", (after, before, 3, 3))
        yield _layer(f"{number}.norm_2", (after,))
        yield _layer(f"{number}.conv_2", (after, after, 3, 3))
    yield _layer(len(blocks) + 2, (64 * width,))
    yield _layer(len(blocks) + 5, (classes, 64 * width))


def _transformer(model: Transformer, length: int, vocabulary: int | None, classes: int) -> Iterator[Shapes]:
    width = model.width
    yield {"tokens.weight": (model.vocabulary or vocabulary or 0, width), "places.weight": (length, width)}
    for number in range(model.layers):
        name = f"layers.{number}"
        yield _layer(f"{name}.norm_1", (width,))
        yield _layer(f"{name}.mix_in", (3 * width, width))
        yield _layer(f"{name}.mix_out", (width, width))
        yield _layer(f"{name}.norm_2", (width,))
        yield _layer(f"{name}.up", (4 * width, width))
        yield _layer(f"{name}.down", (width, 4 * width))
    yield _layer("norm", (width,))
    yield _layer("head", (classes, width))


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
        first = next((place for place, name in enumerate(listed) if name.startswith(f"{spec.from_}.")), len(listed))
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


def _fits(layer: str, pattern: str) -> bool:
    return any(fnmatchcase(part, pattern) for part in _parts_of(layer))
