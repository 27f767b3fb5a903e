"""Compiled passes: equal to the eager engine whatever the batch, never used where they are not, and honest about why.

Most tests run the traced graph as it is, which takes no compiler; the slow ones compile it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from dprecipe.faults import RunFailed
from dprecipe.models.decoder_config import check_decoder_config
from dprecipe.models.zoo.causal_lm import causal_model
from dprecipe.training.engine import compiled, shares
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping, layer_numbers
from dprecipe.training.engine.compiled import Mode, Passes
from dprecipe.training.engine.compilers import find_compiler
from dprecipe.training.engine.full_precision import Reduced
from dprecipe.training.engine.sizes import STEP, size_for
from dprecipe.training.engine.synthetic import synthetic_records
from dprecipe.training.engine.unit_rows import MeanLoss, RowwiseModel
from dprecipe.training.program.losses import NextTokenLoss, cross_entropy
from tests.decoders import DECODERS, LENGTH, VOCABULARY
from tests.sweeps import sweep

CLASSES = 5


def as_it_is(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    return graph


def passes_of(
    model: nn.Module, mode: Mode = True, expected_batch: float = 16, loss: Any = cross_entropy, **given: Any
) -> Passes:
    return Passes(model, loss, mode, expected_batch, 1000, **{"compiler": as_it_is, "say": lambda text: None} | given)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.layer(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1])))
        answer: Tensor = self.head(hidden.mean(1))
        return answer


class Recurrent(nn.Module):
    """A layer that the engine differentiates by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(features)[0][:, -1])
        return answer


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutional": (convolutional, (1, 8, 8)),
    "attention": (Attention, (6,)),
    "recurrent": (Recurrent, (4, 3)),
    "perceptron": (lambda: nn.Sequential(nn.Linear(128, 130), nn.ReLU(), nn.Linear(130, CLASSES)), (128,)),
}


