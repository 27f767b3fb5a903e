"""The forward and the backward pass as one compiled program, for batches of a few sizes.

A program is traced from the pass of the eager engine (`backward.find_terms`) and returns the same terms. Norms,
clipping and sums are computed from them as usual, so the guarantees of `strategies` hold. Only numbers that belong to
one record are compiled. A part of a batch is padded with records of zeros to the size of the program; their rows are
cut off before anything is computed from them.

If layers keep vectors only (`SumPrograms`), norms and sums are compiled programs too, made from the same strategies:
they add the same numbers, in any order, at most as many in single precision as is reserved. Padding has weight zero.

Compilers have bugs: a program is used only if its norms and sums on synthetic records equal those of the eager engine.
Nothing of a program depends on a private record.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, final

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from dprecipe.faults import RunFailed
from dprecipe.progress import report_progress
from dprecipe.training.engine.backward import GradientPlan, Loss, run_pass
from dprecipe.training.engine.compiled_check import check_equal, measure_seconds
from dprecipe.training.engine.compiled_program import AnswerIndex, Program, StoredCall, SumPrograms, Uncompiled
from dprecipe.training.engine.compilers import find_compiler, find_missing
from dprecipe.training.engine.layers import layer_terms
from dprecipe.training.engine.parts import Parts
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.rounding import Reserve
from dprecipe.training.engine.shares import Share, shares_of_pass
from dprecipe.training.engine.sizes import batch_size_bound, size_for
from dprecipe.training.engine.strategies import Small, Vectors, Weights
from dprecipe.training.engine.synthetic import preserve_generators, synthetic_records
from dprecipe.training.engine.taps import Unplanned
from dprecipe.training.engine.terms import Products, Rows

Mode = Literal["auto", True, False]
Compiler = Callable[[GraphModule, list[Tensor]], Callable[..., Sequence[Tensor]]]
"""(graph, example inputs) -> a function that computes the graph."""

OPERATIONS = 20_000
"""A graph with more operations (an unrolled loop, say) takes too long to compile."""
MIN_SECONDS = 600.0
"""Shorter runs are not compiled: compiling takes a minute or two."""
_PROGRAMS: weakref.WeakKeyDictionary[nn.Module, dict[Any, Program]] = weakref.WeakKeyDictionary()
"""Programs that a recipe insists on: compiled before anything is spent, and used from the first step on."""
GAIN = 0.97
"""A program that takes more than this share of the eager time is not used."""


def compiled_program(
    model: nn.Module,
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    plan: GradientPlan,
    compiler: Compiler,
    block_size: int,
) -> Program:
    """Returns the program for this many records like these; only their shapes and types are looked at.

    `block_size`: how many records are added up in single precision, if the sums are compiled too.

    Raises:
        Unplanned, Uncompiled: there is none.
    """
    size = len(labels)
    features, labels = synthetic_records(features, labels, size)
    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    rows: list[tuple[str, int]] = []
    stored_calls: list[StoredCall] = []

    def traced(features: Tensor, labels: Tensor) -> list[Tensor]:
        answers: list[Tensor] = []

        def at(tensor: Tensor) -> int:
            answers.append(tensor.detach())
            return len(answers) - 1

        for call in run_pass(model, loss, features, labels, plan):
            remaining, result = dict(call.parameters), list(layer_terms(call))
            # A product with vectors and its bias are one strategy: see `strategies.Vectors`.
            separate = not any(isinstance(term, Products) and term.of_vectors for _, term in result)
            for name, term in result:
                if separate and isinstance(term, Rows):
                    rows.append((names[id(remaining.pop(name))], at(term.values)))
            if remaining and any(gradient is not None for gradient in call.gradients):
                leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
                stored_leaves = tuple(AnswerIndex(at(leaf)) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
                gradients = tuple(None if gradient is None else at(gradient) for gradient in call.gradients)
                bare = replace(call, parameters=remaining, args=(), kwargs={}, gradients=[])
                stored_calls.append(StoredCall(bare, stored_leaves, spec, gradients))
        return answers

    with preserve_generators(features.device):
        try:
            graph = make_fx(traced)(features, labels)
        except Unplanned:
            raise
        except Exception as error:  # a model may do anything
            raise Uncompiled(f"it can't be traced: {type(error).__name__}: {_line(error)}") from error
        tensor_places = _lift_tensors(graph, model)
        examples = [tensors[name].detach() for tensors, name in tensor_places]
        try:
            with torch.no_grad():
                compute = compiler(graph, [*examples, features, labels])
        except Exception as error:  # nor does a compiler promise what it raises
            raise Uncompiled(f"the compiler failed: {type(error).__name__}: {_line(error)}") from error
        program = Program(size, compute, tuple(tensor_places), tuple(rows), tuple(stored_calls), names)
        try:
            return replace(
                program, sum_programs=_compile_sums(program, model, features, labels, plan, compiler, block_size)
            )
        except Exception as error:
            raise Uncompiled(f"norms and sums can't be compiled: {type(error).__name__}: {_line(error)}") from error


def _compile_sums(
    program: Program,
    model: nn.Module,
    features: Tensor,
    labels: Tensor,
    plan: GradientPlan,
    compiler: Compiler,
    block_size: int,
) -> SumPrograms | None:
    """Compiles norms and sums, where they are made of no more numbers than the layers keep. Gradients of single
    records, and their parts, are better taken while they are in the cache."""
    device = features.device

    def shares(answers: Sequence[Tensor]) -> list[Share]:
        return shares_of_pass(program.terms(answers, program.size), model, program.size, device, plan, join=False)

    def norms(*answers: Tensor) -> list[Tensor]:
        return [torch.stack([share.strategy.squares() for share in shares(answers)]).sum(0)]

    def sums(*inputs: Tensor) -> list[Tensor]:
        *answers, weights_N = inputs
        weights = Weights(weights_N, block_size=block_size, separate_blocks=True)
        results = []
        for share in shares(answers):
            totals = [weights_N.new_zeros(place.stop - place.start) for place in share.slices]
            share.strategy.add(totals, weights)
            results += totals
        return results

    answers = list(program.answers(features, labels))
    result = shares(answers)
    if not result or not all(isinstance(share.strategy, (Small, Vectors)) and not share.isolated for share in result):
        return None
    weights_N = torch.ones(program.size, dtype=torch.float64, device=device)
    to_norms = compiler(make_fx(norms)(*answers), answers)
    to_sums = compiler(make_fx(sums)(*answers, weights_N), [*answers, weights_N])
    return SumPrograms(
        to_norms, to_sums, block_size, tuple(place for share in result for place in share.slices), shares
    )


def _undropped(node: torch.fx.Node) -> bool:
    """Returns True for attention that could draw random numbers, and does not."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            dropout = (
                node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            )
            return bool(dropout == 0.0)
    return False


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:120]


