"""Modules that mix records only where no usual synthetic record is: at large values, or at the ends of a range."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn  # noqa: E402

from dprecipe.models.form import Form  # noqa: E402
from dprecipe.models.modules.adapted import adapt_module  # noqa: E402
from dprecipe.training.engine.clipped_sum import clipped_sum, per_record_gradients  # noqa: E402
from dprecipe.training.probe.program import examine_module, list_extremes  # noqa: E402
from dprecipe.training.probe.sums import clipping_tests  # noqa: E402
from dprecipe.training.program.losses import cross_entropy  # noqa: E402
from tests.training.probe.changed_gradients import ChangedGradients  # noqa: E402

TOKENS, LENGTH = 40, 6
Mixing = Callable[[Tensor], Tensor]


def failed(module: nn.Module, form: Form | None = None) -> set[str]:
    """The checks that fail, and where they say it was."""
    form = Form.of((5,)) if form is None else form
    module, form, _ = adapt_module(module, form)
    checks = examine_module(module, cross_entropy, form, 3, per_record_gradients, clipping_tests(clipped_sum))
    return {f"{check.id}: {check.measured}" for check in checks if not check.passed}


class Beyond(nn.Module):
    """Mixes where a number is beyond a limit."""

    def __init__(self, mixed: Mixing, limit: float) -> None:
        super().__init__()
        self.mixed, self.limit = mixed, limit
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.where(x.abs() > self.limit, self.mixed(x), x)
        return self.last(torch.tanh(self.first(x)))


MIXED: dict[str, Mixing] = {
    "mean": lambda x: x - x.mean(0),
    "largest": lambda x: x.amax(0).expand_as(x),
    "neighbour": lambda x: x.roll(1, 0),
    "order": lambda x: x.sort(0).values,
    "normalised": lambda x: x / x.std(0, correction=0),
}


@pytest.mark.parametrize("limit", [12.0, 15.0, 100.0])
@pytest.mark.parametrize("mixed", MIXED)
def test_a_module_that_mixes_at_large_values_alone_is_refused(mixed: str, limit: float) -> None:
    torch.manual_seed(0)
    result = failed(Beyond(MIXED[mixed], limit))
    assert any(text.startswith("records_independent") and "times as large" in text for text in result)


def centre(gradients: Tensor, x: Tensor) -> Tensor:
    return torch.where(x.abs() > 20.0, gradients - gradients.mean(0), gradients)


def test_one_that_mixes_gradients_there_is_refused() -> None:
    torch.manual_seed(0)
    result = failed(nn.Sequential(nn.Linear(5, 4), ChangedGradients(centre), nn.Linear(4, 3)))
    assert any(text.startswith("gradients_independent") and "times as large" in text for text in result)
    assert not any(text.startswith("records_independent") for text in result)


class AtTheEnds(nn.Module):
    """Mixes records that are nothing but zeros, or nothing but one token."""

    def __init__(self, tokens: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, 5) if tokens else None
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        constant = (x == x[:, :1]).all(1)[:, None]
        hidden = x if self.table is None else self.table(x).mean(1)
        return self.last(torch.where(constant, hidden.mean(0), hidden))


@pytest.mark.parametrize("tokens", [False, True])
def test_one_that_mixes_at_the_ends_of_a_range_is_refused(tokens: bool) -> None:
    torch.manual_seed(0)
    form = Form((LENGTH,), (TOKENS,)) if tokens else None
    result = failed(AtTheEnds(tokens), form)
    assert any(text.startswith("records_independent") and "at the ends of their range" in text for text in result)


class Padded(nn.Module):
    """Attention that is NaN for a record of padding alone, and for no other."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return self.last(self.attention(x, x, x, key_padding_mask=ids == 0)[0].mean(1))


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x)


def overflowing() -> nn.Module:
    """Infinite at large values, each record by itself."""
    return nn.Sequential(nn.Linear(5, 4), Exponential(), nn.Linear(4, 3))


class Sharp(nn.Module):
    """Attention over places whose scores are huge at large values: rounding decides there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(1, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x[..., None])
        scores = torch.softmax(hidden @ hidden.transpose(1, 2), -1)
        return self.last(nn.functional.relu(scores @ hidden).amax(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "form"),
    [(Padded, Form((LENGTH,), (TOKENS,))), (overflowing, None), (Sharp, None)],
    ids=["padding alone", "overflow", "sharp"],
)
@pytest.mark.parametrize("seed", range(4))
def test_records_that_stand_alone_are_not_accused(build: Callable[[], nn.Module], form: Form | None, seed: int) -> None:
    torch.manual_seed(seed)
    assert failed(build(), form) == set()


def test_the_ends_of_tokens_are_padding_and_the_last_one() -> None:
    features = Form((2, 3), (TOKENS, 0), ("ids", "mask")).draw(2, torch.Generator())
    [ends] = list_extremes(Form((2, 3), (TOKENS, 0), ("ids", "mask")), features, features)
    assert ends.features[:, :, 0].tolist() == [[TOKENS - 1, 1], [0, 0]]
    [ends] = list_extremes(Form((3,), (TOKENS,)), features[:, 0], features[:, 0])
    assert ends.features[:, 0].tolist() == [TOKENS - 1, 0]
    *_, ends = list_extremes(Form((3,)), features[:, 0], features[:, 0])
    assert ends.features[:, 0].tolist() == [1, 0]


class Cutting(nn.Module):
    """Cuts texts to the longest of a batch, and has nothing to attend to in padding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(TOKENS, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        kept = int((ids != 0).sum(1).max().item())
        return self.last(self.table(ids[:, :kept]).amax(1))


def test_a_module_that_raises_on_padding_alone_is_tried_elsewhere_and_says_so() -> None:
    torch.manual_seed(0)
    module, form, single = adapt_module(Cutting(), Form((LENGTH,), (TOKENS,)))
    assert single
    checks = examine_module(module, cross_entropy, form, 3, per_record_gradients, clipping_tests(clipped_sum))
    assert all(check.passed for check in checks)
    assert checks[2].measured.endswith("not tried where records are at the ends of their range: the module raises")
