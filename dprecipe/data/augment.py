"""Augmentation: random moves of an image, in training only, by constants of the recipe and a seeded
generator.

Each record is moved on its own and stays one record, so that clipping sees one gradient a record as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dprecipe.data.schema import Crop, Flip, Step


def make_augmentation(steps: Sequence[Step], generator: torch.Generator) -> Callable[[Tensor], Tensor] | None:
    """Returns the function that applies the recipe's `random_crop` and `random_flip` steps, in order, to a batch
    (B, C, H, W); None if there are none.

    The generator, on any device, is seeded again for each batch, with a secret seed (`Store.batch`).
    """
    operations = [op for step in steps if isinstance(op := step.operation, Crop | Flip)]
    if not operations:
        return None

    def apply(x: Tensor) -> Tensor:
        for operation in operations:
            x = (
                random_crop(x, operation, generator)
                if isinstance(operation, Crop)
                else random_flip(x, operation, generator)
            )
        return x

    return apply


def random_crop(x: Tensor, step: Crop, generator: torch.Generator) -> Tensor:
    """Pads each image (B, C, H, W) with zeros and cuts it back at a place of its own; its norm never grows."""
    count, channels, height, width = x.shape
    padding = step.padding
    padded = torch.nn.functional.pad(x, (padding, padding, padding, padding))
    shifts = torch.randint(2 * padding + 1, (2, count), generator=generator, device=generator.device).to(x.device)
    rows = (shifts[0][:, None] + torch.arange(height, device=x.device))[:, None, :, None]
    columns = (shifts[1][:, None] + torch.arange(width, device=x.device))[:, None, None, :]
    records = torch.arange(count, device=x.device)[:, None, None, None]
    planes = torch.arange(channels, device=x.device)[None, :, None, None]
    return padded[records, planes, rows, columns]


def random_flip(x: Tensor, step: Flip, generator: torch.Generator) -> Tensor:
    """Mirrors each image (B, C, H, W) left and right with the step's probability."""
    mirrored = torch.rand(len(x), generator=generator, device=generator.device).to(x.device) < step.probability
    return torch.where(mirrored[:, None, None, None], x.flip(3), x)