def make_case(name: str, count: int = 21) -> tuple[nn.Module, BatchPart]:
    torch.manual_seed(1)
    build, shape = MODELS[name]
    model = build()
    features = torch.randint(11, (count, *shape)) if name == "attention" else torch.randn(count, *shape)
    return model, BatchPart(features, torch.randint(CLASSES, (count,)))


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", sweep(list(MODELS), [i for i, name in enumerate(MODELS) if name != "recurrent"]))
def test_sums_are_those_of_the_eager_engine_whatever_the_size_of_the_batch(name: str) -> None:
    model, batch = make_case(name, 40)
    passes = passes_of(model)
    for count in (21, 1, 16, 13, 24, 40):
        whole_batch = BatchPart(batch.features[:count], batch.labels[:count])
        for clipping in (Clipping.flat(0.3), Clipping((0.2,) * (max(layer_numbers(model)) + 1), layer_numbers(model))):
            expected = clipped_sum(model, cross_entropy, whole_batch, clipping, 512).value
            assert (
                distance(clipped_sum(model, cross_entropy, whole_batch, clipping, 512, passes).value, expected) < 1e-5
            )
    assert passes.remark.startswith("compiled for 24 records")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_decoders_are_compiled_with_the_sums_of_the_eager_engine(family: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(1)
    model = causal_model(check_decoder_config(DECODERS[family]), LENGTH)
    tokens = torch.randint(VOCABULARY, (16, 1, LENGTH)).expand(16, 2, LENGTH).float()
    batch, loss = BatchPart(tokens, torch.full((16,), LENGTH - 1)), NextTokenLoss()
    passes = passes_of(model, loss=loss)
    expected = clipped_sum(model, loss, batch, Clipping.flat(0.3), 512).value
    for _ in range(2):
        assert distance(clipped_sum(model, loss, batch, Clipping.flat(0.3), 512, passes).value, expected) < 1e-5
    assert passes.remark.startswith("compiled for"), passes.remark


def test_one_program_takes_all_records_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first batch on, which is cut before there is a program."""
    model, batch = make_case("convolutional", 60)
    calls: list[int] = []

    def counted(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
        def compute(*given: Tensor) -> Sequence[Tensor]:
            calls.append(len(given[-1]))
            answers: Sequence[Tensor] = graph(*given)
            return answers

        return compute

    for first in (3, 60):
        passes = passes_of(model, compiler=counted)
        for count in (first, *range(1, 61)):
            with monkeypatch.context() as patched:
                if passes.remark:
                    patched.setattr(shares, "find_terms", lambda *given: pytest.fail("an eager pass"))
                whole_batch = BatchPart(batch.features[:count], batch.labels[:count])
                calls.clear()
                clipped_sum(model, cross_entropy, whole_batch, Clipping.flat(1.0), 512, passes)
            parts = math.ceil(count / 24)
            assert calls[-parts:] == [24] * parts
            assert count == first or len(calls) == parts


class InParts:
    """A batch that is not in memory as a whole."""

    def __init__(self, batch: BatchPart) -> None:
        self._batch, self.gradients = batch, batch.gradients

    def parts(self, size: int) -> Iterator[BatchPart]:
        return self._batch.parts(size)


def test_norms_and_sums_are_programs_too_where_layers_keep_no_more_than_vectors() -> None:
    model, batch = make_case("perceptron")
    ran = []

    def counted(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
        def compute(*given: Tensor) -> Sequence[Tensor]:
            ran.append(graph)
            answers: Sequence[Tensor] = graph(*given)
            return answers

        return compute

    passes = passes_of(model, compiler=counted)
    passes.find_source(batch.features, batch.labels, 512)
    of_each_layer = Clipping((0.2, 0.2), layer_numbers(model))
    for whole_batch, clipping, programs in (
        (batch, Clipping.flat(0.3), 3),
        (batch, Clipping((0.3,), stability=0.01), 3),
        (batch, Clipping((0.3,), counted=20.0), 3),
        (batch, of_each_layer, 1),
        # Too many for sums in single precision, but for 6 records that are left over: 132 passes, and norms of each.
        (BatchPart(batch.features.repeat(150, 1), batch.labels.repeat(150)), Clipping.flat(0.3), 265),
        (InParts(BatchPart(batch.features.repeat(9, 1), batch.labels.repeat(9))), Clipping.flat(0.3), 24),
    ):
        ran.clear()
        result = clipped_sum(model, cross_entropy, whole_batch, clipping, 512, passes).value
        assert len(ran) == programs
        assert distance(result, clipped_sum(model, cross_entropy, whole_batch, clipping, 24).value) < 1e-5


def test_products_of_blocks_are_added_up_in_double_precision() -> None:
    """In single precision a compiler would join them: more records would be added up in it than is reserved."""
    model, batch = make_case("perceptron", 300)
    graphs: list[GraphModule] = []

    def kept(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
        graphs.append(graph)
        return graph

    passes = passes_of(model, expected_batch=280, compiler=kept)
    passes.find_source(batch.features, batch.labels, 512)
    products = [node for node in graphs[2].graph.nodes if node.target is torch.ops.aten.mm.default]
    single = [node for node in products if node.meta["val"].dtype == torch.float32]
    assert len(single) > 1
    assert all(user.target is torch.ops.aten._to_copy.default for node in single for user in node.users)


def of(number: int, factor: float) -> compiled.Compiler:
    """Of the programs of a size, which are made one after the other, one is wrong: the pass, the norms or the sums."""
    made_up_to = iter(range(100))

    def compiler(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
        wrong = next(made_up_to) == number
        return lambda *given: [answer * factor if wrong else answer for answer in graph(*given)]

    return compiler


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("number", "factor", "what"), [(1, 0.99999, "norms"), (1, 1.01, "norms"), (2, 1.0001, "sums")])
def test_norms_and_sums_that_err_by_little_are_noticed(number: int, factor: float, what: str, half: bool) -> None:
    """A norm that is too small would let a record through; half precision of the pass is no excuse."""
    model, batch = make_case("perceptron")
    passes = passes_of(Reduced(model) if half else model, "auto", compiler=of(number, factor), min_seconds=0.0)
    passes.find_source(batch.features, batch.labels, 512)
    assert passes.remark == f"not compiled: the compiled {what} differ from those in double precision"


def test_weights_and_thresholds_may_move_and_nothing_is_compiled_again() -> None:
    model, batch = make_case("convolutional")
    graphs = []

    def counted(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
        graphs.append(graph)
        return graph

    passes = passes_of(model, compiler=counted)
    for clip in (0.1, 0.2):
        clipping = Clipping.flat(clip)
        expected = clipped_sum(model, cross_entropy, batch, clipping, 512).value
        assert distance(clipped_sum(model, cross_entropy, batch, clipping, 512, passes).value, expected) < 1e-5
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        model[0].bias = nn.Parameter(torch.randn(4))  # another tensor by the same name
    assert len(graphs) == 1


class Normalised(nn.Module):
    """Has no finite output for a record of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        answer: Tensor = self.layer(features / features.norm(dim=1, keepdim=True))
        return answer


def test_what_fills_a_program_up_adds_nothing_and_is_not_counted() -> None:
    model = Normalised()
    whole_batch = BatchPart(torch.randn(9, 4), torch.randint(CLASSES, (9,)))
    clipping = Clipping((0.5,), counted=20.0)
    passes = passes_of(model)
    result = clipped_sum(model, cross_entropy, whole_batch, clipping, 512, passes).value
    expected = clipped_sum(model, cross_entropy, whole_batch, clipping, 512).value
    assert passes.remark.startswith("compiled for 24 records")
    assert distance(result, expected) < 1e-6
    assert result[-1] == expected[-1]


def test_a_record_without_a_finite_gradient_adds_nothing() -> None:
    model, batch = make_case("convolutional")
    batch.features[3] = torch.inf
    others = [n for n in range(len(batch.labels)) if n != 3]
    expected = clipped_sum(
        model, cross_entropy, BatchPart(batch.features[others], batch.labels[others]), Clipping.flat(0.3), 512
    ).value
    result = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 512, passes_of(model)).value
    assert distance(result, expected) < 1e-5


