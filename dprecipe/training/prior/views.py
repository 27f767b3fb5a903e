"""Random views of images: cut out and resized, mirrored, with other brightness, contrast and colours.

Source: M. Baradad et al., "Learning to See by Looking at Noise", NeurIPS 2021; the moves are those of T. Chen et al.,
"A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020, without blur, which images this
small don't need.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

SMALLEST = 0.3
"""Part of an image's area that a view shows at least."""
STRENGTH = 0.4
"""Largest relative move of brightness, contrast and channels."""
GREY = 0.2
"""Part of the colour views that lose their colours."""


def make_view(images_NCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Returns one view of each image: numbers in [0, 1], of the same shape; draws are of the generator alone, on the
    CPU."""
    return recolour(cut_out(images_NCHW, generator), generator)


def cut_out(images_NCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Returns a rectangle of each image, of 0.3 to all of its area and of proportions 3:4 to 4:3, as large as the
    image; every second one is mirrored."""
    count = len(images_NCHW)
    drawn = torch.rand(5, count, generator=generator)
    area = SMALLEST + (1 - SMALLEST) * drawn[0]
    proportion = (0.75 + (4 / 3 - 0.75) * drawn[1]).sqrt()
    width, height = (area.sqrt() * proportion).clamp(max=1), (area.sqrt() / proportion).clamp(max=1)
    place = torch.zeros(count, 2, 3)
    place[:, 0, 0] = torch.where(drawn[4] < 0.5, width, -width)
    place[:, 1, 1] = height
    place[:, 0, 2] = (1 - width) * (2 * drawn[2] - 1)
    place[:, 1, 2] = (1 - height) * (2 * drawn[3] - 1)
    grid = affine_grid(place.to(images_NCHW.device), list(images_NCHW.shape), align_corners=False)
    return grid_sample(images_NCHW, grid, padding_mode="reflection", align_corners=False)


def recolour(images_NCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Brightness, contrast and each channel of an image times a number of its own; a fifth of colour images turn
    grey."""
    count, channels = images_NCHW.shape[:2]
    drawn = (1 + STRENGTH * (2 * torch.rand(2 + channels, count, generator=generator) - 1)).to(images_NCHW.device)
    grey = (torch.rand(count, generator=generator) < GREY).to(images_NCHW.device)
    x = images_NCHW * drawn[0, :, None, None, None]
    if channels > 1:
        x = x * drawn[2:].T[:, :, None, None]
    middle = x.mean((1, 2, 3), keepdim=True)
    x = middle + (x - middle) * drawn[1, :, None, None, None]
    x = torch.where(grey[:, None, None, None], x.mean(1, keepdim=True).expand_as(x), x)
    return x.clamp(0, 1)
