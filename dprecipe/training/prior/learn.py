"""Weights of a network below its last layer, learned from images without labels.

Every draw is of a generator that follows from (seed, step) alone: a learning that was interrupted goes on as if it
never was,
and on one CPU with one thread and one version of torch it gives the same bytes again.

The objective without labels: views of one image lie near each other, and all images lie far apart (`contrast`). Views
are random: cut out and resized, mirrored, with other brightness, contrast and colours (`make_view`).

Sources: T. Wang, P. Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
Hypersphere", ICML 2020, with their α = 2 and t = 2; M. Baradad et al., "Learning to See by Looking at Noise",
NeurIPS 2021. The moves of views are those of T. Chen et al., "A Simple Framework for Contrastive Learning of Visual
Representations", ICML 2020, without blur, which images this small don't need. Shapes: N images, D features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample, normalize

from dprecipe.data.preprocess import prepare_features
from dprecipe.data.schema import Step
from dprecipe.models.initial import head_of
from dprecipe.priors.schema import Prior

BYTE = 255.0


class PriorLearner:
    """Learns the layers below a network's last one, step by step."""

    def __init__(
        self,
        module: nn.Module,
        prior: Prior,
        images_NCHW: NDArray[np.uint8],
        steps: Sequence[Step],
        device: torch.device,
    ) -> None:
        """`module` is what is learned, in place; `steps` are the recipe's, which features go through."""
        self.module = module.to(device)
        self.done = 0
        self.losses = (math.nan, math.nan)
        """Alignment and weighted uniformity of the last step."""
        self._prior, self._images, self._steps, self._device = prior, images_NCHW, steps, device
        self._head = head_of(module)
        owner = next(iter(self._head)).rpartition(".")[0]
        self._caught: list[Tensor] = []
        module.get_submodule(owner).register_forward_pre_hook(lambda _, inputs: self._caught.append(inputs[0]))
        learned = [parameter for name, parameter in module.named_parameters() if name not in self._head]
        self._optimizer = torch.optim.Adam(learned, lr=prior.lr)

    def step(self) -> None:
        """Takes one step: a batch, two views of each of its images, one move of the weights; the rate falls as a
        cosine."""
        prior = self._prior
        generator = torch.Generator().manual_seed(_seed(prior.seed, self.done))
        chosen = torch.randint(len(self._images), (prior.batch_size,), generator=generator)
        images = torch.from_numpy(self._images[chosen.numpy()]).to(torch.float32) / BYTE
        views = [self._features(make_view(images, generator)) for _ in range(2)]
        alignment, spread = contrast(views[0], views[1], prior.uniformity)
        for group in self._optimizer.param_groups:
            group["lr"] = prior.lr * (1 + math.cos(math.pi * self.done / prior.steps)) / 2
        self._optimizer.zero_grad()
        torch.autograd.backward(alignment + spread)
        self._optimizer.step()
        self.losses = (alignment.item(), spread.item())
        self.done += 1

    def _features(self, view_NCHW: Tensor) -> Tensor:
        prepared = torch.from_numpy(prepare_features(view_NCHW.numpy(), self._steps)).to(self._device)
        self._caught.clear()
        self.module(prepared)
        (features,) = self._caught
        return features.flatten(1)

    def state(self) -> dict[str, Tensor]:
        """Returns all that the rest of the learning depends on."""
        tensors = {f"weight.{name}": tensor for name, tensor in self.module.state_dict().items()}
        for number, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"moment.{number}.{name}": tensor for name, tensor in moments.items()}
        tensors["done"] = torch.tensor(self.done)
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Goes on from what `state` returned, of a learner of the same arguments."""
        self.module.load_state_dict(
            {name.removeprefix("weight."): tensor for name, tensor in state.items() if name.startswith("weight.")}
        )
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            if name.startswith("moment."):
                _, number, kind = name.split(".")
                moments.setdefault(int(number), {})[kind] = tensor
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.done = int(state["done"])

    def weights(self) -> dict[str, Tensor]:
        """Returns all tensors but those of the last layer."""
        return {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in self.module.state_dict().items()
            if name not in self._head
        }


def _seed(seed: int, step: int) -> int:
    """Returns the seed of one step's generator, below 2^63."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


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
