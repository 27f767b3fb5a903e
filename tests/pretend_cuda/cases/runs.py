"""A small run of each mechanism on the device, and what a step sends over the bus."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dprecipe.mechanisms.encoded.train import encoded_sum
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.events import Event
from dprecipe.privacy.noisy_sums import PoissonGaussian
from dprecipe.training.engine.clipped_sum import BatchPart, ClippedSum, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.run.gate import SumNoise, Ticket
from dprecipe.training.steps.noise import add_noise
from tests.pretend_cuda.cases.recipes import BANDED, CNN, CORRELATED, ENCODED, PATE, TRAINING, Start, read_score
from tests.pretend_cuda.counting import recording
from tests.recipe_texts import DIGITS, PNSGD, SPLIT_DIGITS


def test_a_convolutional_network(start: Start) -> None:
    with recording() as seen:
        release = start(CNN, "runtime.physical_batch=32")
    assert 0 <= read_score(release)["accuracy"] <= 1
    assert seen.launches > 1000
    assert not seen.pageable  # what is copied without a wait is copied from pinned memory


def test_encoded_gradients(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_sum, "BLOCK", 1 << 13)  # a block has one size, which a GPU does not feel
    start(DIGITS + ENCODED + TRAINING)


@pytest.mark.parametrize("mechanism", [CORRELATED, BANDED], ids=["previous_step", "banded"])
def test_correlated_noise(start: Start, mechanism: str) -> None:
    """Three steps: one pass, or one group."""
    start(DIGITS + mechanism + TRAINING)


def test_noise_that_is_taken_back_starts_few_more_kernels() -> None:
    """In the sixth step, 2²⁰ numbers that are drawn again are made twice, and each of three kept vectors is added
    once. No step waits for the device, and none copies numbers to it or from it."""
    device = torch.device("cuda", torch.cuda.current_device())

    def count(event: Event) -> int:
        noise, ticket = SumNoise(Secrets()), Ticket(event, 1)
        ticket.releases = 6
        summed = [ClippedSum(torch.zeros(1 << 20, dtype=torch.float64, device=device), 1.0) for _ in range(6)]
        for each in summed[:-1]:
            noise.release(ticket, each)
        with recording() as seen:
            noise.release(ticket, summed[-1])
        assert not seen.waits
        assert seen.to_host.total() == 0
        return seen.launches

    independent = count(PoissonGaussian(0.1, 1.0))
    again = count(CycleGaussian(1.0, 0.9, 8, 0))
    kept = count(BandedGaussian(1.0, 0.1, (1.0, 0.8, 0.7, 0.6)))
    print(f"kernels of noise: {independent} independent, {again} drawn again, {kept} kept")
    assert independent < again <= 2 * independent + 4
    assert independent < kept <= independent + 8


def test_teachers_and_a_student(start: Start) -> None:
    start(SPLIT_DIGITS + PATE)


def test_projected_descent(start: Start) -> None:
    release = start(DIGITS + "  preprocess: [{flatten: {}}, {clip_features: {norm: 4.0}}]\n" + PNSGD)
    assert read_score(release)["accuracy"] > 0.2  # a tenth without learning; the noise is another each time


def test_a_step_copies_a_few_numbers_and_none_for_each_parameter() -> None:
    """The noise of many numbers is made where they are."""
    device = torch.device("cuda", torch.cuda.current_device())
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 4)).to(device)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    batch = BatchPart(torch.randn(64, 1000, device=device), torch.zeros(64, dtype=torch.int64, device=device))
    passes = Passes(model, cross_entropy, False, 64.0, 10)

    def step(number: int) -> None:
        summed = clipped_sum(model, cross_entropy, batch, Clipping((0.3,), counted=10.0), 64, passes)
        add_noise(summed.value, Distribution("gaussian"), summed.bound * 1.0, Secrets().stream("noise", number))

    step(1)
    with recording() as seen:
        step(2)
    copied = seen.to_device.total() + seen.to_host.total()
    assert 0 < copied < 1000, (seen.to_device, seen.to_host)
    assert copied < numbers
    assert seen.waits.total() <= 6, seen.waits
