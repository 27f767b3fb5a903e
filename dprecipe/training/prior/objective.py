"""The objective without labels: views of one image lie near each other, and all images lie far apart.

Source: T. Wang, P. Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
Hypersphere", ICML 2020, with their α = 2 and t = 2. Shapes: N images, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize


def contrast(one_ND: Tensor, other_ND: Tensor, uniformity: float) -> tuple[Tensor, Tensor]:
    """Returns alignment, and uniformity times its weight: the loss is their sum. Features are put on the sphere first.

    Alignment is E ‖x - y‖² over pairs of views; uniformity is log E exp(-2 ‖x - x'‖²) over pairs of images, the mean of
    both views'. At least two images.
    """
    one, other = normalize(one_ND, dim=1), normalize(other_ND, dim=1)
    alignment = (one - other).square().sum(1).mean()
    spread = (_uniformity(one) + _uniformity(other)) / 2
    return alignment, uniformity * spread


def _uniformity(points_ND: Tensor) -> Tensor:
    count = len(points_ND)
    squares = 2 - 2 * points_ND @ points_ND.T
    pairs = torch.triu_indices(count, count, 1, device=points_ND.device)
    return torch.logsumexp(-2 * squares[pairs[0], pairs[1]], 0) - torch.log(torch.tensor(count * (count - 1) / 2))
