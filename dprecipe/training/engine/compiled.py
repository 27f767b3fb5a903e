"""The forward and the backward pass as one compiled program, for batches of a few sizes.

A program is traced from what the eager engine does in its pass (`backward.find_terms`), so that it answers the same
terms: norms, clipping and sums are taken from them as ever, and what `strategies` guarantees of them holds. Only
numbers that belong to one record are compiled. A part of a batch is filled up with records of zeros to the size of a
program, and they are cut off its answers before anything is taken of them.

Where layers keep no more than vectors (`Whole`), norms and sums are programs of their own, of the same strategies: they
add the same numbers, in whatever order, as many in single precision as is reserved. Filled rows have weight zero.

Compilers err: a program is used only where, on synthetic records, its norms and sums were those of the eager engine.
Nothing of a program depends on a private record.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, final

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from dprecipe.faults import RunFailed
from dprecipe.progress import report_progress
from dprecipe.training.engine.backward import GradientPlan, Loss, run_pass
from dprecipe.training.engine.compiled_check import check_equal, seconds
from dprecipe.training.engine.compiled_program import At, Kept, Program, Uncompiled, Whole
from dprecipe.training.engine.layers import layer_terms
from dprecipe.training.engine.parts import Parts
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.reserve import Reserve
from dprecipe.training.engine.shares import Share, shares_of_pass
from dprecipe.training.engine.sizes import batch_size_bound, size_for
from dprecipe.training.engine.strategies import Small, Vectors, Weights
from dprecipe.training.engine.synthetic import left_alone, made_up
from dprecipe.training.engine.taps import Unplanned
from dprecipe.training.engine.terms import Products, Rows

Mode = Literal["auto", True, False]
Compiler = Callable[[GraphModule, list[Tensor]], Callable[..., Sequence[Tensor]]]
"""A graph and examples of its inputs to what computes it."""

OPERATIONS = 20_000
"""A graph of more operations (a loop that was unrolled) takes too long to compile."""
WORTH_SECONDS = 600.0
"""Shorter runs are not compiled, for it takes a minute or two."""
GAIN = 0.97
"""A program that takes more than this share of the eager time is not worth having."""


def compiled_program(
    model: nn.Module,
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    plan: GradientPlan,
    compiler: Compiler,
    together: int,
) -> Program:
    """The program for as many records like these, of which only shapes and types are looked at.

    `together`: how many records are added up in single precision, where it makes the sums as well.

    Raises:
        Unplanned, Uncompiled: there is none.
    """
    size = len(labels)
    features, labels = made_up(features, labels, size)
    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    rows: list[tuple[str, int]] = []
    kept: list[Kept] = []

    def traced(features: Tensor, labels: Tensor) -> list[Tensor]:
        answers: list[Tensor] = []

        def at(tensor: Tensor) -> int:
            answers.append(tensor.detach())
            return len(answers) - 1

        for call in run_pass(model, loss, features, labels, plan):
            rest, result = dict(call.parameters), list(layer_terms(call))
            # A product with vectors and its bias are one strategy: see `strategies.Vectors`.
            alone = not any(isinstance(term, Products) and term.of_vectors for _, term in result)
            for name, term in result:
                if alone and isinstance(term, Rows):
                    rows.append((names[id(rest.pop(name))], at(term.values)))
            if rest and any(gradient is not None for gradient in call.gradients):
                leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
                held = tuple(At(at(leaf)) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
                gradients = tuple(None if gradient is None else at(gradient) for gradient in call.gradients)
                bare = replace(call, parameters=rest, args=(), kwargs={}, gradients=[])
                kept.append(Kept(bare, held, spec, gradients))
        return answers

    with left_alone(features.device):
        try:
            graph = make_fx(traced)(features, labels)
        except Unplanned:
            raise
        except Exception as error:  # a model may do anything
            raise Uncompiled(f"it can't be traced: {type(error).__name__}: {_line(error)}") from error
        held = _lifted(graph, model)
        examples = [tensors[name].detach() for tensors, name in held]
        try:
            with torch.no_grad():
                compute = compiler(graph, [*examples, features, labels])
        except Exception as error:  # nor does a compiler promise what it raises
            raise Uncompiled(f"the compiler failed: {type(error).__name__}: {_line(error)}") from error
        program = Program(size, compute, tuple(held), tuple(rows), tuple(kept), names)
        try:
            return replace(program, whole=_whole(program, model, features, labels, plan, compiler, together))
        except Exception as error:
            raise Uncompiled(f"norms and sums can't be compiled: {type(error).__name__}: {_line(error)}") from error


def _whole(
    program: Program,
    model: nn.Module,
    features: Tensor,
    labels: Tensor,
    plan: GradientPlan,
    compiler: Compiler,
    together: int,
) -> Whole | None:
    """Norms and sums as programs, where they are made of no more numbers than the layers keep: gradients of single
    records, and their parts, are better taken while they are in the cache."""
    device = features.device

    def shares(answers: Sequence[Tensor]) -> list[Share]:
        return shares_of_pass(program.terms(answers, program.size), model, program.size, device, plan)

    def norms(*answers: Tensor) -> list[Tensor]:
        return [torch.stack([share.strategy.squares() for share in shares(answers)]).sum(0)]

    def sums(*given: Tensor) -> list[Tensor]:
        *answers, weights_N = given
        weights = Weights(weights_N, together=together, apart=True)
        results = []
        for share in shares(answers):
            totals = [weights_N.new_zeros(where.stop - where.start) for where in share.wheres]
            share.strategy.add(totals, weights)
            results += totals
        return results

    answers = list(program.answers(features, labels))
    result = shares(answers)
    if not result or not all(isinstance(share.strategy, (Small, Vectors)) and not share.alone for share in result):
        return None
    weights_N = torch.ones(program.size, dtype=torch.float64, device=device)
    to_norms = compiler(make_fx(norms)(*answers), answers)
    to_sums = compiler(make_fx(sums)(*answers, weights_N), [*answers, weights_N])
    return Whole(to_norms, to_sums, together, tuple(where for share in result for where in share.wheres), shares)


def _undropped(node: torch.fx.Node) -> bool:
    """Attention, which could draw, and does not."""
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return bool(given == 0.0)
    return False


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:120]


def _lifted(graph: GraphModule, model: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Make the model's parameters and buffers the first inputs of the graph, in the order that is answered.

    Raises:
        Uncompiled: it draws random numbers, reads other tensors, or is too long.
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
    held: dict[int, torch.fx.Node] = {}
    results = []
    for node in nodes:
        if node.op != "get_attr":
            continue
        constant = getattr(graph, node.target)
        if id(constant) in places:
            if id(constant) not in held:
                with graph.graph.inserting_before(nodes[0]):
                    held[id(constant)] = graph.graph.placeholder(f"held_{len(held)}")
                results.append(places[id(constant)])
            node.replace_all_uses_with(held[id(constant)])
            graph.graph.erase_node(node)
        elif any(user.target is not torch.ops.aten.lift_fresh_copy.default for user in node.users):
            raise Uncompiled("it reads a tensor that is neither a parameter nor a buffer")
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    return results


def find_compiler(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Compile for shapes as they are. On a CPU the layouts stay those of eager torch: its compiler's own answer wrong
    gradients for a convolution under a pool (torch 2.13). On a GPU convolutions in bfloat16 gain by another one."""
    import torch._inductor

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_cache()))  # torch's own is where others may write
    on_gpu = any(given.device.type == "cuda" for given in inputs)
    half = any(torch.bfloat16 in node.kwargs.values() for node in graph.graph.nodes)
    compute = torch._inductor.compile(graph, list(inputs), options={"layout_optimization": on_gpu and half})
    return cast(Callable[..., Sequence[Tensor]], compute)


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dprecipe" / "inductor"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def find_missing(device: torch.device) -> str | None:
    """What the compiler lacks on this machine, in words."""
    if device.type == "cpu":
        named = os.environ.get("CXX")
        known = any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++", "cl"]))
        return None if known else "there is no C++ compiler (g++ or clang++)"
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            return "there is no triton"
        named = os.environ.get("CC")  # triton compiles what starts its kernels
        if not any(shutil.which(name) for name in ([named] if named else ["gcc", "clang", "cc"])):
            return "there is no C compiler (gcc or clang), which triton needs"
        header = Path(sysconfig.get_path("include")) / "Python.h"
        return None if header.exists() else "there is no Python.h (the package python3-dev), which triton needs"
    return f"nothing compiles for {device.type}"