def test_units_of_several_rows() -> None:
    model, _ = make_case("convolutional")
    several, loss = RowwiseModel(model), MeanLoss(cross_entropy)
    batch = BatchPart(torch.randn(20, 3, 1, 8, 8), torch.randint(CLASSES, (20, 3)))
    passes = passes_of(several, loss=loss)
    expected = clipped_sum(several, loss, batch, Clipping.flat(0.3), 512).value
    assert distance(clipped_sum(several, loss, batch, Clipping.flat(0.3), 512, passes).value, expected) < 1e-5
    assert passes.remark.startswith("compiled for 24 records")


def spoilt(change: Callable[[list[Tensor]], list[Tensor]]) -> compiled.Compiler:
    def compiler(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
        return lambda *given: change([answer.clone() for answer in graph(*given)])

    return compiler


def larger(answers: list[Tensor]) -> list[Tensor]:
    return [answer * 1.001 if answer.is_floating_point() else answer for answer in answers]


def mixed(answers: list[Tensor]) -> list[Tensor]:
    """Each record gets a little of its neighbour's."""
    return [answer + 1e-6 * answer.roll(1, 0) if answer.is_floating_point() else answer for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize("change", [larger, mixed])
def test_a_compiler_that_errs_is_noticed(change: Callable[[list[Tensor]], list[Tensor]]) -> None:
    model, batch = make_case("convolutional")
    passes = passes_of(model, "auto", compiler=spoilt(change), min_seconds=0.0)
    result = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 512, passes).value
    assert "differs from the eager one" in passes.remark
    assert torch.equal(result, clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 512).value)
    with pytest.raises(RunFailed, match="differs from the eager one"):
        clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 512, passes_of(model, compiler=spoilt(change)))


