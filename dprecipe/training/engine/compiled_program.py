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
from dprecipe.training.engine.reserve import Reserve
from dprecipe.training.engine.shares import Share
from dprecipe.training.engine.strategies import Weights
from dprecipe.training.engine.taps import Call, Dim
from dprecipe.training.engine.terms import Rows


class Uncompiled(Exception):
    """There is no program; the message says why."""


@final
@dataclass(frozen=True, slots=True, repr=False)
class StoredCall:
    """One call of a layer whose terms are made from its inputs and gradients, and where in the answers these are."""

    call: Call
    """As it was traced, without its tensors, and with those parameters only."""
    leaves: tuple[Any, ...]
    """Its arguments; of each tensor, its place in the answers."""
    spec: pytree.TreeSpec
    gradients: tuple[int | None, ...]

    def restored(self, answers: Sequence[Tensor], count: int) -> Call:
        """The call, of the first `count` records."""
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
    """Where its parameters and buffers are found: they may be other tensors by the next step."""
    rows: tuple[tuple[str, int], ...]
    stored_calls: tuple[StoredCall, ...]
    names: dict[int, str]
    sum_programs: SumPrograms | None = None

    def answers(self, features: Tensor, labels: Tensor) -> Sequence[Tensor]:
        """What the layers keep, of records that are filled up to `size`."""
        parameters = [tensors[name].detach() for tensors, name in self.tensor_places]
        with torch.no_grad():
            return self.compute(*parameters, pad_records(features, self.size), pad_records(labels, self.size))

    def find_terms(self, features: Tensor, labels: Tensor) -> CallTerms:
        """Terms by the names of parameters, as `backward.find_terms` has them, of at most `size` records."""
        return self.terms(self.answers(features, labels), len(labels))

    def terms(self, answers: Sequence[Tensor], count: int) -> CallTerms:
        """Those of the first `count` records."""
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
        """As `shares.GradientSource` has it; norms and sums are compiled as well, where they are `sum_programs`."""
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
    """From what the layers keep to norms, and from that and weights to sums.

    These are two programs, so that both are of the same numbers in memory: of one, a compiler could make numbers for
    the norms and make them anew, rounded otherwise, for the sums. A compiled root in single precision may be off by two
    units of the last place; that is less than `bookkeeping.ROUNDING`.
    """

    norms: Callable[..., Sequence[Tensor]]
    sums: Callable[..., Sequence[Tensor]]
    block_size: int
    """How many records are added up in single precision."""
    slices: tuple[slice, ...]
    shares: Callable[[Sequence[Tensor]], list[Share]]
    """What the two programs were made of."""


def _first(tensor: Tensor, dim: Dim, count: int) -> Tensor:
    return tensor if dim is None else tensor.narrow(dim[0], 0, count * dim[1])
