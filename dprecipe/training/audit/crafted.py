"""Synthetic records that an attack writes: of the declared form, with any values and any labels.

Legend: N records, U units.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.data.raw import Labels
from dprecipe.models.form import Form
from dprecipe.training.program.losses import Loss, synthetic_labels

POOL = 48
"""Different usual records; further ones repeat them."""
LARGE, HUGE, TINY = 1e3, 1e25, 1e-12
ASCENTS = 12
"""Steps uphill, each as long as `STRIDE`, from a usual record."""
STRIDE = 0.5


@final
class CraftedRecords:
    """Records of as many units as the recipe declares: usual ones, but for those that an attack has written.

    Units of several records have from one to all that they may have.
    """

    def __init__(self, plan: Plan, form: Form, seed: int = 0, least: int = 0) -> None:
        """`least`: units that there are even if fewer are declared."""
        target, unit = describe_data(plan.data).target, plan.data.unit
        generator = torch.Generator().manual_seed(seed)
        self._features = form.draw(POOL, generator).numpy().astype(np.float32)
        self._labels = synthetic_labels(torch.arange(POOL) + seed, target).numpy()
        self._written: dict[int, tuple[NDArray[np.float32], float]] = {}
        self.unit_count = max(plan.data.max_units, least)
        self.units: NDArray[np.int64] | None = None
        self._count, self._starts = self.unit_count, np.arange(self.unit_count + 1)
        if unit != "record":
            sizes = 1 + np.arange(self.unit_count) % unit.max_records
            self.units = np.repeat(np.arange(self.unit_count), sizes)
            self._count, self._starts = len(self.units), np.concatenate([[0], np.cumsum(sizes)])

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]:
        numbers = np.arange(self._count)[indices] if isinstance(indices, slice) else indices
        features, labels = self._features[numbers % POOL], self._labels[numbers % POOL]
        for record, (written, label) in self._written.items():
            features[numbers == record], labels[numbers == record] = written, label
        return features, labels

    def write(self, unit: int, features: Tensor, label: float) -> None:
        """Gives all records of a unit these features and this label."""
        values = features.detach().cpu().numpy().astype(np.float32)
        for record in range(int(self._starts[unit]), int(self._starts[unit + 1])):
            self._written[record] = (values, label)

    def forget(self) -> None:
        """Makes every record a usual one again."""
        self._written.clear()


def list_candidates(form: Form, module: nn.Module, loss: Loss, labels: Tensor, seed: int) -> Iterator[Tensor]:
    """Features of one record each that may move a sum far: extreme, degenerate, and uphill from a usual one.

    `labels`: (1,), that of the record; the last candidates are searched for it.
    """
    generator = torch.Generator().manual_seed(seed)
    if form.tokens is not None:
        yield from _list_tokens(form, generator)
        return
    usual, shape = form.draw(1, generator)[0], form.shape
    hot = torch.zeros(shape)
    hot.view(-1)[0] = LARGE
    yield from (torch.zeros(shape), torch.ones(shape), torch.full(shape, -LARGE), hot, LARGE * usual, TINY * usual)
    yield from (torch.full(shape, HUGE), form.draw(1, generator, distant=True)[0], usual)
    uphill = climb(module, loss, usual, labels)
    if uphill is not None:
        yield from (uphill, LARGE * uphill)


def list_broken(form: Form) -> tuple[Tensor, ...]:
    """Features of a record that is not finite; none where features are tokens."""
    if form.tokens is not None:
        return ()
    infinite = torch.zeros(form.shape)
    infinite.view(-1)[-1] = torch.inf
    return torch.full(form.shape, torch.nan), infinite


def climb(module: nn.Module, loss: Loss, start: Tensor, labels: Tensor) -> Tensor | None:
    """Returns a record with a longer gradient: uphill on the gradient's norm. None where that has no gradient of its
    own."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    device = parameters[0].device
    x = start.clone().to(device)
    for _ in range(ASCENTS):
        x = x.detach().requires_grad_(True)
        try:
            with torch.enable_grad():
                losses = loss(module(x[None]), labels.to(device)).sum()
                grads = torch.autograd.grad(losses, parameters, create_graph=True, allow_unused=True)
                norm = sum((g.square().sum() for g in grads if g is not None), start=torch.zeros((), device=device))
                (slope,) = torch.autograd.grad(norm, x, allow_unused=True)
        except RuntimeError:
            return None
        if slope is None or not bool(torch.isfinite(slope).all()):
            return None
        x = x + STRIDE * slope.sign()
    return x.detach().cpu()


def _list_tokens(form: Form, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields lists of tokens: the rarest, all over and once; one token all over; all tokens different; padding alone;
    usual ones."""
    limit = max(2, min(form.tokens or (0,)) or 2)
    for value in (float(limit - 1), 1.0, 0.0):
        yield form.limited(torch.full((1, *form.shape), value))[0]
    once = torch.zeros(form.shape)
    once[..., 0] = limit - 1
    yield form.limited(once[None])[0]
    yield form.limited((torch.arange(once.numel(), dtype=torch.float32) % limit).view(1, *form.shape))[0]
    yield from form.draw(3, generator)
