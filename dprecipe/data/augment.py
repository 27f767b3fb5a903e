"""Augmentation: random moves of an image, in training only, by constants of the recipe and a seeded
generator.

Each record is moved on its own and stays one record, so that clipping sees one gradient a record as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dprecipe.data.image_steps import Crop, Flip, Scattering
from dprecipe.data.scattering import mirror_coefficients
from dprecipe.data.schema import Step

Augment = Callable[[Tensor, int], Tensor]
"""(features (B, C, H, W), copies) -> moved features; the copies of a record, B in all, lie in a row."""


def make_augmentation(steps: Sequence[Step], generator: torch.Generator) -> Augment | None:
    """Returns the function that applies the recipe's `crop` and `flip` steps, in order, to a batch; None if there are
    none.

    The generator, on any device, is seeded again for each batch, with a secret seed (`Store.batch`).
    """
    operations = [op for step in steps if isinstance(op := step.operation, Crop | Flip)]
    if not operations:
        return None
    scattering = next((op for step in steps if isinstance(op := step.operation, Scattering)), None)
    order = None
    if scattering is not None:
        order = torch.from_numpy(mirror_coefficients(scattering.scales, scattering.angles)).to(generator.device)

    def apply(x: Tensor, copies: int) -> Tensor:
        for operation in operations:
            x = (
                random_crop(x, operation, generator)
                if isinstance(operation, Crop)
                else random_flip(x, operation, generator, copies, order)
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


def random_flip(
    x: Tensor, step: Flip, generator: torch.Generator, copies: int = 1, order: Tensor | None = None
) -> Tensor:
    """Mirrors each image (B, C, H, W) left and right with the step's probability p.

    Of K `copies` of a record, in a row, p·K are mirrored, rounded up or down at random: half of an even number at
    p = 1/2. `order` (K′,): the coefficients of scattering of a mirrored image, by their places in those of the image;
    there are K′ for each of its channels.
    """
    draws = torch.rand(len(x) // copies, generator=generator, device=generator.device)
    draws = (draws[:, None] + torch.arange(copies, device=draws.device) / copies).remainder(1).flatten()
    flipped = x.flip(3)
    if order is not None:
        flipped = torch.unflatten(flipped, 1, (-1, len(order)))[:, :, order.to(x.device)].flatten(1, 2)
    return torch.where((draws < step.probability).to(x.device)[:, None, None, None], flipped, x)
