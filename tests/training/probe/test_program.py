from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn  # noqa: E402

from dprecipe.faults import RunFailed  # noqa: E402
from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.form import Form  # noqa: E402
from dprecipe.models.modules.adapted import adapt_module  # noqa: E402
from dprecipe.models.modules.draws import drawing_from  # noqa: E402
from dprecipe.models.schema import Cnn, LogisticRegression, Mlp  # noqa: E402
from dprecipe.training.engine.clipped_sum import ClippedSum, clipped_sum, per_record_gradients  # noqa: E402
from dprecipe.training.engine.clipping import Clipping, layer_numbers  # noqa: E402
from dprecipe.training.probe.program import examine_module, require_passed  # noqa: E402
from dprecipe.training.probe.sums import clipping_tests  # noqa: E402
from dprecipe.training.program.losses import cross_entropy  # noqa: E402
from tests.sweeps import sweep  # noqa: E402
from tests.training.probe.changed_gradients import ChangedGradients  # noqa: E402

ALL = [
    "output",
    "loss_per_record",
    "records_independent",
    "losses_independent",
    "per_record_gradients",
    "gradients_independent",
    "clipped_sum",
    "clipped_sum_edges",
    "larger_batches",
    "buffers_unmoved",
]


class SubtractMean(nn.Module):
    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x - self.weight * x.mean(0, keepdim=True)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x


class Remembering(nn.Module):
    """A buffer that is replaced, and not written to in place, as far as `torch.func` can see."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.copy_(x.detach().mean(0))
        return x


class Sorting(nn.Module):
    """Looks at the order of the records only: no arithmetic passes from one to another."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x[:, :1] >= x[:, :1].nan_to_num().max()).float()


class Raising(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not bool(torch.isfinite(x).all()):
            raise ValueError("a record is not finite")
        return x


class Decaying(nn.Module):
    """Moves its own weight while it computes, as `nn.Embedding` with `max_norm` does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self._parameters["weight"].data.mul_(0.999)  # type: ignore[union-attr]
        return x


class Limited(nn.Module):
    """Experts that take 16 records and pass the rest by, as mixtures of limited capacity do."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        taken = (torch.arange(len(x), device=x.device) < 16)[:, None]
        return torch.where(taken, self.expert(x), x)


class CentredWhereMany(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True) if len(x) > 8 else x


def centre(gradients: Tensor, x: Tensor) -> Tensor:
    return gradients - gradients.mean(0, keepdim=True) if len(x) > 20 else gradients


def balance(gradients: Tensor, x: Tensor) -> Tensor:
    """Add a little of the batch's mean, as an auxiliary loss brings it, that ordinary records hardly show."""
    return gradients + 1e-4 * x.mean(0, keepdim=True) if len(x) > 6 else gradients


class FilledWithMeans(nn.Module):
    """0 is what is missing."""

    def forward(self, x: Tensor) -> Tensor:
        missing = x == 0
        return torch.where(missing, x.sum(0) / (~missing).sum(0).clamp(min=1), x)


class ManyExperts(nn.Module):
    """32 experts that take 16 records each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(5, 32)

    def forward(self, x: Tensor) -> Tensor:
        chosen = nn.functional.one_hot(self.gate(x).argmax(-1), 32)
        return x * ((chosen.cumsum(0) * chosen).sum(1) <= 16)[:, None]


class FunctionalDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.4, self.training)


class Depth(nn.Module):
    """Stochastic depth: each record, or all of a batch at once, passes its layer by."""

    def __init__(self, drawn: str) -> None:
        super().__init__()
        self.layer, self.drawn = nn.Linear(4, 4), drawn

    def forward(self, x: Tensor) -> Tensor:
        match self.drawn:
            case "by record":
                keep = x.new_empty(len(x), 1).bernoulli_(0.7)
            case "by batch":
                keep = torch.rand(1, device=x.device).round()
            case "by Python":
                keep = torch.tensor(float(random.random() < 0.5))
            case _:
                keep = torch.tensor(float(np.random.rand() < 0.5))
        return x + keep * self.layer(x)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, None])[:, 0]


class Recurring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(1, 4, num_layers=2, dropout=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.T[..., None])[0][-1]


class MixUp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.7 * x + 0.3 * x[torch.randperm(len(x), device=x.device)]


class OwnGenerator(nn.Module):
    """Draws from a stream that is known in advance: a record more moves what all that follow it get."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(x.shape, generator=self.generator).round()


def frozen() -> nn.Module:
    return nn.BatchNorm1d(4).eval().requires_grad_(False)


def with_layer(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), layer, nn.Tanh(), nn.Linear(4, 3))


