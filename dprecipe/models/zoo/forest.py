"""Decision trees as a torch module: a random forest or gradient boosting, evaluated from plain tensors.

Trees are grown elsewhere (by scikit-learn); what is here has no parameters, draws nothing and
evaluates all trees at once. Released weights are these tensors, so that a forest needs no pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

MIN_CHANCE = 1e-12
"""A chance of zero becomes this, so that its logarithm is finite; a mean over trees that is not zero is larger."""
MAX_VALUE = 1e30
"""Largest score in a leaf: sums stay within single precision, whatever the number of trees."""
MAX_LEVELS = 1_000
"""Depth of a tree: evaluation takes a step a level."""
CHUNK = 1 << 17
"""Records times trees at a time: what is worked with stays in the cache, which is worth half the time."""
STRIDE = 3
"""Levels between two looks at who has arrived; that costs as much as a level."""


@final
class Forest(nn.Module):
    """Trees over feature vectors, (B, …) float32 with D features each, to logits (B, classes) float64.

    Nodes of all trees are numbered together, parents before their children; a leaf is its own child. A record goes to
    `child[node, 1]` where its `feature` exceeds `threshold`, else to `child[node, 0]`.

    `averaged`: a leaf's `value` are the chances of the classes, and logits the logarithm of their mean over trees; else
    values are scores, and logits their sum. Either is summed in double precision in the order of `root`.

    `load_state_dict` takes over however many trees (T) and nodes (M) there are:

    root (T,) int64 · child (M, 2) int64 · feature (M,) int64 · threshold (M,) float32 · value (M, classes) float64
    """

    root: Tensor
    child: Tensor
    feature: Tensor
    threshold: Tensor
    value: Tensor

    def __init__(self, width: int, classes: int, averaged: bool) -> None:
        """One tree of one leaf, for which all classes are alike."""
        super().__init__()
        self.width = width
        self.averaged = averaged
        for name, tensor in _blank(1, 1, classes, None).items():
            self.register_buffer(name, tensor)

    def resize(self, trees: int, nodes: int) -> None:
        """Allocates this many trees and nodes; the earlier ones are gone."""
        for name, tensor in _blank(trees, nodes, self.value.shape[1], self.value.device).items():
            setattr(self, name, tensor)

    def flaw(self) -> str | None:
        """Finds what keeps these tensors from being trees; None if they are trees.

        For trees, evaluation reads nothing out of bounds, ends after `MAX_LEVELS` steps, and gives a finite result for
        finite features.
        """
        nodes = len(self.threshold)
        own = torch.arange(nodes, device=self.child.device)[:, None]
        behind = (self.child > own) & (self.child < nodes)
        if len(self.root) == 0 or nodes == 0:
            return "there is no tree"
        if not ((self.root >= 0) & (self.root < nodes)).all():
            return "a root is no node"
        if not (behind.all(1) | (self.child == own).all(1)).all():
            return "a child is no node behind its parent"
        if not ((self.feature >= 0) & (self.feature < self.width)).all():
            return "a node asks for a feature that there is not"
        if not (self.threshold.isfinite().all() and (self.value.abs() <= MAX_VALUE).all()):
            return "a threshold or a value is not finite, or too large"
        if self.averaged and not ((self.value >= 0) & (self.value <= 1)).all():
            return "a chance is outside 0 … 1"
        return None if _levels(self.root, self.child) <= MAX_LEVELS else f"it has more than {MAX_LEVELS} levels"

    def forward(self, features: Tensor) -> Tensor:
        x = features.flatten(1)
        if x.shape[1] != self.width:
            raise ValueError(f"records have {x.shape[1]} features, the trees read {self.width}")
        rows = max(1, CHUNK // len(self.root))
        scores = torch.cat([self._scores(part) for part in torch.split(x, rows)])
        return (scores / len(self.root)).clamp_min(MIN_CHANCE).log() if self.averaged else scores

    def _scores(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x), self.value.shape[1], dtype=self.value.dtype, device=x.device)
        for leaf in self._leaves(x).t().contiguous():  # one after another: the order of a sum is part of its result
            total += self.value.index_select(0, leaf)
        return total

    def _leaves(self, x: Tensor) -> Tensor:
        """Returns the leaf (B, T) in which each record ends in each tree."""
        trees, (records, width) = len(self.root), x.shape
        steps, values = self.child.flatten(), x.flatten()
        is_leaf = self.child[:, 0] == torch.arange(len(self.child), device=x.device)
        node = self.root.repeat(records)
        ends = node.clone()
        # Of each pair of a record and a tree that is still on its way: its number, and where its features begin.
        pair = torch.arange(len(node), device=x.device)
        start = torch.arange(0, records * width, width, device=x.device).repeat_interleave(trees)
        while True:
            for _ in range(STRIDE):  # a leaf leads to itself
                feature = values.index_select(0, start + self.feature.index_select(0, node))
                right = feature > self.threshold.index_select(0, node)
                node = steps.index_select(0, 2 * node + right)
            ends[pair] = node
            going = (~is_leaf.index_select(0, node)).nonzero().squeeze(1)
            if len(going) == 0:
                return ends.view(records, trees)
            node, pair, start = (state.index_select(0, going) for state in (node, pair, start))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *remaining: Any) -> None:
        root, threshold = (state_dict.get(prefix + name) for name in ("root", "threshold"))
        if isinstance(root, Tensor) and isinstance(threshold, Tensor) and root.ndim == threshold.ndim == 1:
            self.resize(len(root), len(threshold))
        super()._load_from_state_dict(state_dict, prefix, *remaining)


def _blank(trees: int, nodes: int, classes: int, device: torch.device | None) -> dict[str, Tensor]:
    return {
        "root": torch.zeros(trees, dtype=torch.int64, device=device),
        "child": torch.arange(nodes, device=device)[:, None].repeat(1, 2),
        "feature": torch.zeros(nodes, dtype=torch.int64, device=device),
        "threshold": torch.zeros(nodes, dtype=torch.float32, device=device),
        "value": torch.zeros(nodes, classes, dtype=torch.float64, device=device),
    }


def _levels(roots: Tensor, children: Tensor) -> int:
    """Levels of the deepest tree, counted up to one more than there may be."""
    nodes = torch.unique(roots)
    for level in range(1, MAX_LEVELS + 2):
        following = children[nodes]
        nodes = torch.unique(following[following != nodes[:, None]])
        if len(nodes) == 0:
            return level
    return MAX_LEVELS + 1
