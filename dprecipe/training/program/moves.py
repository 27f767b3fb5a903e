"""Random affine moves of images, by constants of the recipe: what a student's prediction should not depend on."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from dprecipe.language.training import Affine


def augmentation_moves(spec: Affine, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """Images (B, C, H, W) to images of the same shape, each turned, scaled, sheared and shifted on its own.

    Every amount is uniform between its bound and minus its bound. What comes in from outside an image is zero.
    """

    def moved(x: Tensor) -> Tensor:
        draws = torch.rand((6, len(x)), generator=generator, device=generator.device).to(x.device) * 2 - 1
        angle = draws[0] * math.radians(spec.degrees)
        width_scale, height_scale = 1 + draws[1] * spec.scale, 1 + draws[2] * spec.scale
        shear, shift_x, shift_y = draws[3] * spec.shear, 2 * draws[4] * spec.shift, 2 * draws[5] * spec.shift
        matrix = torch.stack(
            [
                torch.stack([angle.cos() * width_scale, shear - angle.sin() * height_scale, shift_x], 1),
                torch.stack([angle.sin() * width_scale, angle.cos() * height_scale, shift_y], 1),
            ],
            1,
        )
        return grid_sample(x, affine_grid(matrix, list(x.shape), align_corners=False), align_corners=False)

    return moved
