"""A compiled pass, as the engine uses it: from records to the terms of layers, and on to norms and sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dprecipe.training.engine.backward import CallTerms
from dprecipe.training.engine.bookkeeping import pad_records, weigh_gradients
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.layers import layer_terms
from dprecipe.training.engine.rounding import Reserve
from dprecipe.training.engine.shares import Share
from dprecipe.training.engine.strategies import Weights
from dprecipe.training.engine.taps import Call, Dim
from dprecipe.training.engine.terms import Rows


class Uncompiled(Exception):
    """Raised where there is no program; the message says why."""


@final
@dataclass(frozen=True, slots=True, repr=False)
class StoredCall:
    """One call of a layer whose terms are made from its inputs and gradients, and the places of these in the
    answers."""

    call: Call
    """The call as it was traced, without its tensors, and with those parameters only."""
    leaves: tuple[Any, ...]
    """The arguments of the call; for each tensor, its place in the answers."""
    spec: pytree.TreeSpec
    gradients: tuple[int | None, ...]

    def restored(self, answers: Sequence[Tensor], count: int) -> Call:
        """Returns the call for the first `count` records."""
        dims = iter(self.call.places.inputs)
        leaves = [
            _first(answers[leaf.index], next(dims), count) if isinstance(leaf, AnswerIndex) else leaf
            for leaf in self.leaves
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        outputs = zip(self.gradients, self.call.places.outputs, strict=True)
        gradients = [None if place is None else _first(answers[place], dim, count) for place, dim in outputs]
        return replace(self.call, args=args, kwargs=kwargs, gradients=gradients)


@final
@dataclass(frozen=True, slots=True)
class AnswerIndex:
    index: int


@final
@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """A pass over `size` records."""

    size: int
    compute: Callable[..., Sequence[Tensor]]
    tensor_places: tuple[tuple[dict[str, Any], str], ...]
    """The places of its parameters and buffers in the model: they may be other tensors by the next step."""
    rows: tuple[tuple[str, int], ...]
    stored_calls: tuple[StoredCall, ...]
    names: dict[int, str]
    sum_programs: SumPrograms | None = None

    def answers(self, features: Tensor, labels: Tensor) -> Sequence[Tensor]:
        """Returns the tensors that the layers keep, for records padded to `size`."""
        parameters = [tensors[name].detach() for tensors, name in self.tensor_places]
        with torch.no_grad():
            return self.compute(*parameters, pad_records(features, self.size), pad_records(labels, self.size))

    def find_terms(self, features: Tensor, labels: Tensor) -> CallTerms:
        """Returns terms by the names of parameters, as `backward.find_terms` does, for at most `size` records."""
        return self.terms(self.answers(features, labels), len(labels))

    def terms(self, answers: Sequence[Tensor], count: int) -> CallTerms:
        """Returns the terms of the first `count` records."""
        results: CallTerms = [[(name, Rows(answers[place][:count]))] for name, place in self.rows]
        for stored in self.stored_calls:
            call = stored.restored(answers, count)
            results.append([(self.names[id(call.parameters[name])], term) for name, term in layer_terms(call)])
        return results

    def add(
        self,
        features: Tensor,
        labels: Tensor,
        clipping: Clipping,
        total_P: Tensor,
        reserve: Reserve,
        *,
        fresh: bool,
    ) -> bool:
        """Implements `shares.GradientSource.add`; norms and sums are compiled as well, where there are
        `sum_programs`."""
        count, sum_programs = len(labels), self.sum_programs
        if sum_programs is None or len(clipping.thresholds) > 1:
            return False
        with torch.no_grad():
            answers = self.answers(features, labels)
            weights_N = pad_records(
                weigh_gradients(sum_programs.norms(*answers)[0][None, :count], clipping, total_P, count)[0], self.size
            )
            if not reserve.try_block(count, sum_programs.block_size):  # in double precision, by the same weights
                for share in sum_programs.shares(answers):
                    share.strategy.add([total_P[place] for place in share.slices], Weights(weights_N))
                return True
            for place, sum_P in zip(sum_programs.slices, sum_programs.sums(*answers, weights_N), strict=True):
                if fresh:
                    total_P[place].copy_(sum_P)
                else:
                    total_P[place].add_(sum_P)
        return True


@final
@dataclass(frozen=True, slots=True, repr=False)
class SumPrograms:
    """Two programs: from what the layers keep to norms, and from the same and weights to sums.

    There are two, so that both read the same numbers from memory. In a single program a compiler could make numbers for
    the norms and make them again, rounded differently, for the sums. A compiled root in single precision may be off by
    two
    units of the last place; that is less than `bookkeeping.ROUNDING`.
    """

    norms: Callable[..., Sequence[Tensor]]
    sums: Callable[..., Sequence[Tensor]]
    block_size: int
    """The number of records that are added up in single precision."""
    slices: tuple[slice, ...]
    shares: Callable[[Sequence[Tensor]], list[Share]]
    """The function that the two programs were made from."""


def _first(tensor: Tensor, dim: Dim, count: int) -> Tensor:
    return tensor if dim is None else tensor.narrow(dim[0], 0, count * dim[1])
