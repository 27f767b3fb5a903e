"""Sums held against a loop of single records' gradients, and models to hold them on."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from dprecipe.training.engine.bookkeeping import describe_plan
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.program.losses import cross_entropy

CLASSES = 4
TOKENS = 11
WHOLE = "gradients of single records, for the whole model"
ISOLATED = ", of this layer by itself"


def looped(net: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """(N, P) float64: the gradient of each record by itself, by plain backpropagation."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    rows = []
    for i in range(len(labels)):
        loss = cross_entropy(net(features[i : i + 1]), labels[i : i + 1]).sum()
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
        rows.append(torch.cat([g.flatten() for g in flat]).double())
    return torch.stack(rows)


def check_sums(net: nn.Module, features: Tensor, *, planned: bool | None = True) -> bool:
    """Equal with some records clipped, with none, in parts, and for one record; the model is left as it was.
    Equal up to 1e-5, and ten times what the loop itself loses in single precision where that is little: a norm over all
    but constant places multiplies rounding by hundreds.
    `planned`: whether there is to be a plan; None where there may be one. Returns whether there is."""
    count = len(features)
    labels = torch.arange(count) % CLASSES
    before, forwards = copy.deepcopy(net.state_dict()), [vars(layer).get("forward") for layer in net.modules()]
    rows_NP = looped(net, features, labels)
    norms_N = rows_NP.norm(dim=1)
    assert norms_N.min() > 0
    exact_NP = looped(copy.deepcopy(net).double(), _doubled(features), labels)
    for clip in (float(norms_N.median()), 2 * float(norms_N.max())):
        expected_P = _sum_clipped(rows_NP, clip)
        rounding = _relative_error(_sum_clipped(exact_NP, clip), expected_P)
        tolerance = 1e-5 + 10 * min(rounding, 1e-4)
        for physical in (count, 3):
            result_P = clipped_sum(net, cross_entropy, BatchPart(features, labels), Clipping.flat(clip), physical).value
            assert _relative_error(result_P, expected_P) < tolerance
        one_P = clipped_sum(net, cross_entropy, BatchPart(features[:1], labels[:1]), Clipping.flat(clip), 8).value
        assert float(one_P.norm()) <= clip
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert forwards == [vars(layer).get("forward") for layer in net.modules()]
    assert all(p.grad is None and isinstance(p, nn.Parameter) for p in net.parameters())
    whole = [
        strategy
        for strategy in describe_plan(net, cross_entropy, features, labels).values()
        if strategy.startswith(WHOLE)
    ]
    assert planned is None or bool(whole) != planned, whole
    return not whole


def _doubled(features: Tensor) -> Tensor:
    return features.double() if features.is_floating_point() else features


def _sum_clipped(rows_NP: Tensor, clip: float) -> Tensor:
    return (clip / rows_NP.norm(dim=1)).clamp(max=1.0) @ rows_NP


def _relative_error(result_P: Tensor, expected_P: Tensor) -> float:
    return float((result_P - expected_P).norm() / expected_P.norm())


def classified(*stem: nn.Module, shape: tuple[int, ...], seed: int = 0) -> tuple[nn.Module, Tensor]:
    """The layers with a classifier behind them, and records of the shape."""
    torch.manual_seed(seed)
    features = torch.randn(7, *shape)
    body = nn.Sequential(*copy.deepcopy(stem), nn.Flatten())
    return nn.Sequential(body, nn.Linear(body(features[:1]).shape[1], CLASSES)), features


class Scaled(nn.Module):
    """Parameters of its own around a layer that has its own too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))
        self.shift = nn.Parameter(torch.rand(()))
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale + self.shift


def ids(length: int = 6) -> Tensor:
    """(7, length): synthetic tokens."""
    return torch.randint(TOKENS, (7, length), generator=torch.Generator().manual_seed(0))
