"""One forward and one backward pass that store what the gradients of each layer's parameters are computed from.

The weights need no gradient in this pass: each layer computes with detached parameters, and a tap on its output stores
the output's gradient. Any other use of a trained parameter (a formula outside its layer, a parametrisation) sees the
original parameter, which needs a gradient; the backward pass reaches it, and the model is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.utils import _pytree as pytree

from dprecipe.models.zoo.layers import StandardisedConv2d, TransposedLinear
from dprecipe.training.engine.attention import ATTENTION, attention
from dprecipe.training.engine.recompute import Recompute, run_block
from dprecipe.training.engine.standardised import BatchWeights

Dim = tuple[int, int] | None
"""The dimension of the records, and how many of its rows belong to each; `None`: the tensor is shared by all."""


class Unplanned(Exception):
    """Raised where the model did something that the bookkeeping of its layers can't handle; the message says what."""


class Places(NamedTuple):
    """The dimensions of the records in the tensors of one call of a layer."""

    inputs: tuple[Dim, ...]
    outputs: tuple[Dim, ...]
    expanded: bool = False
    """One input serves all records (positions); it is repeated for each, so that their gradients are separate."""


NOWHERE = Places((), ())
OWN_OUTPUT = (nn.Linear, TransposedLinear)
"""Layers whose output may be a view, but of a tensor that nothing else uses."""


@dataclass(slots=True)
class Call:
    """One call of a layer: its inputs, and the gradient of the summed losses with respect to its outputs."""

    kind: type[nn.Module]
    layer: nn.Module
    parameters: dict[str, nn.Parameter]
    """The trained parameters, by their names in the layer."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: list[Tensor | None] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    places: Places = NOWHERE
    reduced: bool = False
    """The layer was called within torch's autocast."""
    weights: BatchWeights | None = None
    """Shared by the parts of a batch."""
    terms: list[tuple[str, Any]] | None = None
    """The call's terms, where they were made at once and replace its tensors."""

    def tensors(self) -> list[Tensor]:
        if not self.kwargs and len(self.args) == 1 and isinstance(self.args[0], Tensor):
            return [self.args[0]]
        return _tensors(self.args, self.kwargs)

    def input(self) -> Tensor:
        """Returns (N, …): the first input, records first."""
        return in_single(records_first(self.tensors()[0], self.places.inputs[0]))

    def gradient(self) -> Tensor | None:
        """Returns (N, …): the gradient with respect to the first output, records first."""
        gradient = self.gradients[0]
        return None if gradient is None else in_single(records_first(gradient, self.places.outputs[0]))


