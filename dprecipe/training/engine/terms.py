"""Terms of single records' gradients, one for each parameter and call of its layer.

Each term can compute the gradients of some records as rows, (R, P) in an order of its own. For most there is a cheaper
way to their norms and weighted sum (`dprecipe.training.engine.strategies`).

Legend: N records, R some of them, T positions, I inputs, O outputs, G groups, P numbers of the parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from dprecipe.libraries import ignoring_warnings
from dprecipe.models.zoo.layers import count_logits
from dprecipe.training.engine.full_precision import before_norms
from dprecipe.training.engine.sizes import one_size
from dprecipe.training.engine.standardised import SumStandardisation
from dprecipe.training.engine.taps import Call, Unplanned, in_single


class Term(Protocol):
    """The part of one parameter's gradient that comes from one call of its layer."""

    @property
    def per_record(self) -> int:
        """The number of values that one record's row and its computation take."""

    def rows(self, part: slice, out_RP: Tensor | None = None) -> Tensor:
        """Returns (R, P): the gradients of these records, each computed independently of the others, in the term's
        order.

        They are written to `out_RP` if it is given.
        """

    def ordered(self, values: Tensor) -> Tensor:
        """Turns (…, P) in the term's order into (…, P) in the parameter's."""


@final
@dataclass(slots=True)
class Rows:
    """Gradients that are small enough to be stored: (N, P)."""

    values: Tensor

    @property
    def per_record(self) -> int:
        return self.values.shape[1]

    def rows(self, part: slice, out_RP: Tensor | None = None) -> Tensor:
        return _written(self.values[part], out_RP)

    def ordered(self, values: Tensor) -> Tensor:
        return values


class Slabs(Protocol):
    """Rows computed by several products: for a convolution, one for each row of the window."""

    standardised: SumStandardisation | None
    """The standardisation that `ordered` applies to rows besides their order."""

    @property
    def row_cost(self) -> int:
        """The number of values that the computation of one record's row takes."""

    def rows(self, part: slice, out_RP: Tensor) -> None:
        """Writes (R, P) to `out_RP`, in an order of its own."""

    def ordered(self, values: Tensor) -> Tensor:
        """Turns (…, P) in this order into (…, P) in the parameter's."""


@final
@dataclass(slots=True)
class Products:
    """Sums of outer products over positions, for a linear layer or a convolution."""

    left: Callable[[slice], Tensor]
    """(R, G, T, I): the inputs that the weights were multiplied with."""
    right: Tensor
    """(N, G, O, T): the gradient with respect to the output."""
    inputs: int
    order: Callable[[Tensor], Tensor] | None = None
    """From (…, G·O·I) to the parameter's order."""
    slabs: Slabs | None = None
    """A cheaper way to compute rows than with `left`."""
    paired: bool = True
    """`left` and `right` determine the gradient, and there is one group: norms follow from pairs of positions."""
    bias: Rows | None = None
    """The gradient of the same layer's bias: the sum of the rows of `right`."""

    @property
    def outputs(self) -> int:
        return self.right.shape[2]

    @property
    def positions(self) -> int:
        return self.right.shape[3]

    @property
    def groups(self) -> int:
        return self.right.shape[1]

    @property
    def size(self) -> int:
        return self.groups * self.outputs * self.inputs

    @property
    def per_record(self) -> int:
        result = self.groups * self.positions * self.inputs if self.slabs is None else self.slabs.row_cost
        return self.size + result

    @property
    def of_vectors(self) -> bool:
        """There is one position, and it is not a window."""
        return self.positions == 1 and self.order is None

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Returns (N, I) and (N, O), if `of_vectors`."""
        return self.left(slice(None))[:, 0, 0], self.right[:, 0, :, 0]

    def rows(self, part: slice, out_RP: Tensor | None = None) -> Tensor:
        right = self.right[part]
        rows_RP = right.new_empty(len(right), self.size) if out_RP is None else out_RP
        with before_norms(right.device):
            if self.slabs is not None:
                self.slabs.rows(part, rows_RP)
            else:
                left, products = self.left(part).flatten(0, 1), rows_RP.view(-1, self.outputs, self.inputs)
                torch.bmm(right.flatten(0, 1), left, out=products)
        return rows_RP

    def ordered(self, values: Tensor) -> Tensor:
        if self.slabs is not None:
            return self.slabs.ordered(values)
        return self.contracted(values)

    def contracted(self, values: Tensor) -> Tensor:
        """Turns (…, G·O·I) into (…, P) in the parameter's order."""
        return values if self.order is None else self.order(values)