def _lift_tensors(graph: GraphModule, model: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Makes the model's parameters and buffers the first inputs of the graph, in the order that is returned.

    Raises:
        Uncompiled: the graph draws random numbers, reads other tensors, or is too long.
    """
    nodes = list(graph.graph.nodes)
    if len(nodes) > OPERATIONS:
        raise Uncompiled(f"its pass has {len(nodes)} operations")
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _undropped(node):
            raise Uncompiled(f"it draws random numbers ({node.target})")
    places: dict[int, tuple[dict[str, Any], str]] = {}
    for layer in model.modules():
        for tensors in (layer._parameters, layer._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    places.setdefault(id(tensor), (cast(dict[str, Any], tensors), name))
    placeholders: dict[int, torch.fx.Node] = {}
    results = []
    for node in nodes:
        if node.op != "get_attr":
            continue
        constant = getattr(graph, node.target)
        if id(constant) in places:
            if id(constant) not in placeholders:
                with graph.graph.inserting_before(nodes[0]):
                    placeholders[id(constant)] = graph.graph.placeholder(f"input_{len(placeholders)}")
                results.append(places[id(constant)])
            node.replace_all_uses_with(placeholders[id(constant)])
            graph.graph.erase_node(node)
        elif any(user.target is not torch.ops.aten.lift_fresh_copy.default for user in node.users):
            raise Uncompiled("it reads a tensor that is neither a parameter nor a buffer")
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    return results


@final
class Passes:
    """The compiled passes of one model, for the shapes and types of the first records; compiled when those arrive.

    `auto` compiles if the run is long and a compiler is available, and uses the program if it is faster than the eager
    engine. `True` always compiles.

    Guarantees: one program computes all parts of all batches, or none does. Different ways to compute round
    differently, and at a kink of the model a rounding can move a gradient by its whole length: if one more record could
    decide how the others are computed, it could move the sum by more than its own gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        mode: Mode,
        expected_batch: float,
        steps: int,
        compiler: Compiler = find_compiler,
        say: Callable[[str], None] = report_progress,
        min_seconds: float = MIN_SECONDS,
        hindrance: str = "",
        processes: int = 1,
        owner: nn.Module | None = None,
    ) -> None:
        """`expected_batch`: records of a batch of this process, one of `processes`; `min_seconds`: do not compile a run
        whose gradients take less, unless `mode` is `True`; `hindrance`: why the run's passes can't be compiled;
        `owner`: the module with which a program is kept, where `model` only wraps it."""
        self._model, self._loss, self._mode = model, loss, mode
        self._expected, self._steps = expected_batch, steps
        self._compiler, self._say, self._min_seconds = compiler, say, min_seconds
        self._hindrance, self._processes, self._owner = hindrance, processes, owner or model
        self.parts = Parts(model, loss, expected_batch, mixed=bool(hindrance))
        """The sizes of parts, where nothing is compiled."""
        self._program: Program | None = None
        self._key: object = None
        self._begun = False
        self.max_rows = sys.maxsize
        """The largest number of rows that the program takes."""
        self.remark = ""
        """Says that passes are compiled, or why not; empty before the first records have come."""

    def find_source(self, features: Tensor, labels: Tensor, max_rows: int) -> Program | None:
        """Returns the program that computes the terms of such records instead of the eager engine; `None`: there is
        none.

        `max_rows`: how many rows may go through the model at once; a record has one for each of its labels.

        Raises:
            RunFailed: they had to be compiled, and can't be.
        """
        if self._mode is False or not len(labels):
            return None
        shapes = features.shape[1:], features.dtype, labels.shape[1:], labels.dtype
        key = (*shapes, features.device, self._model.training)
        if self._key is None:
            self._key = key
            self._prepare(features, labels, max(1, max_rows // labels[0].numel()))
        return self._program if key == self._key else None

    def choose_source(self, features: Tensor, labels: Tensor, max_rows: int) -> tuple[Program | None, int | None]:
        """Returns `find_source`, and the number of such records in each part; `None`: any number."""
        if (program := self.find_source(features, labels, max_rows)) is not None:
            return program, program.size
        size = self.parts.size(features, labels, max_rows)
        if size is not None and not self._hindrance:
            self.max_rows = size * labels[0].numel()
        return None, size

    def _prepare(self, features: Tensor, labels: Tensor, max_rows: int) -> None:
        started = time.monotonic()
        try:
            with preserve_generators(features.device):
                self._program = self._find_program(features, labels, max_rows)
            self.max_rows = self._program.size * labels[0].numel()
            self.remark = f"compiled for {self._program.size} records, in {time.monotonic() - started:.0f} s"
        except (Unplanned, Uncompiled) as reason:
            self.remark = f"not compiled: {reason}"
            if self._mode is True:
                raise RunFailed(
                    f"the gradient engine can't be compiled: {reason}", "set runtime.compile to auto, or to false"
                ) from reason
        if self._begun:
            self._say(self.remark)

    def _find_program(self, features: Tensor, labels: Tensor, max_rows: int) -> Program:
        """Returns the program that was compiled for the same run before, or a new one."""
        if self._mode is not True:
            return self._compiled(features, labels, max_rows)
        layers = tuple(type(layer) for layer in self._model.modules())
        key = (layers, self._loss, self._key, self._expected, self._processes, max_rows, self._compiler)
        kept = _PROGRAMS.setdefault(self._owner, {})
        if key not in kept:
            kept[key] = self._compiled(features, labels, max_rows)
        return kept[key]

    def _compiled(self, features: Tensor, labels: Tensor, max_rows: int) -> Program:
        model, loss = self._model, self._loss
        if self._hindrance:
            raise Uncompiled(self._hindrance)
        if missing := find_missing(features.device) if self._compiler is find_compiler else None:
            raise Uncompiled(missing)
        plan = plan_of(model, loss, features, labels, n := size_for(self._expected, max_rows), self.parts.block_size(n))
        size = size_for(self._expected, min(max_rows, plan.max_records))
        parts = math.ceil(self._expected / size)
        usual = synthetic_records(features, labels, math.ceil(self._expected / parts))
        if self._mode == "auto":
            estimated_seconds = measure_seconds(model, loss, *usual, None) * self._steps * parts
            if estimated_seconds < self._min_seconds:
                raise Uncompiled(
                    f"gradients of the run take {estimated_seconds:.0f} s; compiling pays off after "
                    f"{self._min_seconds:g} s"
                )
        self._say("compiling the gradient engine, a minute or two")
        self._begun = True
        records = synthetic_records(features, labels, size)
        block_size = Reserve(max(size, math.ceil(batch_size_bound(self._expected))), self._processes).take_block(size)
        result = compiled_program(model, loss, *records, plan, self._compiler, block_size)
        check_equal(model, loss, *records, result)
        if self._mode == "auto":
            rounds = [[measure_seconds(model, loss, *usual, source) for source in (None, result)] for _ in range(3)]
            eager, compiled = (min(times) for times in zip(*rounds, strict=True))
            if compiled > GAIN * eager:
                raise Uncompiled(f"it takes {1000 * compiled:.0f} ms, and {1000 * eager:.0f} ms as it is")
        return result