def _tensors(*values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def in_single(tensor: Tensor) -> Tensor:
    """Converts half precision to single precision: gradients of records are never less precise."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor


def records_first(tensor: Tensor, dim: Dim) -> Tensor:
    if dim is None:
        raise Unplanned("a layer whose input or output is the same for all records")
    place, rows = dim
    if rows > 1:
        tensor = torch.unflatten(tensor, place, (-1, rows))
    return tensor if place == 0 else tensor.movedim(place, 0)


class _Anchored(torch.autograd.Function):
    """The identity, in place; its output needs a gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, output: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Returns all modules of the model, each once and after its parent: `modules()` takes ten times as long."""
    result, visited = [model], {model}
    for layer in result:
        for inner in layer._modules.values():
            if inner is not None and inner not in visited:
                visited.add(inner)
                result.append(inner)
    return result


def trained_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trained parameters by name, as `named_parameters()` has them, in a tenth of its time."""
    result: dict[str, nn.Parameter] = {}
    visited: set[int] = set()

    def visit(layer: nn.Module, prefix: str) -> None:
        visited.add(id(layer))
        for name, parameter in layer._parameters.items():
            if parameter is not None and parameter.requires_grad and id(parameter) not in visited:
                visited.add(id(parameter))
                result[prefix + name] = parameter
        for name, inner in layer._modules.items():
            if inner is not None and id(inner) not in visited:
                visit(inner, f"{prefix}{name}.")

    visit(model, "")
    return result


class Taps:
    """Taps on the layers of `model` that have trained parameters; the layers are restored on exit.

    `places`: the places of each call, in order; without them the calls are recorded as they come.
    """

    def __init__(
        self,
        model: nn.Module,
        records: int,
        places: Sequence[Places] | None = None,
        compact: Callable[[Call], None] | None = None,
        weights: BatchWeights | None = None,
    ) -> None:
        """`compact`: called for each call of a block that is computed again, as soon as it has its gradients."""
        self.calls: list[Call] = []
        self._cursor = 0
        self._compact = compact
        self._weights = weights
        self._layers = layers_of(model)
        self._records = records
        self._places = places
        self._stack = ExitStack()
        self._edges: list[tuple[Call, int, GradientEdge]] = []
        own = (p for layer in self._layers for p in layer._parameters.values())
        self._parameters = [p for p in own if p is not None and p.requires_grad]
        # Its value is never read: nothing is started to fill it.
        self._anchor = torch.empty((), device=self._parameters[0].device, requires_grad=True)

    def __enter__(self) -> Taps:
        inside: set[nn.Module] = set()
        with ExitStack() as stack:
            stack.enter_context(copy_buffers(self._layers))
            blocks = {b for layer in self._layers if isinstance(layer, Recompute) for b in layer.blocks}
            for layer in self._layers:
                if layer in inside:
                    continue
                if layer in blocks and self._places is not None:
                    vars(layer)["forward"] = self._recomputed(layer)
                    stack.callback(vars(layer).pop, "forward")
                if isinstance(layer, nn.MultiheadAttention):
                    inside.update(layer.modules())
                if trained_layers(layer):
                    if "forward" in vars(layer):
                        raise Unplanned(f"a {type(layer).__name__} whose forward was replaced")
                    vars(layer)["forward"] = self._forward_of(layer)
                    stack.callback(vars(layer).pop, "forward")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        # A block that is computed again refers to the taps, and its output, by autograd's graph, to the block. Calls
        # hold such outputs: Python can't collect a cycle through that graph.
        self.calls, self._edges = [], []

    def backward(self, losses: Tensor) -> None:
        """Gives each call the gradient with respect to its output.

        Raises:
            Unplanned: a trained parameter is used outside its layer, or an input was overwritten.
        """
        if self._places is not None and len(self.calls) != len(self._places):
            raise Unplanned("the model calls its layers differently for other records")
        if losses.requires_grad:
            self._differentiate(losses, [self._anchor], torch.ones_like(losses))  # reached through every block
        if any([tensor._version for tensor in call.tensors()] != call.versions for call in self.calls):
            raise Unplanned("the input of a layer is overwritten")

    def _differentiate(self, output: Tensor, inputs: Sequence[Tensor], gradient: Tensor | None) -> list[Tensor | None]:
        """Returns the gradients of `inputs`; the calls since the last time get theirs."""
        edges, self._edges = self._edges, []
        weights = [get_gradient_edge(parameter) for parameter in self._parameters]
        sources: list[Any] = [*inputs, *[edge for _, _, edge in edges], *weights]
        reached: list[Tensor | None] = list(torch.autograd.grad(output, sources, gradient, allow_unused=True))
        if any(gradient is not None for gradient in reached[len(inputs) + len(edges) :]):
            raise Unplanned("a trained parameter is used outside its layer")
        for (call, index, _), by_output in zip(edges, reached[len(inputs) :], strict=False):
            call.gradients[index] = by_output
        return reached[: len(inputs)]

    def _recomputed(self, block: nn.Module) -> Callable[..., Tensor]:
        learns = any(parameter.requires_grad for parameter in block.parameters())

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            if not learns and not any(x.requires_grad for x in _tensors(args, kwargs)):
                output: Tensor = type(block).forward(block, *args, **kwargs)
                return output  # nothing of it is stored for a backward pass
            start = self._cursor

            def again(compute: Callable[[], Tensor], inputs: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
                self._cursor = start
                edges, self._edges = self._edges, []
                output = compute()
                if self._cursor != end:
                    raise Unplanned("a block calls its layers differently the second time")
                result = self._differentiate(output, inputs, gradient)
                self._edges = edges
                if self._compact is not None:
                    for call in self.calls[start:end]:
                        self._compact(call)
                return result

            output = run_block(block, args, kwargs, self._anchor, again)
            end = self._cursor
            for call in self.calls[start:end]:
                call.args, call.kwargs, call.versions = (), {}, []
            return output

        return forward

    def _forward_of(self, layer: nn.Module) -> Callable[..., Any]:
        if isinstance(layer, nn.MultiheadAttention):

            def attend(*args: Any, **kwargs: Any) -> Any:
                return self._attend(layer, *args, **kwargs)

            return attend

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._next().expanded:
                args = (_repeated(args[0], self._records), *args[1:])
            return self._tap_layer(layer, args, kwargs)

        return forward

    def _next(self) -> Places:
        if self._places is None:
            return NOWHERE
        if self._cursor >= len(self._places):
            raise Unplanned("the model calls its layers differently for other records")
        return self._places[self._cursor]

    def _tap_layer(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._call(type(layer), layer, trained_layers(layer), args, kwargs)
        with _detached(layer):
            if type(layer) is StandardisedConv2d and self._weights is not None:
                outputs = self._weights.convolve(layer, *args, **kwargs)
            else:
                outputs = type(layer).forward(layer, *args, **kwargs)
        return self._tapped(call, outputs)

    def _call(
        self, kind: type[nn.Module], layer: nn.Module, parameters: dict[str, nn.Parameter], args: Any, kwargs: Any
    ) -> Call:
        reduced = torch.is_autocast_enabled(self._anchor.device.type)
        call = Call(kind, layer, parameters, args, kwargs, reduced=reduced, weights=self._weights)
        tensors = call.tensors()
        call.versions = [tensor._version for tensor in tensors]
        if self._places is not None:
            call.places = self._next()
            for tensor, dim in zip(tensors, call.places.inputs, strict=True):
                self._check_rows(tensor, dim)
        return call

    def _tapped(self, call: Call, outputs: Any) -> Any:
        self.calls[self._cursor : self._cursor + 1] = [call]
        self._cursor += 1
        if isinstance(outputs, Tensor):
            return self._tap(call, outputs)
        leaves, spec = pytree.tree_flatten(outputs)
        return pytree.tree_unflatten([self._tap(call, x) if isinstance(x, Tensor) else x for x in leaves], spec)

    def _tap(self, call: Call, output: Tensor) -> Tensor:
        index = len(call.shapes)
        call.shapes.append(output.shape)
        call.gradients.append(None)
        if self._places is not None:
            self._check_rows(output, call.places.outputs[index])
        if not output.is_floating_point() or not torch.is_grad_enabled():
            return output
        # Without a tensor of its own, the gradient would include that of other users of the tensor.
        if output._is_view() and call.kind in OWN_OUTPUT:
            output = torch.ops.aten._unsafe_view(output, output.shape)
        elif output._is_view() or any(output is tensor for tensor in call.tensors()):
            output = output.clone()
        if not output.requires_grad:
            output = _Anchored.apply(self._anchor, output)  # type: ignore[no-untyped-call]
        self._edges.append((call, index, get_gradient_edge(output)))
        return output

    def _check_rows(self, tensor: Tensor, dim: Dim) -> None:
        if dim is not None and (tensor.dim() <= dim[0] or tensor.shape[dim[0]] != self._records * dim[1]):
            raise Unplanned("a layer does not get one row for each record")

    def _attend(self, layer: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> Any:
        """Computes self-attention with its two products tapped; any other attention is one call."""
        arguments = dict(zip(ATTENTION, args, strict=False)) | kwargs
        query = arguments["query"]
        if not (
            arguments["key"] is query
            and arguments["value"] is query
            and query.dim() == 3
            and layer.in_proj_weight is not None
            and layer.bias_k is None
            and not layer.add_zero_attn
            and isinstance(vars(layer.out_proj).get("_parameters", {}).get("weight"), nn.Parameter)
        ):
            return self._tap_layer(layer, args, kwargs)
        packed = self._product(layer, query, layer.in_proj_weight, layer.in_proj_bias)
        if not layer.batch_first:
            packed = packed.transpose(0, 1)
        # Chunks, whose gradients are joined by one copy; those of indexed parts would each be added to zeros.
        query, key, value = (
            torch.unflatten(part, -1, (layer.num_heads, -1)).transpose(1, 2) for part in packed.chunk(3, -1)
        )
        mixed, weights = attention(layer, query, key, value, arguments)
        mixed = mixed.transpose(1, 2).flatten(2)
        output = self._product(layer, mixed, layer.out_proj.weight, layer.out_proj.bias)
        return (output if layer.batch_first else output.transpose(0, 1)), weights

    def _product(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        named = {"weight": weight, "bias": bias}
        parameters = {n: p for n, p in named.items() if isinstance(p, nn.Parameter) and p.requires_grad}
        call = self._call(nn.Linear, layer, parameters, (inputs,), {})
        output = functional.linear(inputs, weight.detach(), None if bias is None else bias.detach())
        result: Tensor = self._tapped(call, output)
        return result


def trained_layers(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the layer's own trained parameters; for attention, also those of its output product."""
    if isinstance(layer, nn.MultiheadAttention):
        return {name: p for name, p in layer.named_parameters() if p.requires_grad}
    return {name: p for name, p in layer._parameters.items() if p is not None and p.requires_grad}


@contextmanager
def _detached(layer: nn.Module) -> Iterator[None]:
    """Inside the block, the layer's own parameters are detached."""
    layers = list(layer.modules()) if isinstance(layer, nn.MultiheadAttention) else [layer]
    originals = [(one, one._parameters) for one in layers]
    try:
        for one, parameters in originals:
            vars(one)["_parameters"] = {n: None if p is None else p.detach() for n, p in parameters.items()}
        yield
    finally:
        for one, parameters in originals:
            vars(one)["_parameters"] = parameters


@contextmanager
def copy_buffers(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Inside the block, the layers' buffers are copies, which may be written to."""
    originals = [(layer, layer._buffers) for layer in layers if layer._buffers]
    try:
        for layer, buffers in originals:
            vars(layer)["_buffers"] = {n: None if b is None else b.clone() for n, b in buffers.items()}
        yield
    finally:
        for layer, buffers in originals:
            vars(layer)["_buffers"] = buffers


def _repeated(tensor: Tensor, records: int) -> Tensor:
    return tensor.expand(records, *(tensor.shape[1:] if tensor.dim() > 1 and len(tensor) == 1 else tensor.shape))
