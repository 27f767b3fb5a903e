"""Weights in shards: each of several processes keeps its part of all weights, and a block's are gathered while it
computes.

**What is not trained** (the base of adapters) is left to torch's `fully_shard`. No gradient of it exists, so that torch
adds up nothing: all that it sends are these weights. Outside of a pass the model has torch's `DTensor` in their place,
and each pass through it, whoever makes it, gathers them in all processes.

**What is trained** stays with this module, as `shards` does it; nor are sums whole anywhere
(`engine.sharded_sum`). The model keeps its trained parameters. Outside of a pass they have no memory:
to read one then is an error of the caller. `fully_shard` can't have them:

- It puts other parameters into the model for each pass. The engine knows a trained parameter by the object: whose terms
  these are, and that none is used outside its layer. Under `fully_shard` no parameter of a pass is one that it knows.
- It averages gradients of the batch. What is added up here are clipped sums in float64, from other passes than torch's.
- It divides each parameter by rows. Noise, state and checkpoints have one vector, and a shard is one part of it.

In a pass the memory of one block is there at a time (of torch's, that of the next as well), besides the parameters that
are in no block (embedding, last norm, head).

| case | what happens |
|---|---|
| a trained parameter of two blocks, or of a block and of what is outside | it is one of those that are in no block |
| another one of two blocks, and of nothing else | each process has it whole |
| a model without blocks, or of one | refused before anything is spent |
| another number of processes after a resume | a checkpoint has everything whole, and is divided again |
| the leader saves or publishes, or before it scores | it collects the shards in the machine's memory |
| the leader scores | it takes a copy of the model that was made when that was whole: torch copies no divided one |

Source: Rajbhandari et al. 2020 (stage 3), and Y. Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded
Data Parallel". Legend: P trained numbers, S of them in a shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, final

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree as pytree

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.models.zoo.causal_lm import CausalLanguageModel
from dprecipe.models.zoo.transformer import TextTransformer
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.processes.processes import Processes, is_worker, reporting_unreachable
from dprecipe.training.processes.shards import FrozenGather, Shard, ShardSum, check_divisible, collect, fill
from dprecipe.training.steps.optimise import cut_like


def gathers_weights(plan: Plan) -> bool:
    """Returns True if this process keeps a part of the model's weights."""
    return is_worker() and plan.runtime.sharding == "parameters"