@final
@dataclass(slots=True)
class Lookups:
    """Gradients with respect to the rows of a table that were looked up: (N, T) indices, (N, T, O) gradients."""

    indices: Tensor
    gradients: Tensor
    entries: int

    @property
    def per_record(self) -> int:
        return self.entries * self.gradients.shape[2]

    def rows(self, part: slice, out_RP: Tensor | None = None) -> Tensor:
        indices, gradients = self.indices[part], self.gradients[part]
        rows = gradients.new_zeros(len(indices), self.entries, gradients.shape[2])
        rows.scatter_add_(1, indices[:, :, None].expand_as(gradients), gradients)
        return _written(rows.flatten(1), out_RP)

    def ordered(self, values: Tensor) -> Tensor:
        return values


@final
@dataclass(slots=True)
class TokenErrors:
    """The weight of a head that gives log-likelihoods of tokens: (N, T, H) hidden states, the (N, T) labels of their
    places, and the (N, T) gradients with respect to the log-likelihoods.

    With e the label's indicator and p the likelihoods, the gradient is the sum over places of gradient · (e - p) hᵀ.
    """

    states: Tensor
    targets: Tensor
    gradients: Tensor
    weight: Tensor
    reduced: bool = False
    """Logits are products in bfloat16."""

    @property
    def per_record(self) -> int:
        return self.weight.numel() + self.states.shape[1] * len(self.weight)

    @property
    def at_once(self) -> int:
        """The number of records whose logits may exist at the same time."""
        return max(1, count_logits(self.states.device) // (4 * self.states.shape[1] * len(self.weight)))

    def errors(self, part: slice) -> tuple[Tensor, Tensor]:
        """Returns (R, T, V): gradient · (e - p), and (R, T): the logarithms of the sums that normalise p."""
        logits = self._logits(self.states[part], slice(None))
        normalisers = torch.logsumexp(logits, 2)
        return self._errors(logits, normalisers, part, slice(0, len(self.weight))), normalisers

    def errors_of(self, tokens: slice, normalisers_NT: Tensor) -> Tensor:
        """Returns (N, T, V'): `errors` for some tokens, of all records."""
        return self._errors(self._logits(self.states, tokens), normalisers_NT, slice(None), tokens)

    def _logits(self, states: Tensor, tokens: slice) -> Tensor:
        weight = self.weight[tokens]
        if self.reduced:
            return in_single(states.bfloat16() @ weight.bfloat16().T)
        return states @ weight.T.to(states)

    def _errors(self, logits: Tensor, normalisers: Tensor, part: slice, tokens: slice) -> Tensor:
        places = self.targets[part] - tokens.start
        inside = (places >= 0) & (places < tokens.stop - tokens.start) & (self.targets[part] >= 0)
        errors = logits.sub_(normalisers[:, :, None]).exp_().neg_()
        errors.scatter_add_(2, torch.where(inside, places, 0)[:, :, None], inside[:, :, None].to(errors))
        gradients = torch.where(self.targets[part] >= 0, self.gradients[part], 0.0)[:, :, None]
        return errors.mul_(gradients).masked_fill_(gradients == 0, 0.0)

    def rows(self, part: slice, out_RP: Tensor | None = None) -> Tensor:
        return _written((self.errors(part)[0].mT @ self.states[part]).flatten(1), out_RP)

    def ordered(self, values: Tensor) -> Tensor:
        return values


@final
class SingleRecordTerm:
    """A layer of unknown kind, differentiated by `torch.func`, record by record, from its input and output gradient.

    Raises:
        Unplanned: it does not return one row for each record, or would draw new random numbers.
    """

    def __init__(self, call: Call) -> None:
        layer = call.layer
        if isinstance(layer, nn.RNNBase) and layer.dropout and layer.training and layer.num_layers > 1:
            raise Unplanned(f"a {type(layer).__name__} with dropout, which would draw new random numbers")
        self._call = call
        self._leaves, self._spec = pytree.tree_flatten((call.args, call.kwargs))
        places = iter(call.places.inputs)
        self._dims = [next(places) if isinstance(leaf, Tensor) else None for leaf in self._leaves]
        self._used = [i for i, gradient in enumerate(call.gradients) if gradient is not None]
        outputs = [call.places.outputs[i] for i in self._used]
        self._output_dims = [dim[0] for dim in outputs if dim is not None]
        rows = [dim[1] for dim in [*self._dims, *outputs] if dim is not None]
        if len(self._output_dims) < len(outputs) or any(count > 1 for count in rows):
            raise Unplanned(f"a {type(call.layer).__name__} that does not return one row for each record")
        self.parameters = {name: parameter.detach() for name, parameter in call.parameters.items()}
        if not all(parameter.untyped_storage().size() for parameter in self.parameters.values()):
            raise Unplanned(f"a {type(layer).__name__} is differentiated by itself, and its weights are in shards")
        self.row_cost: int = sum(
            leaf.numel() // leaf.shape[dim[0]] for leaf, dim in zip(self._leaves, self._dims, strict=True) if dim
        )
        self._device = next(iter(self.parameters.values())).device
        self._stored: dict[str, Tensor] = {}

    def store_rows(self, count: int, step: int) -> None:
        """Computes all rows of all `count` records now, `step` records at a time."""
        parts = [self._computed(slice(i, min(i + step, count)), list(self.parameters)) for i in range(0, count, step)]
        self._stored = {name: torch.cat([part[name] for part in parts]) for name in self.parameters}

    @property
    def is_stored(self) -> bool:
        return bool(self._stored)

    def rows(self, name: str, part: slice) -> Tensor:
        return self._stored[name][part] if self._stored else self._computed(part, [name])[name]

    def _computed(self, part: slice, names: list[str]) -> dict[str, Tensor]:
        count = part.stop - part.start
        leaves_with_dims = zip(self._leaves, self._dims, strict=True)
        leaves = [
            leaf if dim is None else in_single(leaf.detach().narrow(dim[0], part.start, count))
            for leaf, dim in leaves_with_dims
        ]
        gradients = [
            in_single(gradient.narrow(dim, part.start, count))
            for i, dim in zip(self._used, self._output_dims, strict=True)
            if (gradient := self._call.gradients[i]) is not None
        ]
        parameters = {name: self.parameters[name] for name in names}

        def one(inputs: list[Any], by_output: list[Tensor]) -> dict[str, Tensor]:
            restored = zip(inputs, self._dims, strict=True)
            args, kwargs = pytree.tree_unflatten(
                [leaf if dim is None else leaf.unsqueeze(dim[0]) for leaf, dim in restored], self._spec
            )

            def outputs(parameters: dict[str, Tensor]) -> list[Tensor]:
                answer = functional_call(self._call.layer, parameters, args, kwargs)
                tensors = [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor)]
                return [tensors[i] for i in self._used]

            pull = vjp(outputs, parameters)[1]
            by_name = pull([g.unsqueeze(dim) for g, dim in zip(by_output, self._output_dims, strict=True)])[0]
            return {name: gradient.flatten() for name, gradient in by_name.items()}

        dims = [None if dim is None else dim[0] for dim in self._dims]
        if isinstance(self._call.layer, nn.RNNBase):  # torch can't batch these, or loops over them itself
            each = [
                one(
                    [leaf if dim is None else leaf.select(dim, i) for leaf, dim in zip(leaves, dims, strict=True)],
                    [g.select(dim, i) for g, dim in zip(gradients, self._output_dims, strict=True)],
                )
                for i in range(count)
            ]
            result = {name: torch.stack([rows[name] for rows in each]) for name in names}
        else:
            # One of the ignored warnings: that an operation has no batching rule, and torch loops.
            with ignoring_warnings(), plain_attention(self._device), before_norms(self._device):
                result = vmap(one, in_dims=(dims, self._output_dims), randomness="error")(leaves, gradients)
        return {name: rows.detach() for name, rows in result.items()}


@final
@dataclass(slots=True)
class OfLayer:
    """One parameter of a layer that `torch.func` differentiates."""

    layer: SingleRecordTerm
    name: str

    @property
    def per_record(self) -> int:
        return int(self.layer.parameters[self.name].numel()) + self.layer.row_cost

    def rows(self, part: slice, out_RP: Tensor | None = None) -> Tensor:
        return _written(self.layer.rows(self.name, part), out_RP)

    def ordered(self, values: Tensor) -> Tensor:
        return values


def plain_attention(device: torch.device) -> AbstractContextManager[None]:
    """Restricts attention on a GPU to plain products. The backward passes of other kernels have no batching rule, so
    torch would process the records one by one."""
    context: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH) if one_size(device) else nullcontext()
    return context


def _written(rows_RP: Tensor, out_RP: Tensor | None) -> Tensor:
    return rows_RP if out_RP is None else out_RP.copy_(rows_RP)