def failed(module: nn.Module, loss=cross_entropy, gradients=per_record_gradients, summed=clipped_sum) -> set[str]:
    checks = examine_module(module, loss, (5,), 3, gradients, clipping_tests(summed))
    return {check.id for check in checks if not check.passed}


def test_a_weight_that_moves_by_itself_is_noticed() -> None:
    assert "buffers_unmoved" in failed(with_layer(Decaying()))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (LogisticRegression(kind="logistic_regression"), (1, 8, 8)),
        (Mlp(kind="mlp", hidden=(8, 4), activation="relu"), (7,)),
        (Cnn(kind="cnn", preset="tempered-mnist"), (1, 28, 28)),
        pytest.param(Cnn(kind="cnn", preset="tempered-cifar"), (3, 16, 16), marks=pytest.mark.slow),
        (Cnn(kind="cnn", preset="lenet"), (1, 28, 28)),
        pytest.param(Cnn(kind="cnn", preset="lenet-norm"), (1, 28, 28), marks=pytest.mark.slow),
        (Cnn(kind="cnn", preset="scattering"), (27, 7, 7)),
    ],
    ids=["logistic_regression", "mlp", "tempered-mnist", "tempered-cifar", "lenet", "lenet-norm", "scattering"],
)
def test_the_zoo_passes(model, shape: tuple[int, ...]) -> None:
    checks = require_passed(
        examine_module(
            build(model, shape, 4, 0), cross_entropy, shape, 4, per_record_gradients, clipping_tests(clipped_sum)
        ),
        build(model, shape, 4, 0),
    )
    assert [check.id for check in checks] == ALL
    assert all(check.passed and check.measured for check in checks)


@pytest.mark.parametrize(
    "layer", [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Dropout(0.5), nn.Identity()], ids=lambda x: type(x).__name__
)
def test_layers_that_look_at_one_record_pass(layer: nn.Module) -> None:
    assert failed(with_layer(layer)) == set()


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False), frozen()], ids=["batch norm", "no affine", "frozen"]
)
def test_t3_batch_norm_fails_in_each_disguise(layer: nn.Module) -> None:
    assert {"records_independent", "buffers_unmoved"} <= failed(with_layer(layer))


def test_t3_without_statistics_it_still_mixes() -> None:
    assert "records_independent" in failed(with_layer(nn.BatchNorm1d(4, track_running_stats=False)))


@pytest.mark.parametrize("weight", [1.0, 1e-9])
def test_t3_subtracting_the_batch_mean_fails_however_small_its_weight(weight: float) -> None:
    with pytest.raises(RunFailed, match=r"first in layer '1 \(SubtractMean\)'") as caught:
        require_passed(
            examine_module(
                with_layer(SubtractMean(weight)),
                cross_entropy,
                (5,),
                3,
                per_record_gradients,
                clipping_tests(clipped_sum),
            ),
            with_layer(SubtractMean(weight)),
        )
    assert "GroupNorm" in caught.value.remedy


