"""Weights of a network below its last layer, learned from images without labels.

Every draw is of a generator that follows from (seed, step) alone: a learning that was interrupted goes on as if it
never was,
and on one CPU with one thread and one version of torch it gives the same bytes again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe.data.preprocess import prepare_features
from dprecipe.data.schema import Step
from dprecipe.models.initial import head_of
from dprecipe.priors.schema import Prior
from dprecipe.training.prior.objective import contrast
from dprecipe.training.prior.views import make_view

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
