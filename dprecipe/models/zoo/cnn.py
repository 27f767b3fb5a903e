"""Convolutional networks for images (C, H, W); the first and the last layer fit the shape and the classes.

Source: N. Papernot, A. Thakurta, S. Song, S. Chien, Ú. Erlingsson, "Tempered Sigmoid Activations for Deep
Learning with Differential Privacy", AAAI 2021, tables 1 and 2, with tanh, the tempered sigmoid they
recommend.

Wide residual networks are as private training likes them: nothing is normalised over a batch.

Source: S. Zagoruyko, N. Komodakis, "Wide Residual Networks", BMVC 2016; group normalisation, standardised kernels and
the order of layers (activation, normalisation, convolution) of S. De, L. Berrada, J. Hayes, S. L. Smith, B. Balle,
"Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor, nn
from torch.nn import functional

from dprecipe.models.layout import CNN_WINDOWS, GROUPS, PoolWindow, block_channels, length_after
from dprecipe.models.schema import Cnn, WideResNet
from dprecipe.models.zoo.layers import StandardisedConv2d


def build_cnn(spec: Cnn, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Returns the preset's network. `shape` has to pass `dprecipe.models.checks`."""
    return PRESETS[spec.preset](shape, classes)


def tempered_mnist(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds a network of 26,010 parameters for 1×28×28 and 10 classes."""
    first, pool_1, second, pool_2 = CNN_WINDOWS["tempered-mnist"]
    channels = shape[0]
    return nn.Sequential(
        _convolution(channels, 16, first),
        nn.Tanh(),
        nn.MaxPool2d(pool_1.kernel, pool_1.stride),
        _convolution(16, 32, second),
        nn.Tanh(),
        nn.MaxPool2d(pool_2.kernel, pool_2.stride),
        nn.Flatten(),
        nn.Linear(32 * _area("tempered-mnist", shape), 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


def tempered_cifar(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds a network of 550,570 parameters for 3×32×32 and 10 classes."""
    windows = CNN_WINDOWS["tempered-cifar"]
    layers: list[nn.Module] = []
    channels = shape[0]
    for block, width in enumerate((32, 64, 128)):
        first, second, pool = windows[3 * block : 3 * block + 3]
        layers += [
            _convolution(channels, width, first),
            nn.Tanh(),
            _convolution(width, width, second),
            nn.Tanh(),
        ]
        layers.append(nn.MaxPool2d(pool.kernel, pool.stride))
        channels = width
    layers += [
        nn.Flatten(),
        nn.Linear(128 * _area("tempered-cifar", shape), 128),
        nn.Tanh(),
        nn.Linear(128, classes),
    ]
    return nn.Sequential(*layers)


def build_lenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds two convolutions and two layers after LeNet-5 (LeCun et al. 1998): 51,902 parameters for MNIST."""
    first, pool_1, second, pool_2 = CNN_WINDOWS["lenet"]
    return nn.Sequential(
        _convolution(shape[0], 6, first),
        nn.ReLU(),
        nn.MaxPool2d(pool_1.kernel, pool_1.stride),
        _convolution(6, 16, second),
        nn.ReLU(),
        nn.MaxPool2d(pool_2.kernel, pool_2.stride),
        nn.Flatten(),
        nn.Linear(16 * _area("lenet", shape), 120),
        nn.ReLU(),
        nn.Linear(120, classes),
    )


def lenet_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds the network of `build_lenet` with 8 and 16 channels, each layer normalised per record: 53,042
    parameters for MNIST.

    Where labels are few it learns in a fraction of the steps. Source: Y. Wu, K. He, "Group Normalization", ECCV 2018.
    """
    first, pool_1, second, pool_2 = CNN_WINDOWS["lenet-norm"]
    return nn.Sequential(
        _convolution(shape[0], 8, first),
        nn.MaxPool2d(pool_1.kernel, pool_1.stride),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        _convolution(8, 16, second),
        nn.MaxPool2d(pool_2.kernel, pool_2.stride),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * _area("lenet-norm", shape), 120),
        nn.LayerNorm(120),
        nn.ReLU(),
        nn.Linear(120, classes),
    )


def build_scattering_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds a network for the maps of a scattering transform, averaged two by two.

    It has 62,794 parameters for 243×8×8 and 10 classes.

    The first layer mixes coefficients of one place, the second places. F. Tramèr and D. Boneh, "Differentially Private
    Learning Needs Better Features (or Much More Data)", ICLR 2021, have a tanh network of two such convolutions; this
    one averages first, and has no 3×3 kernel over all coefficients: a third of the weights, and less work.
    """
    pool, first, second = CNN_WINDOWS["scattering"]
    return nn.Sequential(
        nn.AvgPool2d(pool.kernel, pool.stride),
        _convolution(shape[0], 64, first),
        nn.Tanh(),
        _convolution(64, 64, second),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64 * _area("scattering", shape), classes),
    )


PRESETS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "tempered-mnist": tempered_mnist,
    "tempered-cifar": tempered_cifar,
    "lenet": build_lenet,
    "lenet-norm": lenet_norm,
    "scattering": build_scattering_cnn,
}


def _convolution(channels: int, width: int, window: PoolWindow) -> nn.Conv2d:
    return nn.Conv2d(channels, width, window.kernel, window.stride, window.padding)


def _area(preset: str, shape: tuple[int, ...]) -> int:
    height, width = (length_after(CNN_WINDOWS[preset], size) for size in shape[1:])
    return height * width


def build_wide_resnet(spec: WideResNet, channels: int, classes: int) -> nn.Sequential:
    """Images (B, channels, H, W) to logits (B, classes); 2.7 million parameters at depth 16 and width 4."""
    kind = StandardisedConv2d if spec.weight_standardisation else nn.Conv2d
    blocks = [ResidualBlock(kind, *block) for block in block_channels(spec.depth, spec.width)]
    last = 64 * spec.width
    head = nn.Linear(last, classes)
    network = nn.Sequential(
        kind(channels, 16, 3, padding=1),
        *blocks,
        nn.ReLU(),
        nn.GroupNorm(GROUPS, last),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        head,
    )
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return network


@final
class ResidualBlock(nn.Module):
    """Two convolutions and a way around them, which has a convolution of its own where a stage begins."""

    def __init__(self, kind: type[nn.Conv2d], before: int, after: int, stride: int, first: bool) -> None:
        super().__init__()
        self.around: nn.Sequential | None = None
        if first:
            self.around = nn.Sequential(nn.ReLU(), nn.GroupNorm(GROUPS, before), kind(before, after, 1, stride))
        self.norm_1 = nn.GroupNorm(GROUPS, before)
        self.conv_1 = kind(before, after, 3, stride, padding=1)
        self.norm_2 = nn.GroupNorm(GROUPS, after)
        self.conv_2 = kind(after, after, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv_1(self.norm_1(functional.relu(x)))
        inner = self.conv_2(self.norm_2(functional.relu(inner)))
        added: Tensor = inner + (x if self.around is None else self.around(x))
        return added
