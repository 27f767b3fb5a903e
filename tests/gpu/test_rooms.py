"""Encoding, teachers and projected descent on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dprecipe.language.training import Adam
from dprecipe.mechanisms.encoded import codebook
from dprecipe.mechanisms.encoded.train.encoded_sum import Encoder
from dprecipe.mechanisms.encoded.train.run import kolmogorov_smirnov
from dprecipe.mechanisms.pate.schema import TeacherTraining
from dprecipe.mechanisms.pate.train.checks import check_vote_sensitivity
from dprecipe.mechanisms.pate.train.learn import DealtParts, Lesson, collect_votes
from dprecipe.mechanisms.pnsgd.train.descent import CpuBackend, Objective
from dprecipe.mechanisms.pnsgd.train.losses import Logistic, Loss, Softmax, Squared
from dprecipe.mechanisms.pnsgd.train.run import DeviceBackend
from dprecipe.mechanisms.pnsgd.train.sets import Ball
from dprecipe.noise.distributions import Distribution

pytestmark = pytest.mark.gpu
CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [300, 20_000])  # sorted, and counted
def test_21_codes_are_those_of_the_cpu_and_of_each_gradient_alone(gpu: torch.device, size: int) -> None:
    book = codebook.draw_gaussian_codebook((size,), 6, 1e-5, 0)
    gradients = torch.randn(40, size, generator=torch.Generator().manual_seed(0))
    there, here = Encoder(book, 0.7, gpu), Encoder(book, 0.7, CPU)
    codes = there.encode(gradients.to(gpu))
    expected = here.encode(gradients)
    # Nearly equal similarities may choose another codeword; most are chosen alike.
    alike = (codes.cpu() - expected).abs().amax(1) < 1e-6
    assert int(alike.sum()) >= 36
    assert float(codes.norm(dim=1).max()) <= 0.7
    assert torch.allclose(there.sum([gradients.to(gpu)]), codes.sum(0), atol=1e-9)
    for chosen in ([3], [3, 4, 5], [39, 3, *range(20)]):
        assert torch.equal(there.encode(gradients[chosen].to(gpu))[chosen.index(3)], codes[3])


@pytest.mark.parametrize("size", [300, 20_000])
def test_21_an_encoder_waits_for_nobody(cuda: torch.device, size: int) -> None:
    """It was asked for the largest cell, and whether all gradients are finite, block by block."""
    encoder = Encoder(codebook.draw_gaussian_codebook((size, 5), 6, 1e-5, 0), 0.7, cuda)
    gradients = torch.randn(40, size + 5, device=cuda)
    gradients[7, 3] = torch.nan
    encoder.sum([gradients])
    torch.cuda.synchronize(cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        total = encoder.sum([gradients])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(torch.isfinite(total).all())


@pytest.mark.parametrize("groups", [None, (1, 17, 99_982)])
def test_21_a_noisy_sum_is_sorted_where_it_is(gpu: torch.device, groups: tuple[int, ...] | None) -> None:
    """And the factor has the bits that it has on the CPU."""
    noisy = 1.7 * torch.randn(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.3
    for distribution in (Distribution("gaussian"), Distribution("laplace")):
        actual = kolmogorov_smirnov(noisy.to(gpu), distribution, 1.3, groups, shrink=True)
        assert actual == kolmogorov_smirnov(noisy, distribution, 1.3, groups, shrink=True)


def lesson(model: dict[str, object], shape: tuple[int, ...]) -> Lesson:
    training = TeacherTraining(steps=15, batch_size=8, optimizer=Adam(kind="adam", lr=0.01))
    return Lesson.model_validate(
        {
            "model": model,
            "training": training,
            "shape": shape,
            "classes": 3,
            "preprocess": (),
            "seed": 1,
            "steps": 15,
            "steps_per_epoch": 5,
            "physical_batch": 64,
        }
    )


@pytest.mark.parametrize(
    ("model", "shape"),
    [({"kind": "mlp", "hidden": (16,)}, (12,)), ({"kind": "cnn", "preset": "lenet"}, (1, 28, 28))],
    ids=["mlp", "cnn"],
)
def test_22_votes_repeat_to_the_bit(gpu: torch.device, model: dict[str, object], shape: tuple[int, ...]) -> None:
    task = lesson(model, shape)
    generator = np.random.default_rng(0)
    features = generator.random((40, *shape), dtype=np.float32)
    labels = generator.integers(3, size=40)
    queries = generator.random((100, *shape), dtype=np.float32)
    parts = DealtParts.of(np.arange(40) % 4, 4)

    def voted() -> np.ndarray:
        return collect_votes(task, range(4), parts, lambda i: (features[i], labels[i]), queries, gpu)

    first = voted()
    for _ in range(3):
        assert np.array_equal(voted(), first)
    for _ in range(20 if model["kind"] == "mlp" else 2):
        assert check_vote_sensitivity(task, gpu).passed


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3), Squared()], ids=["logistic", "softmax", "squared"])
def test_23_projected_descent_is_that_of_the_cpu(gpu: torch.device, loss: Loss) -> None:
    generator = np.random.default_rng(0)
    objective = Objective(loss, 6, False, 2.0, 0.1, Ball(2.0))
    there, here = DeviceBackend(objective, gpu), CpuBackend(objective)
    start = generator.normal(size=objective.shape)
    for where in (there, here):
        where.place(start)
    for _ in range(50):
        x = generator.random((8, 6))
        y = generator.integers(2, size=8) if not isinstance(loss, Squared) else generator.random(8)
        noise = generator.normal(size=start.size)
        there.step(there.gradient(x, y) * -0.1, 0.99, noise)
        here.step(here.gradient(x, y) * -0.1, 0.99, noise)
    assert np.abs(there.fetch() - here.fetch()).max() < 1e-12
