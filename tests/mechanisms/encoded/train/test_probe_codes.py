"""The probe of sums of codes passes on the encoder, and on nothing that leaves the box or mixes records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn  # noqa: E402

from dprecipe.mechanisms.encoded.codebook import Codebook, draw_gaussian_codebook  # noqa: E402
from dprecipe.mechanisms.encoded.train import encoded_sum as encoded_sum_module  # noqa: E402
from dprecipe.mechanisms.encoded.train import run as probe_codes  # noqa: E402
from dprecipe.mechanisms.encoded.train.encoded_sum import Encoder, encoded_sum  # noqa: E402
from dprecipe.training.engine.clipped_sum import ClippedSum, per_record_gradients  # noqa: E402
from dprecipe.training.engine.gradient_rows import gradient_rows  # noqa: E402
from dprecipe.training.probe.program import examine_module  # noqa: E402
from dprecipe.training.program.losses import cross_entropy  # noqa: E402

NORM = 0.01


# Of two classes the gradients of the last layer are tied in pairs, and rounding decides between their ranks.
@pytest.fixture(params=[[16, 10], [31]], ids=["two classes, layers", "three classes, model"])
def codebook(request: pytest.FixtureRequest) -> Codebook:
    return draw_gaussian_codebook(request.param, 5, 1e-5, 0)


def network(classes: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, classes))


def failed(codebook: Codebook, encoder: Encoder | None = None) -> set[str]:
    encoder = Encoder(codebook, NORM, torch.device("cpu")) if encoder is None else encoder
    classes = 2 if encoder.dimension == 26 else 3
    tests = probe_codes.encoding_tests(encoder, codebook, NORM)
    checks = examine_module(network(classes), cross_entropy, (3,), classes, per_record_gradients, tests)
    return {check.id for check in checks if not check.passed}


def test_the_encoder_passes(codebook: Codebook) -> None:
    assert failed(codebook) == set()


def test_however_an_engine_rounds_its_gradients(codebook: Codebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another processor, or another size of physical batches, ranks tied gradients otherwise."""

    def rounded(*arguments: Any) -> Iterator[Tensor]:
        for gradients in gradient_rows(*arguments):
            generator = torch.Generator().manual_seed(len(gradients))
            yield gradients * (1 + 1.2e-7 * torch.randint(-1, 2, gradients.shape, generator=generator))

    for module in (encoded_sum_module, probe_codes):
        monkeypatch.setattr(module, "gradient_rows", rounded)
    assert failed(codebook) == set()


def test_a_box_that_is_a_hair_larger_than_accounted_is_found(codebook: Codebook) -> None:
    assert failed(codebook, Encoder(codebook, NORM * 1.0001, torch.device("cpu"))) == {
        "encoded_sum",
        "encoded_sum_edges",
    }


@pytest.mark.parametrize(
    "change",
    [lambda rows: rows.flip(0), lambda rows: rows * 1.001, lambda rows: rows - rows.mean(0, keepdim=True)],
    ids=["other records", "scaled", "mixes records"],
)
def test_rows_that_are_no_gradients_of_records_are_found(
    codebook: Codebook, monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]
) -> None:
    """The engine and the probe read the same rows: only the loop over single records shows that they are wrong."""

    def wrong(*arguments: Any) -> Iterator[Tensor]:
        yield from map(change, gradient_rows(*arguments))

    for module in (encoded_sum_module, probe_codes):
        monkeypatch.setattr(module, "gradient_rows", wrong)
    assert "encoded_sum" in failed(codebook)


def test_another_codebook_is_found() -> None:
    wide, narrow = draw_gaussian_codebook([26], 200, 1e-5, 0), draw_gaussian_codebook([26], 1, 1e-5, 1)
    tests = probe_codes.encoding_tests(Encoder(wide, NORM, torch.device("cpu")), narrow, NORM)
    checks = examine_module(network(2), cross_entropy, (3,), 2, per_record_gradients, tests)
    assert "encoded_sum" in {check.id for check in checks if not check.passed}


Change = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    "change",
    [
        lambda codes: codes - codes.mean(0, keepdim=True) if len(codes) > 1 else codes,
        lambda codes: -codes,
        lambda codes: codes.flip(1),
        lambda codes: codes * 1.001,
    ],
    ids=["mixes records", "other sign", "other coordinates", "beyond the gradient or the box"],
)
def test_codes_that_are_no_clipped_gradients_are_found(
    codebook: Codebook, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    real = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", lambda self, gradients: change(real(self, gradients)))
    assert "encoded_sum" in failed(codebook)


@pytest.mark.parametrize(
    "change",
    [lambda value: value + NORM / 10, lambda value: value * 1.5, lambda value: torch.full_like(value, torch.nan)],
    ids=["offset", "scaled", "nan"],
)
def test_sums_that_are_no_sums_of_codes_are_found(
    codebook: Codebook, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    def wrong(*arguments: object) -> ClippedSum:
        summed = encoded_sum(*arguments)  # type: ignore[arg-type]
        return ClippedSum(change(summed.value), summed.bound)

    monkeypatch.setattr(probe_codes, "encoded_sum", wrong)
    assert {"encoded_sum", "encoded_sum_edges"} & failed(codebook)