def whole_on(plan: Plan, device: torch.device) -> torch.device:
    """Returns the device of the model while it is whole: where it trains, or the machine's memory, if its weights are
    gathered on the device block by block."""
    return torch.device("cpu") if gathers_weights(plan) else device


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Returns the repeated blocks of a model, in the order in which records pass them; empty if it has none."""
    if isinstance(model, CausalLanguageModel):
        return model.blocks
    return list(model.layers) if isinstance(model, TextTransformer) else []


def check_in_blocks(model: nn.Module, device: torch.device, *, from_python: bool = False) -> None:
    """Checks that the weights of this model can be in shards.

    `from_python`: it is a caller's module, whose weights are compared around each step.

    Raises:
        RunFailed: they can't.
    """
    if device.type == "mps":
        raise _refused("needs a device whose processes can reach each other, which mps is not")
    if from_python:
        raise _refused("needs the recipe's own model, and this one came from Python")
    if len(blocks_of(model)) < 2:
        raise _refused("needs a model of several blocks, and this one has none or one")
    check_divisible([parameter for parameter in model.parameters() if parameter.requires_grad])


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """Trained parameters that follow one another, as one tensor."""

    whole: Tensor
    """The parameters as one tensor, without memory while it is not gathered; they are views of it."""
    place: slice

    def free(self) -> None:
        self.whole.untyped_storage().resize_(0)

    def allocate(self) -> None:
        self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())


@final
class ShardedWeights(Shard):
    """This process's shard of a model's weights, which from now on are whole within `gathering` alone."""

    def __init__(self, processes: Processes, model: nn.Module, device: torch.device) -> None:
        """`device`: where it trains; the model, which is whole, may be elsewhere until now. Its buffers stay whole.

        Raises:
            RunFailed: see `check_in_blocks`.
        """
        check_in_blocks(model, device)
        super().__init__(processes, [parameter for parameter in model.parameters() if parameter.requires_grad])
        self.weights.data = self.weights.data.to(device)
        self.count = processes.count
        self._model, self._device = model, device
        blocks = blocks_of(model)
        of_blocks = _parameters_by_block(model, blocks)
        _shard_frozen(model, list(zip(blocks, of_blocks, strict=True)), device)
        for layer in model.modules():
            layer._buffers = {name: None if b is None else b.to(device) for name, b in layer._buffers.items()}
        inside = {id(parameter) for parameters in of_blocks for parameter in parameters}
        self._rest = self._take_over([p for p in self._trained if id(p) not in inside])
        self._blocks = [(b, self._take_over(own)) for b, own in zip(blocks, of_blocks, strict=True)]
        self._gathered: list[Piece] = []

    def _take_over(self, parameters: Sequence[nn.Parameter]) -> list[Piece]:
        """Takes over the trained parameters and returns their pieces: from now on the parameters are views of these,
        without memory."""
        pieces, start = list[Piece](), 0
        own = {id(parameter) for parameter in parameters}
        for taken, group in groupby(self._trained, lambda parameter: id(parameter) in own):
            run = list(group)
            place = slice(start, start := start + sum(parameter.numel() for parameter in run))
            if taken:
                pieces.append(_make_piece(run, place, self._device))
        return pieces

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Inside, passes through the model have its weights; every process makes the same passes.

        Raises:
            RunFailed: another process can't be reached.
        """
        handles = []
        try:
            self._gather(self._rest)
            for block, pieces in self._blocks:

                def before(*_: object, pieces: list[Piece] = pieces) -> None:
                    self._exchange(pieces)

                def after(_: object, __: object, outputs: Any, pieces: list[Piece] = pieces) -> None:
                    for output in pytree.tree_leaves(outputs):
                        if isinstance(output, Tensor) and output.requires_grad:
                            output.register_hook(lambda _: self._exchange(pieces))  # type: ignore[no-untyped-call]

                handles += [block.register_forward_pre_hook(before), block.register_forward_hook(after)]
            yield
        finally:
            for handle in handles:
                handle.remove()
            for piece in [*self._rest, *self._gathered]:
                piece.free()
            self._gathered = []
            if isinstance(self._model, FSDPModule):
                self._model.reshard()  # no backward pass did, where there was none

    def _exchange(self, pieces: list[Piece]) -> None:
        """Gathers a block, instead of the one that is there: passes go from block to block."""
        if pieces is not self._gathered:
            for piece in self._gathered:
                piece.free()
            self._gather(pieces)
            self._gathered = pieces

    def _gather(self, pieces: Sequence[Piece]) -> None:
        with torch.no_grad():
            for piece in pieces:
                piece.allocate()
                fill(self._processes, piece.whole, piece.place, self.weights.detach(), self._size)

    def largest(self, number: int) -> int:
        return -self._processes.least(-number)

    def begin_sum(self) -> ShardSum:
        return ShardSum(self._processes, self._size, self._device)

    def keep(self, clipped: ClippedSum) -> ClippedSum:
        """Returns the sum as it is: it is in shards already."""
        return clipped

    def spread(self) -> None:
        """Does nothing: each process keeps what it has moved, and weights are gathered in each pass."""

    def load(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Takes this shard of the weights in `state`.

        Raises:
            KeyError, ValueError: they are not of this model.
        """
        named = list(model.named_parameters())
        with torch.no_grad():
            self.weights.copy_(self._cut([state[name] for name, parameter in named if parameter.requires_grad]))
            for name, frozen in named:
                if isinstance(frozen, DTensor):
                    part = distribute_tensor(state[name], frozen.device_mesh, frozen.placements, src_data_rank=None)
                    frozen.copy_(part)
                elif not frozen.requires_grad:
                    frozen.copy_(state[name])

    def collect(
        self, optimizer: dict[str, Any], fresh: dict[str, Any], vectors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Returns everything whole, on the CPU, in the leader; nothing in the others."""
        trained = collect(self._processes, self.weights, self._size)
        names = [name for name, value in optimizer["state"].get(0, {}).items() if isinstance(value, Tensor)]
        by_name = {
            name: value if (value := optimizer["state"][0][name]).dim() == 0 else self._collected(value)
            for name in names
        }
        wholes = {name: self._collected(own_S) for name, own_S in vectors.items()}
        moved = {} if trained is None else dict(zip(map(id, self._trained), self._parts(trained), strict=True))
        named, weights = dict(self._model.named_parameters(remove_duplicate=False)), dict[str, Tensor]()
        for name, value in self._model.state_dict().items():
            whole = moved.get(id(named[name])) if name in named and named[name].requires_grad else _gather_frozen(value)
            if whole is not None and trained is not None:
                weights[name] = whole.cpu()
        if trained is None:
            return {}
        state = {
            number: {
                name: value.clone() if value.dim() == 0 else self._parts(value)[number].clone()
                for name, value in by_name.items()
            }
            for number in range(len(self._trained))
        }
        return {"model": weights, "optimizer": {**fresh, "state": state if by_name else {}}, "vectors": wholes}

    def _collected(self, own_S: Tensor) -> Tensor:
        """Returns (P,) in the leader, nothing in the others."""
        whole = collect(self._processes, own_S, self._size)
        return torch.empty(0) if whole is None else whole

    def _parts(self, whole_P: Tensor) -> list[Tensor]:
        return cut_like(whole_P, self._trained)


def _shard_frozen(
    model: nn.Module, blocks: Sequence[tuple[nn.Module, list[nn.Parameter]]], device: torch.device
) -> None:
    """Leaves what is not trained to torch, block by block: only one at a time is whole on the device."""
    frozen = {parameter for parameter in model.parameters() if not parameter.requires_grad}
    if not frozen:
        return
    mesh = DeviceMesh.from_group(distributed.group.WORLD, device.type)  # type: ignore[arg-type]
    parameters = set(model.parameters())
    for module, own in [*blocks, (model, list(frozen))]:
        taken = frozen.intersection(own)
        divided = fully_shard(module, mesh=mesh, ignored_params=parameters - taken)
        divided.set_custom_all_gather(FrozenGather())  # type: ignore[arg-type]
        for parameter in taken.difference(model.parameters()):  # a copy of the model may still have it
            parameter.data = parameter.new_empty(1).expand(parameter.shape)
    for parameter in frozen.intersection(model.parameters()):
        parameter.data = parameter.to(device)


def _gather_frozen(value: Tensor) -> Tensor:
    if isinstance(value, DTensor):
        with reporting_unreachable():
            value = value.full_tensor()
    return value.detach()


def _parameters_by_block(model: nn.Module, blocks: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """Returns, for each block, the parameters that nothing outside of it has."""
    inside = [set(block.modules()) for block in blocks]
    others = {layer for layer in model.modules() if not any(layer in layers for layers in inside)}
    owners: dict[int, set[int]] = {}
    for number, layers in enumerate([others, *inside]):
        for layer in layers:
            for parameter in layer._parameters.values():
                owners.setdefault(id(parameter), set()).add(number)
    return [[p for p in block.parameters() if owners[id(p)] == {n}] for n, block in enumerate(blocks, 1)]


def _make_piece(parameters: Sequence[nn.Parameter], place: slice, device: torch.device) -> Piece:
    whole = torch.empty(place.stop - place.start, dtype=parameters[0].dtype, device=device)
    for parameter, part in zip(parameters, cut_like(whole, parameters), strict=True):
        parameter.data = part
    piece = Piece(whole, place)
    piece.free()
    return piece


def _refused(reason: str) -> RunFailed:
    return RunFailed(f"runtime.sharding: parameters {reason}", "set runtime.sharding to optimizer, or remove it")
