"""Makes a codebook from the gradients of public records, at the model's initial weights.

Torch is imported on use: only the making needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.mechanism import Facts
from dprecipe.data.disjoint import check_files, check_records
from dprecipe.data.facts import describe_data as data_facts
from dprecipe.data.load import load, read
from dprecipe.data.records import Records
from dprecipe.data.schema import Data
from dprecipe.faults import DataFault, Finding, RunFailed
from dprecipe.libraries import importing_libraries
from dprecipe.mechanisms.encoded.codebook import Codebook, CodebookError, fit_in_batches
from dprecipe.mechanisms.encoded.phases import groups_of
from dprecipe.mechanisms.encoded.schema import Encoded
from dprecipe.recipe.root import Recipe

MAX_NUMBERS = 1 << 27
"""Largest number of gradient entries held at a time, unless one record has more: 512 MiB."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A codebook, and the public records it was made from."""

    codebook: Codebook
    without_gradient: int
    """Number of records that were left out: their gradient is zero, or not finite."""


def public_records(data: Data) -> Iterator[Finding]:
    """Checks that the records a codebook is fitted to are public, since a codebook is published."""
    if data.test is None:
        yield Finding(
            "P130",
            "there are no public records to make a codebook from: the recipe has no data.test",
            "add data.test with access: public, or use source: gaussian",
            "data",
        )
    elif data.test.access != "public":
        yield Finding(
            "P130",
            "a codebook fitted to the gradients of private records would publish them without a charge",
            (
                "name records that may be published as data.test"
                if data.split is not None
                else "set data.test.access to public if publishing them harms nobody"
            )
            + ", or use source: gaussian",
            "data.test" if data.split is not None else "data.test.access",
        )


def make_codebook(recipe: Recipe, spec: Encoded, root: Path, size: int, folder: Path) -> Fitted:
    """Makes a codeword from the gradient of each of `size` records of `data.test`, or of all of them if there are
    fewer.

    The records are drawn with `runtime.seed`, which also gives the weights; both are public. Memory is that of
    `MAX_NUMBERS` numbers, or of one gradient, a few times over. `folder`: of the recipe, which its initial weights are
    relative to. `public_records` and `dprecipe.planning.rules` have to have passed.

    Raises:
        DataFault: the records are not what the recipe declares, or lie in the file of the training records.
        RunFailed: no record has a gradient, or the table would be too large.
    """
    source = recipe.data.test_source
    if source is None or source.access != "public":
        raise DataFault("a codebook is made from public records only", "declare data.test with access: public")
    data = recipe.data
    check_files(data, root)
    check_records(data, root, lambda role: read(source if role == "test" else data.train, data, root, role)[0])
    records = load(source, data, root, "test")
    order = np.random.default_rng(recipe.runtime.seed).permutation(len(records))
    gradients = _Gradients(recipe, folder, records, np.sort(order[:size]))
    try:
        codebook = fit_in_batches(gradients, groups_of(spec, Facts.of(recipe)))
    except CodebookError as error:
        if gradients.without == gradients.seen:
            raise RunFailed(
                f"none of {gradients.seen:,} public records has a gradient that is finite and not zero",
                "take other initial weights (runtime.seed), or source: gaussian",
            ) from None
        raise RunFailed(str(error), "ask for fewer codewords with --size") from None
    return Fitted(codebook, gradients.without)


class _Gradients:
    """Gradients (n, D) of records, as many at a time as can be held, without those that are zero or not finite."""

    def __init__(self, recipe: Recipe, folder: Path, records: Records, chosen: NDArray[np.int64]) -> None:
        self._recipe, self._folder, self._records, self._chosen = recipe, folder, records, chosen
        self.seen = self.without = 0

    def __iter__(self) -> Iterator[NDArray[Any]]:
        with importing_libraries("a codebook"):
            import torch

            from dprecipe.models.build import build
            from dprecipe.models.initial import start_from
            from dprecipe.training.engine.clipped_sum import per_record_gradients
            from dprecipe.training.program.losses import choose_loss
            from dprecipe.training.program.program import device_of

        facts, runtime = data_facts(self._recipe.data), self._recipe.runtime
        loss = choose_loss(facts.target, self._recipe.training, omits=self._recipe.data.omits_records)
        device = device_of(runtime.device)
        model = build(self._recipe.model, facts.shape, facts.outputs, runtime.seed, vocabulary=facts.vocabulary)
        start_from(self._recipe.model, model, self._folder, runtime.seed)
        model.to(device)
        size = max(1, min(runtime.physical_batch_size, MAX_NUMBERS // sum(p.numel() for p in model.parameters())))
        for first in range(0, len(self._chosen), size):
            arrays = self._records.batch(self._chosen[first : first + size])
            features, labels = (torch.from_numpy(array).to(device) for array in arrays)
            grads_ND = per_record_gradients(model, loss, features, labels)
            valid_N = torch.isfinite(grads_ND).all(dim=1) & (grads_ND != 0).any(dim=1)
            self.seen += len(valid_N)
            self.without += int((~valid_N).sum())
            yield grads_ND[valid_N].cpu().numpy()