class Kinked(nn.Module):
    """All units of one of the records that programs are tried on lie at the kink: a rounding moves them over."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 30, bias=False), nn.Linear(30, CLASSES)
        record = synthetic_records(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64), 552)[0][:1]
        self.register_buffer("kinks", self.layer(record).detach())

    def forward(self, features: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.relu(self.layer(features) - self.kinks))
        return answer


def rounded(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """What computes the same, rounded otherwise."""
    return lambda *given: graph(*[x * (1 + 2e-7) if x.is_floating_point() and x.dim() == 2 else x for x in given])


def test_what_a_rounding_does_at_a_kink_is_no_error() -> None:
    torch.manual_seed(0)
    kinked, smooth = Kinked(), nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, CLASSES))
    whole_batch = BatchPart(torch.randn(20, 4), torch.randint(CLASSES, (20,)))
    for model in (kinked, smooth):
        passes = passes_of(model, expected_batch=500, compiler=rounded)
        passes.find_source(whole_batch.features, whole_batch.labels, 552)
        assert passes.remark.startswith("compiled for 552 records")
    passes = passes_of(
        kinked, "auto", compiler=spoilt(lambda answers: [2 * answer for answer in answers]), min_seconds=0.0
    )
    clipped_sum(kinked, cross_entropy, whole_batch, Clipping.flat(0.3), 512, passes)
    assert passes.remark.startswith("not compiled: the compiled ")


def test_one_record_more_moves_no_other_over_a_kink() -> None:
    """All but it lie at the kink, so that a pass that rounds otherwise would move all of their gradients."""
    torch.manual_seed(0)
    model, record = Kinked(), synthetic_records(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64), 552)[0][:1]
    passes = passes_of(model, expected_batch=500, compiler=rounded)
    features, labels = record.expand(600, 4).clone(), torch.zeros(600, dtype=torch.int64)
    features[-1] = torch.randn(4)
    clipping = Clipping.flat(0.1)
    for count in (2, 3, 24, 276, 277, 552, 553, 600):  # parts end and programs are half full about there
        with_it = BatchPart(features[-count:], labels[-count:])
        without = BatchPart(features[-count:-1], labels[-count:-1])
        sums = [
            clipped_sum(model, cross_entropy, whole_batch, clipping, 512, passes) for whole_batch in (with_it, without)
        ]
        assert float((sums[0].value - sums[1].value).norm()) <= float(sums[0].bound)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.constant = nn.Linear(4, CLASSES), torch.ones(CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        answer: Tensor = self.layer(features) * self.constant
        return answer


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, CLASSES)), "it draws random numbers"),
        (Reads(), "neither a parameter nor a buffer"),
    ],
)
def test_reasons_are_told(model: nn.Module, reason: str) -> None:
    batch = BatchPart(torch.randn(20, 4), torch.randint(CLASSES, (20,)))
    passes = passes_of(model, "auto", min_seconds=0.0)
    clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 512, passes)
    assert passes.remark.startswith("not compiled: ")
    assert reason in passes.remark


def test_short_runs_and_machines_without_a_compiler_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_case("convolutional")
    passes = passes_of(model, "auto")
    assert passes.find_source(batch.features, batch.labels, 512) is None
    assert "compiling pays off after 600 s" in passes.remark
    monkeypatch.setattr("shutil.which", lambda name: None)
    passes = passes_of(model, "auto", compiler=find_compiler, min_seconds=0.0)
    assert passes.find_source(batch.features, batch.labels, 512) is None
    assert "no C++ compiler" in passes.remark


def test_nothing_is_compiled_where_it_is_not_wanted() -> None:
    model, batch = make_case("convolutional")
    passes = passes_of(model, False, min_seconds=0.0)
    assert passes.find_source(batch.features, batch.labels, 512) is None
    assert passes.remark == ""


def test_generators_are_left_as_they_were() -> None:
    model, batch = make_case("convolutional")
    before = torch.random.get_rng_state()
    passes_of(model).find_source(batch.features, batch.labels, 512)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("expected", [3.0, 64.0, 256.0, 1000.0, 4096.0])
def test_sizes_waste_little(expected: float) -> None:
    size = size_for(expected, 512)
    assert size <= 512
    parts = math.ceil((expected + 2 * math.sqrt(expected)) / 512)
    assert parts * size <= expected + 2 * math.sqrt(expected) + parts * STEP


def test_what_can_t_be_compiled_is_said() -> None:
    model, batch = make_case("convolutional")
    for mode in ("auto", True):
        passes = Passes(
            model, cross_entropy, mode, 16.0, 10, say=lambda text: None, min_seconds=0.0, hindrance="units differ"
        )
        if mode is True:
            with pytest.raises(RunFailed, match="can't be compiled: units differ"):
                passes.find_source(batch.features, batch.labels, 512)
        else:
            assert passes.find_source(batch.features, batch.labels, 512) is None
            assert passes.remark == "not compiled: units differ"


def test_half_precision_is_that_of_a_loop_in_half_precision() -> None:
    for name in ("convolutional", "attention"):
        model, batch = make_case(name, 12)
        reduced = Reduced(model)
        assert all(parameter.dtype == torch.float32 for parameter in reduced.parameters())
        result = clipped_sum(reduced, cross_entropy, batch, Clipping.flat(0.1), 512).value
        expected = torch.zeros_like(result)
        for n in range(12):
            one = cross_entropy(reduced(batch.features[n : n + 1]), batch.labels[n : n + 1])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(one.sum(), list(reduced.parameters()))])
            expected += gradient.double() * min(1.0, 0.1 / float(gradient.double().norm()))
        single = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.1), 512).value
        assert distance(result, expected) < 0.02, name
        assert 0 < distance(result, single) < 0.2, name  # it is another precision, and not another gradient


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "half"), [("convolutional", False), ("attention", False), ("perceptron", False), ("perceptron", True)]
)
def test_compiled(name: str, half: bool) -> None:
    model, batch = make_case(name)
    model = Reduced(model) if half else model
    passes = passes_of(model, compiler=find_compiler)
    expected = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 512).value
    result = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 512, passes).value
    assert passes.remark.startswith("compiled for 24 records")
    assert distance(result, expected) < (0.02 if half else 1e-5)