@final
class Passes:
    """The compiled passes of one model, made when the first records come, whose shapes and types they are for.

    `auto` compiles where the run is long and the compiler is there, and keeps what is faster than the eager engine;
    `True` compiles whatever it takes.

    Guarantees: one program takes all parts of all batches, or none does. Another way to compute rounds otherwise, and
    at a kink of the model a rounding moves a gradient by as much as its length: if one more record could decide which
    way the others go, it would move the sum by more than its own gradient.
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
        worth: float = WORTH_SECONDS,
        hindrance: str = "",
        processes: int = 1,
    ) -> None:
        """`expected_batch`: of this process, of so many; `worth`: compile no run whose gradients take less than these
        seconds, unless `mode` is `True`; `hindrance`: why none of the run's passes can be compiled, if so."""
        self._model, self._loss, self._mode = model, loss, mode
        self._expected, self._steps = expected_batch, steps
        self._compiler, self._say, self._worth = compiler, say, worth
        self._hindrance, self._processes = hindrance, processes
        self.parts = Parts(model, loss, expected_batch, mixed=bool(hindrance))
        """Their sizes, where nothing is compiled."""
        self._program: Program | None = None
        self._key: object = None
        self._begun = False
        self.most = sys.maxsize
        """How many rows the program takes."""
        self.remark = ""
        """Whether passes are compiled, and if not, why; empty before the first records came."""

    def source(self, features: Tensor, labels: Tensor, most: int) -> Program | None:
        """Who answers the terms of such records in the place of the eager engine, so many at a time; `None`: nobody.

        `most`: how many rows may go through the model at once; a record has one for each of its labels.

        Raises:
            RunFailed: they had to be compiled, and can't be.
        """
        if self._mode is False or not len(labels):
            return None
        shapes = features.shape[1:], features.dtype, labels.shape[1:], labels.dtype
        key = (*shapes, features.device, self._model.training)
        if self._key is None:
            self._key = key
            self._prepare(features, labels, max(1, most // labels[0].numel()))
        return self._program if key == self._key else None

    def taking(self, features: Tensor, labels: Tensor, most: int) -> tuple[Program | None, int | None]:
        """As `source`, and how many of such records there are in each part; `None`: any number."""
        if (program := self.source(features, labels, most)) is not None:
            return program, program.size
        size = self.parts.size(features, labels, most)
        if size is not None and not self._hindrance:
            self.most = size * labels[0].numel()
        return None, size

    def _prepare(self, features: Tensor, labels: Tensor, most: int) -> None:
        started = time.monotonic()
        try:
            with left_alone(features.device):
                self._program = self._compiled(features, labels, most)
            self.most = self._program.size * labels[0].numel()
            self.remark = f"compiled for {self._program.size} records, in {time.monotonic() - started:.0f} s"
        except (Unplanned, Uncompiled) as reason:
            self.remark = f"not compiled: {reason}"
            if self._mode is True:
                raise RunFailed(
                    f"the gradient engine can't be compiled: {reason}", "set runtime.compile to auto, or to false"
                ) from reason
        if self._begun:
            self._say(self.remark)

    def _compiled(self, features: Tensor, labels: Tensor, most: int) -> Program:
        model, loss = self._model, self._loss
        if self._hindrance:
            raise Uncompiled(self._hindrance)
        if lacking := find_missing(features.device) if self._compiler is find_compiler else None:
            raise Uncompiled(lacking)
        plan = plan_of(model, loss, features, labels, n := size_for(self._expected, most), self.parts.together(n))
        size = size_for(self._expected, min(most, plan.most))
        parts = math.ceil(self._expected / size)
        usual = made_up(features, labels, math.ceil(self._expected / parts))
        if self._mode == "auto":
            lasting = seconds(model, loss, *usual, None) * self._steps * parts
            if lasting < self._worth:
                raise Uncompiled(
                    f"gradients of the run take {lasting:.0f} s, and compiling pays after {self._worth:g} s"
                )
        self._say("compiling the gradient engine, a minute or two")
        self._begun = True
        records = made_up(features, labels, size)
        together = Reserve(max(size, math.ceil(batch_size_bound(self._expected))), self._processes).together(size)
        result = compiled_program(model, loss, *records, plan, self._compiler, together)
        check_equal(model, loss, *records, result)
        if self._mode == "auto":
            rounds = [[seconds(model, loss, *usual, who) for who in (None, result)] for _ in range(3)]
            eager, compiled = (min(times) for times in zip(*rounds, strict=True))
            if compiled > GAIN * eager:
                raise Uncompiled(f"it takes {1000 * compiled:.0f} ms, and {1000 * eager:.0f} ms as it is")
        return result