class Divided(nn.Module):
    """Its outputs are not finite."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3] / 0.0


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        (nn.Sequential(nn.Linear(64, 3)), "forward takes any number of records of the shape"),
        (nn.Sequential(nn.Linear(5, 5), Divided()), "keep its numbers finite"),
        (nn.Sequential(nn.Linear(5, 4)), "a row for each record"),
    ],
)
def test_the_remedy_is_about_what_failed(module: nn.Module, remedy: str) -> None:
    with pytest.raises(RunFailed, match="failed the probe") as caught:
        require_passed(examine_module(module, cross_entropy, (5,), 3), module)
    assert remedy in caught.value.remedy


class Blind(nn.Module):
    """Sees of each record only whether it is finite: those of two labels have opposite gradients."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.0 + 0.0 * x


@pytest.mark.parametrize("seed", range(6))
def test_gradients_that_cancel_are_no_difference_of_the_sums(seed: int) -> None:
    """Of two classes: each pair of clipped gradients adds up to rounding, which no order of adding keeps."""
    torch.manual_seed(seed)
    module = nn.Sequential(Blind(), nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
    checks = examine_module(
        module, cross_entropy, (5,), 2, per_record_gradients, clipping_tests(clipped_sum), largest=160
    )
    assert {check.id: check.measured for check in checks if not check.passed} == {}


def test_t3_mixing_that_no_nan_shows() -> None:
    assert "records_independent" in failed(with_layer(Sorting()))


@pytest.mark.parametrize("layer", [Counting(), Remembering()], ids=["replaced", "in place"])
def test_t3_a_buffer_that_moves(layer: nn.Module) -> None:
    assert "buffers_unmoved" in failed(with_layer(layer))


@pytest.mark.parametrize("layer", [Limited(), CentredWhereMany()], ids=["capacity 16", "centred beyond 8"])
def test_t3_mixing_that_only_larger_batches_show(layer: nn.Module) -> None:
    assert failed(with_layer(layer)) >= {"larger_batches"}


@pytest.mark.parametrize(("gradients", "largest"), [(10, 6), (60, 18), (1e9, 24)], ids=["short", "longer", "long"])
def test_a_short_run_spends_little_on_larger_batches(
    monkeypatch: pytest.MonkeyPatch, gradients: float, largest: int
) -> None:
    """A record takes a sixth of a second here: in 1, 3 and 4 seconds no batch of more than 6, 18 and 24 is tried."""
    clock = itertools.count()
    monkeypatch.setattr("dprecipe.training.probe.sizes.read_clock", lambda device: float(next(clock)))
    checks = examine_module(with_layer(nn.Tanh()), cross_entropy, (5,), 3, gradients=gradients, largest=33)
    measured = next(check.measured for check in checks if check.id == "larger_batches")
    tried = measured.removeprefix("outputs in batches of ").split(", the")[0]
    assert max(int(number) for number in re.findall(r"\d+", tried)) <= max(6, largest)
    assert "too slow here: 33" in measured


def test_t3_mixing_of_gradients_that_only_larger_batches_show() -> None:
    assert "larger_batches" in failed(with_layer(ChangedGradients(centre)))


def near_a_kink(away: float, share: float = 0.05) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A module, a synthetic record of the probe that is `away` from a kink of it, and what moves it to the other side.

    With the usual `share` of its weight, the unit's gradient is less than a tenth of the layer's, which is the most
    that a kink may excuse."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 3))
    record = Form.of((5,)).draw(6, torch.Generator().manual_seed(0))[2]
    with torch.no_grad():
        first = module[0]
        module[2].weight[:, 0] *= share
        first.bias[0] = away - float(first.weight[0].double() @ record.double())
        return module, record, 2 * away * first.weight[0] / first.weight[0].square().sum()


@pytest.mark.parametrize("away", [1e-8, 1e-3])
def test_a_gradient_alone_may_differ_by_a_kink_beside_the_record_and_by_nothing_else(away: float) -> None:
    module, record, shift = near_a_kink(away)

    def rounded_otherwise(model, loss, features, labels) -> Tensor:
        alone = len(labels) == 1 and bool((features[0] == record).all())
        return per_record_gradients(model, loss, features - shift if alone else features, labels)

    assert ("gradients_independent" in failed(module, gradients=rounded_otherwise)) is (away > 1e-6)


@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize(("away", "share"), [(1e-8, 0.05), (1e-3, 0.05), (1e-8, 20.0)])
def test_an_engine_may_land_on_the_other_side_of_a_kink_beside_a_record_and_no_further(
    away: float, share: float, rows: int | None
) -> None:
    """Convolutions of a GPU round otherwise for other numbers of records: a maximum can be another's then. Of a
    gradient no more than a tenth is excused by that."""
    module, record, shift = near_a_kink(away, share)

    def moved(features: Tensor) -> Tensor:
        return torch.where((features == record).all(-1, keepdim=True), features - shift, features)

    def gradients(model, loss, features, labels) -> Tensor:
        return per_record_gradients(model, loss, moved(features), labels)

    def summed(model, loss, batch, *more) -> ClippedSum:
        return clipped_sum(model, loss, replace(batch, features=moved(batch.features)), *more)

    checks = examine_module(module, cross_entropy, (5,), 3, gradients, clipping_tests(summed, rows=rows))
    wrong = {check.id for check in checks if not check.passed}
    is_excused = away < 1e-6 and share < 1
    assert wrong == (set() if is_excused else {"per_record_gradients", "clipped_sum"}), checks


def test_t3_mixing_of_gradients_that_only_strange_company_shows() -> None:
    assert "larger_batches" in failed(with_layer(ChangedGradients(balance)))


@pytest.mark.parametrize("layer", [FilledWithMeans(), ManyExperts()], ids=["0 is missing", "32 experts"])
def test_t3_mixing_that_only_zeros_or_copies_show(layer: nn.Module) -> None:
    assert "larger_batches" in failed(nn.Sequential(layer, nn.Linear(5, 3)))


def few(layers: dict[str, nn.Module], *slow: str) -> list[Any]:
    """The layers under their names; some of them in slow tests."""
    return [
        pytest.param(layer, id=name, marks=pytest.mark.slow if name in slow else ()) for name, layer in layers.items()
    ]


RANDOM = {
    "functional dropout": FunctionalDropout(),
    "depth by record": Depth("by record"),
    "depth by batch": Depth("by batch"),
    "depth by Python": Depth("by Python"),
    "depth by numpy": Depth("by numpy"),
    "nn.TransformerEncoderLayer": Attending(),
    "nn.LSTM": Recurring(),
    "nn.AlphaDropout": nn.AlphaDropout(0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("layer", few(RANDOM, "depth by Python", "depth by numpy"))
def test_randomness_that_no_record_decides_is_no_mixing(layer: nn.Module) -> None:
    module, form, single = adapt_module(with_layer(layer).train(), Form.of((5,)))
    checks = examine_module(
        module, cross_entropy, form, 3, per_record_gradients, clipping_tests(clipped_sum), largest=9
    )
    assert [(check.id, check.measured) for check in checks if not check.passed] == []
    assert bool(single) == (getattr(layer, "drawn", "by record") != "by record")
    assert "what layers draw they draw for each record by itself" in checks[0].measured


class Antithetic(nn.Module):
    """Two records share a draw, the one u and the other 1 - u."""

    def forward(self, x: Tensor) -> Tensor:
        half = torch.rand((len(x) + 1) // 2, 1)
        return torch.where(torch.cat([half, 1 - half])[: len(x)] < 0.5, 0.0, x)


class CentringByCoin(nn.Module):
    """The usual idiom of augmentations in forward."""

    def __init__(self, coin: Callable[[], float]) -> None:
        super().__init__()
        self.coin = coin

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.coin() < 0.3 else x


SHARED = {
    "depth by batch": Depth("by batch"),
    "depth by Python": Depth("by Python"),
    "antithetic": Antithetic(),
    "centred by numpy's coin": CentringByCoin(lambda: np.random.rand()),
    "centred by Python's coin": CentringByCoin(lambda: random.random()),
    "centred by torch's coin": CentringByCoin(lambda: torch.rand(()).item()),
}


@pytest.mark.parametrize("layer", few(SHARED, "depth by Python", "centred by numpy's coin", "centred by Python's coin"))
def test_draws_that_records_share_are_made_each_records_own(layer: nn.Module) -> None:
    assert "output" in failed(with_layer(layer))  # as it is
    module, form, single = adapt_module(with_layer(layer).train(), Form.of((5,)))
    assert single
    checks = examine_module(
        module, cross_entropy, form, 3, per_record_gradients, clipping_tests(clipped_sum), largest=9
    )
    assert [(check.id, check.measured) for check in checks if not check.passed] == []
    records = torch.randn(6, 5)
    before = _drawing(module, records)
    records[0] = torch.nan
    assert torch.equal(_drawing(module, records)[1:], before[1:])


def _drawing(module: nn.Module, records: Tensor) -> Tensor:
    with drawing_from(5, records.device), torch.no_grad():
        return module(records)


class SeldomDropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.new_empty(len(x), 1).bernoulli_(0.99)


def test_a_layer_that_seldom_draws_otherwise_is_not_accused() -> None:
    assert failed(with_layer(SeldomDropped())) == set()


@pytest.mark.parametrize("layer", [MixUp(), nn.RReLU()], ids=["partners", "as many draws as values are negative"])
def test_t3_randomness_that_records_decide_fails(layer: nn.Module) -> None:
    assert "records_independent" in failed(with_layer(layer))


def test_a_generator_of_the_modules_own_is_refused_with_what_to_change() -> None:
    with pytest.raises(RunFailed, match=r"the second time, first in layer '1 \(OwnGenerator\)'") as caught:
        require_passed(
            examine_module(
                with_layer(OwnGenerator()), cross_entropy, (5,), 3, per_record_gradients, clipping_tests(clipped_sum)
            ),
            with_layer(OwnGenerator()),
        )
    assert "torch's global generator" in caught.value.remedy


def test_a_buffer_that_moves_is_told_by_its_layer() -> None:
    with pytest.raises(RunFailed, match=r"moved: 'calls' of layer '1' \(Counting\)") as caught:
        require_passed(
            examine_module(
                with_layer(Counting()), cross_entropy, (5,), 3, per_record_gradients, clipping_tests(clipped_sum)
            ),
            with_layer(Counting()),
        )
    assert "keep nothing of a record" in caught.value.remedy


def test_t11_a_layer_that_stops_at_a_non_finite_record() -> None:
    assert "records_independent" in failed(with_layer(Raising()))


def test_t17_a_loss_that_is_added_up_is_refused() -> None:
    for reduced in (lambda o, y: cross_entropy(o, y).mean(), lambda o, y: cross_entropy(o, y).sum()[None]):
        assert "loss_per_record" in failed(with_layer(nn.Identity()), reduced)


def test_t17_a_loss_with_a_term_of_the_batch_is_refused() -> None:
    def regularised(outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels) + 0.01 * outputs.pow(2).mean()

    assert "losses_independent" in failed(with_layer(nn.Identity()), regularised)


def test_t17_an_engine_that_leaves_a_parameter_unclipped_or_out() -> None:
    def without_last(model, loss, features, labels) -> Tensor:
        grads = per_record_gradients(model, loss, features, labels)
        return torch.cat([grads[:, :-3], torch.zeros_like(grads[:, -3:])], dim=1)

    def unclipped(model, loss, batch, clipping, physical_batch) -> ClippedSum:
        if len(batch.labels) == 0:
            return clipped_sum(model, loss, batch, clipping, physical_batch)
        return ClippedSum(per_record_gradients(model, loss, batch.features, batch.labels).sum(0), 1.0)

    assert failed(with_layer(nn.Identity()), gradients=without_last) == {"per_record_gradients"}
    assert failed(with_layer(nn.Identity()), summed=unclipped) == {"clipped_sum", "clipped_sum_edges"}


LAYERS = layer_numbers(with_layer(nn.Identity()))
CLIPPINGS = {
    "flat": Clipping.flat(0.1),
    "l1": Clipping.flat(0.1, "l1"),
    "per layer": Clipping((0.1, 0.3), LAYERS),
    "per layer, l1": Clipping((0.1, 0.3), LAYERS, norm="l1"),
    "automatic": Clipping((0.1,), stability=0.01),
    "adaptive": Clipping((0.1,), counted=4.0),
}


@pytest.mark.parametrize("rows", sweep([None, 1, 4]))
@pytest.mark.parametrize("clipping", CLIPPINGS.values(), ids=CLIPPINGS.keys())
def test_every_clipping_of_records_and_of_units_of_several_rows_passes(clipping: Clipping, rows: int | None) -> None:
    checks = examine_module(
        with_layer(nn.Identity()), cross_entropy, (5,), 3, None, clipping_tests(clipped_sum, clipping, rows)
    )
    assert [(check.id, check.measured) for check in checks if not check.passed] == []


@pytest.mark.slow
def test_a_layer_of_millions_of_weights_passes() -> None:
    wide = nn.Sequential(nn.Linear(5, 2400), nn.Tanh(), nn.Linear(2400, 2400), nn.Tanh(), nn.Linear(2400, 3))
    checks = examine_module(wide, cross_entropy, (5,), 3, None, clipping_tests(clipped_sum, CLIPPINGS["flat"], None))
    assert [(check.id, check.measured) for check in checks if not check.passed] == []


@pytest.mark.parametrize(
    ("planned", "done", "rows", "wrong"),
    [
        ("per layer", lambda c: Clipping.flat(c.thresholds[0]), None, {"clipped_sum", "clipped_sum_edges"}),
        ("l1", lambda c: replace(c, norm="l2"), None, {"clipped_sum", "clipped_sum_edges"}),
        ("automatic", lambda c: replace(c, stability=None), None, {"clipped_sum"}),
        ("automatic", lambda c: replace(c, stability=0.0), 4, {"clipped_sum"}),
        ("adaptive", lambda c: replace(c, thresholds=(c.thresholds[0] * 1e3,)), None, {"clipped_sum"}),
        ("flat", lambda c: replace(c, thresholds=(c.thresholds[0] * 1.001,)), 4, {"clipped_sum"}),
    ],
    ids=["one norm for all layers", "another norm", "cut and not scaled", "no stability", "count", "threshold"],
)
def test_an_engine_that_clips_in_another_way_than_the_plan(planned: str, done, rows, wrong: set[str]) -> None:
    def otherwise(model, loss, batch, clipping, physical_batch) -> ClippedSum:
        return clipped_sum(model, loss, batch, done(clipping), physical_batch)

    tests = clipping_tests(otherwise, CLIPPINGS[planned], rows)
    checks = examine_module(with_layer(nn.Identity()), cross_entropy, (5,), 3, None, tests)
    assert wrong <= {check.id for check in checks if not check.passed}


def test_an_engine_that_says_a_smaller_bound_than_its_clipping() -> None:
    def flattering(model, loss, batch, clipping, physical_batch) -> ClippedSum:
        result = clipped_sum(model, loss, batch, clipping, physical_batch)
        return replace(result, bound=0.99 * result.bound)

    assert failed(with_layer(nn.Identity()), summed=flattering) == {"clipped_sum_edges"}


def test_an_engine_that_counts_rows_that_fill_up() -> None:
    def counting_all(model, loss, batch, clipping, physical_batch) -> ClippedSum:
        filled = type(batch)(batch.features, batch.labels.clamp(min=0))
        return clipped_sum(model, loss, filled, clipping, physical_batch)

    tests = clipping_tests(counting_all, Clipping.flat(1.0), 4)
    checks = examine_module(with_layer(nn.Identity()), cross_entropy, (5,), 3, None, tests)
    assert "clipped_sum" in {check.id for check in checks if not check.passed}


def test_an_engine_that_answers_nan_fails() -> None:
    def no_gradients(model, loss, features, labels) -> Tensor:
        grads = per_record_gradients(model, loss, features, labels).clone()
        grads[:, 0] = torch.nan
        return grads

    def no_sum(model, loss, batch, clipping, physical_batch) -> ClippedSum:
        value = clipped_sum(model, loss, batch, clipping, physical_batch).value
        return ClippedSum(value * torch.nan, 1.0)

    result = failed(with_layer(nn.Identity()), gradients=no_gradients, summed=no_sum)
    assert {"per_record_gradients", "gradients_independent", "clipped_sum", "clipped_sum_edges"} <= result


def test_a_wrong_gradient_of_a_small_parameter_is_not_hidden_by_a_large_one() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    with torch.no_grad():
        module[2].weight *= 1e-3  # gradients of the first layer become a thousandth

    def halved(model, loss, features, labels) -> Tensor:
        grads = per_record_gradients(model, loss, features, labels).clone()
        grads[:, 20:24] *= 1.01
        return grads

    checks = examine_module(module, cross_entropy, (5,), 3, halved)
    wrong = [check for check in checks if not check.passed]
    assert [check.id for check in wrong] == ["per_record_gradients"]
    assert "'0.bias'" in wrong[0].measured


def test_t10_an_engine_that_makes_up_a_record_for_an_empty_batch() -> None:
    def fabricating(model, loss, batch, clipping, physical_batch) -> ClippedSum:
        result = clipped_sum(model, loss, batch, clipping, physical_batch)
        return result if len(batch.labels) else ClippedSum(result.value + 1e-3, 1.0)

    assert failed(with_layer(nn.Identity()), summed=fabricating) == {"clipped_sum_edges"}


def test_t11_an_engine_that_lets_a_non_finite_record_through() -> None:
    def naive(model, loss, batch, clipping, physical_batch) -> ClippedSum:
        if len(batch.labels) == 0 or batch.units is not None:
            return clipped_sum(model, loss, batch, clipping, physical_batch)
        grads = per_record_gradients(model, loss, batch.features, batch.labels)
        factors = (clipping.thresholds[0] / grads.norm(dim=1)).clamp(max=1.0)
        return ClippedSum(factors @ grads, 1.0)

    assert failed(with_layer(nn.Identity()), summed=naive) == {"clipped_sum_edges"}


def test_t27_an_engine_that_clips_records_where_units_are_protected() -> None:
    def by_record(model, loss, batch, clipping, physical_batch) -> ClippedSum:
        return clipped_sum(model, loss, type(batch)(batch.features, batch.labels), clipping, physical_batch)

    assert failed(with_layer(nn.Identity()), summed=by_record) == {"clipped_sum_edges"}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(6, 3), "RuntimeError"),
        (nn.Linear(5, 4), r"shape \[6, 4\], expected \[6, 3\]"),
        (nn.LSTM(5, 3), "returns a tuple"),
    ],
    ids=["other features", "other classes", "no tensor"],
)
def test_a_module_that_does_not_fit_the_data(module: nn.Module, message: str) -> None:
    with pytest.raises(RunFailed, match=message):
        require_passed(
            examine_module(module, cross_entropy, (5,), 3, per_record_gradients, clipping_tests(clipped_sum)), module
        )


def test_an_output_that_is_not_finite() -> None:
    module = nn.Linear(5, 3)
    with torch.no_grad():
        module.bias.fill_(torch.inf)
    assert "output" in failed(module)


def test_the_probe_moves_nothing() -> None:
    module = with_layer(nn.BatchNorm1d(4)).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    examine_module(module, cross_entropy, (5,), 3, per_record_gradients, clipping_tests(clipped_sum))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


def test_checks_are_written_to_json() -> None:
    first = examine_module(nn.Linear(5, 3), cross_entropy, (5,), 3)[0]
    assert first.to_json() == {
        "id": "output",
        "text": "finite outputs, one row for each record",
        "passed": True,
        "measured": "shape [6, 3]",
    }
