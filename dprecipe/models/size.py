"""How many parameters the modules of the zoo have, layer by layer, in plain arithmetic: no torch."""

from __future__ import annotations

import math
from typing import assert_never

from dprecipe.models.geometry import CNN_WINDOWS, spatial, stages
from dprecipe.models.schema import (
    Cnn,
    GradientBoosting,
    HuberRegression,
    HuberSvm,
    LeastSquares,
    Location,
    LogisticRegression,
    Mlp,
    Model,
    Pretrained,
    RandomForest,
    SoftmaxRegression,
    Timm,
    Transformer,
    Transformers,
    WideResNet,
)

_CONVOLUTIONS = {
    "tempered-mnist": (16, 32),
    "tempered-cifar": (32, 32, 64, 64, 128, 128),
    "lenet": (6, 16),
    "lenet-norm": (8, 16),
    "scattering": (64, 64),
}
"""Output channels of the convolutions."""
_POOLS = {
    "tempered-mnist": (1, 3),
    "tempered-cifar": (2, 5, 8),
    "lenet": (1, 3),
    "lenet-norm": (1, 3),
    "scattering": (0,),
}
"""Which of a preset's windows pool and so have no parameters."""
_DENSE = {"tempered-mnist": (32,), "tempered-cifar": (128,), "lenet": (120,), "lenet-norm": (120,), "scattering": ()}
"""Widths of the hidden dense layers after the convolutions."""
_NORMALISED = ("lenet-norm",)
"""Presets with a weight and a bias for each output of a hidden layer, in a layer of their own."""


def layer_sizes(model: Model, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> tuple[int, ...]:
    """Trained weights and biases of each layer together, in the order of every flat gradient; none for trees, nor for
    models of other libraries, whose sizes nobody knows before they are built.

    `classes` are the outputs: 1 of a regression. `vocabulary`: how many tokens there are, of a model of tokens.

    `shape` has to pass `dprecipe.models.checks`.
    """
    sizes = _layers(model, shape, classes, vocabulary)
    return sizes[-1:] if isinstance(model, Pretrained) and model.train == "head" else sizes


def _layers(model: Model, shape: tuple[int, ...], classes: int, vocabulary: int | None) -> tuple[int, ...]:
    match model:
        case LogisticRegression() | SoftmaxRegression() | HuberSvm() | LeastSquares() | HuberRegression():
            return ((math.prod(shape) + model.bias) * classes,)
        case Location():
            return (1,)
        case Mlp(hidden=hidden):
            return _dense(math.prod(shape), (*hidden, classes))
        case Cnn(preset=preset):
            windows = CNN_WINDOWS[preset]
            kernels = [window.kernel for index, window in enumerate(windows) if index not in _POOLS[preset]]
            sizes, channels = [], shape[0]
            for kernel, width in zip(kernels, _CONVOLUTIONS[preset], strict=True):
                sizes.append((channels * kernel * kernel + 1) * width)
                channels = width
            area = spatial(windows, shape[1]) * spatial(windows, shape[2])
            sizes += _dense(channels * area, (*_DENSE[preset], classes))
            if preset in _NORMALISED:
                hidden = (*_CONVOLUTIONS[preset], *_DENSE[preset])
                pairs = zip(sizes, (2 * width for width in hidden), strict=False)
                sizes = [*(size for pair in pairs for size in pair), sizes[-1]]
            return tuple(sizes)
        case WideResNet(depth=depth, width=width):
            sizes = [(9 * shape[0] + 1) * 16]
            for before, after, _, first in stages(depth, width):
                sizes += [2 * before, (before + 1) * after] if first else []
                sizes += [2 * before, (9 * before + 1) * after, 2 * after, (9 * after + 1) * after]
            return (*sizes, 2 * 64 * width, (64 * width + 1) * classes)
        case Transformer(width=width, layers=layers, lora=lora):
            dense = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
            head = (width + 1) * classes
            if lora is not None:
                return (*tuple(lora.rank * side for sides in dense for side in sides) * layers, head)
            mix_in, mix_out, up, down = ((before + 1) * after for before, after in dense)
            layer = (2 * width, mix_in, mix_out, 2 * width, up, down)
            tables = ((model.vocabulary or vocabulary or 0) * width, math.prod(shape) * width)
            return (*tables, *layer * layers, 2 * width, head)
        case RandomForest() | GradientBoosting() | Timm() | Transformers():
            return ()
        case other:
            assert_never(other)


def _dense(width: int, layers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((before + 1) * after for before, after in zip((width, *layers), layers, strict=False))
