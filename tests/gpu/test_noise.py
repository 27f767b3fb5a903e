"""Noise that is made on a GPU: its keystream, its distribution, its lattice."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.noise.lattice import lattice_spacing
from dprecipe.training.checks.noise import MAX_ERROR, keystream_known, noise_scale, single_precision
from dprecipe.training.engine.full_precision import largest_error
from dprecipe.training.steps import noise
from dprecipe.training.steps.chacha import BLOCK, PROGRAMS, Keystream
from dprecipe.training.steps.compiled_keystream import compile_keystream
from dprecipe.training.steps.device_draws import draw_from
from dprecipe.training.steps.noise import CHUNK, MIN_ON_DEVICE, add_noise

pytestmark = pytest.mark.gpu
GAUSSIAN = Distribution("gaussian")
DISTRIBUTIONS = [
    GAUSSIAN,
    Distribution("laplace"),
    Distribution("student_t", 9.0),
    Distribution("cauchy"),
    Distribution("variance_gamma", 2.0),
    Distribution("sech"),
]
ON_DEVICE = CHUNK << 6


def distance(drawn: NDArray[np.float64], distribution: Distribution) -> float:
    """√n × the Kolmogorov–Smirnov distance: above 3.3 once in a billion times."""
    ordered, count = np.sort(drawn), len(drawn)
    expected = distribution.cdf(ordered)
    ranks = np.arange(count)
    return math.sqrt(count) * float(max((expected - ranks / count).max(), ((ranks + 1) / count - expected).max()))


@pytest.mark.parametrize("key", [bytes(range(32)), b"\xff" * 32, b"\x80" * 32])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 5), (0, 70_000), (2**31 - 1, 3), (2**31, 9), (2**32 - 2, 2)])
def test_01_the_keystream_is_openssl_s(gpu: torch.device, key: bytes, first: int, count: int) -> None:
    expected = np.empty(BLOCK * count, dtype=np.uint8)
    Stream(key, first).fill(expected)
    drawn_here = Keystream(key, gpu, first).next(count)
    assert drawn_here.device == gpu
    assert np.array_equal(drawn_here.cpu().numpy(), expected.view("<i4"))


def test_01_the_known_answer_of_a_run(gpu: torch.device) -> None:
    keystream_known(gpu)


def test_01_the_compiled_keystream_is_openssl_s(cuda: torch.device) -> None:
    """And noise made with it is the noise made without."""
    zeros = torch.zeros(2 * ON_DEVICE + 7, dtype=torch.float64, device=cuda)
    PROGRAMS.clear()
    expected = add_noise(zeros.clone(), GAUSSIAN, 1.0, Secrets(5).stream("noise", 1))
    try:
        assert compile_keystream(cuda) == "compiled"
        keystream_known(cuda)
        assert torch.equal(add_noise(zeros, GAUSSIAN, 1.0, Secrets(5).stream("noise", 1)), expected)
    finally:
        PROGRAMS.clear()


def test_01_noise_of_many_numbers_waits_for_nobody(cuda: torch.device) -> None:
    zeros = torch.zeros(2 * ON_DEVICE + 7, dtype=torch.float64, device=cuda)
    add_noise(zeros, GAUSSIAN, 1.0, Secrets(5).stream("noise", 0))
    torch.cuda.synchronize(cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        add_noise(zeros, GAUSSIAN, 1.0, Secrets(5).stream("noise", 1))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("few", [False, True])
def test_02_the_noise_check_measures_the_device(
    cuda: torch.device, small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    """The noise of many numbers, made there, and that of few, copied there."""
    assert "made on cuda" in noise_scale(small(), cuda).measured
    real, copied = noise._keystream_adder, noise._copied

    def wrong(stream: Stream, device: torch.device) -> noise.NoiseAdder:
        add = real(stream, device)
        return lambda value, scale: add(value, 1.05 * scale)

    if few:
        monkeypatch.setattr(noise, "_copied", lambda *given: 1.05 * copied(*given))
    else:
        monkeypatch.setattr(noise, "_keystream_adder", wrong)
    noise_scale(small(), torch.device("cpu"))
    with pytest.raises(RunFailed, match="not what the plan says"):
        noise_scale(small(), cuda)


@pytest.mark.parametrize("count", [50_000, 100_000])  # copied, and made there
@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
@pytest.mark.parametrize("each", [False, True])
def test_03_results_are_on_the_lattice(gpu: torch.device, each: bool, distribution: Distribution, count: int) -> None:
    scales = torch.tensor([0.3, 1.7, 900.0], dtype=torch.float64).repeat_interleave(count)
    value = torch.randn(len(scales), dtype=torch.float64, device=gpu) * 100
    scale = scales.to(gpu) if each else 1.7
    result = add_noise(value, distribution, scale, Secrets().stream("noise", 1)).cpu()
    spacings = torch.tensor([lattice_spacing(float(s)) for s in (scales if each else [1.7])], dtype=torch.float64)
    steps = result / spacings
    assert torch.equal(steps, steps.round())
    assert not bool(torch.signbit(result[result == 0]).any())


@pytest.mark.parametrize(
    "count", [1, 2, 7, MIN_ON_DEVICE - 1, MIN_ON_DEVICE, ON_DEVICE - 1, ON_DEVICE, ON_DEVICE + 1, 10_000_000]
)
def test_04_every_chunk_has_the_distribution(gpu: torch.device, count: int) -> None:
    result = add_noise(torch.zeros(count, dtype=torch.float64, device=gpu), GAUSSIAN, 1.0, Secrets().stream("noise", 2))
    assert result.device == gpu
    drawn = result.cpu().numpy()
    chunks = [drawn[start : start + ON_DEVICE] for start in range(0, count, ON_DEVICE)]
    for chunk in chunks:
        # Of a chunk, some: a sort of all of them takes seconds.
        assert distance(chunk[:: max(1, len(chunk) // 500_000)], GAUSSIAN) < 3.3
    for one, other in pairwise(chunks):
        least = min(len(one), len(other))
        assert not np.array_equal(one[:least], other[:least])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
@pytest.mark.parametrize("count", [1, 1001, MIN_ON_DEVICE - 1])
def test_05_noise_of_few_numbers_is_that_of_the_cpu(gpu: torch.device, distribution: Distribution, count: int) -> None:
    """But for a few sums that a product in one step with them rounds to a neighbour on the lattice."""
    actual, expected = (
        add_noise(
            torch.zeros(count, dtype=torch.float64, device=device), distribution, 0.7, Secrets(5).stream("noise", 1)
        ).cpu()
        for device in (gpu, torch.device("cpu"))
    )
    distance_ = (actual - expected).abs() / lattice_spacing(0.7)
    assert float(distance_.max()) <= 1
    assert int((distance_ > 0).sum()) <= 3


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[1:], ids=lambda distribution: distribution.family)
def test_05_other_families_have_their_distribution_and_their_words(
    gpu: torch.device, distribution: Distribution
) -> None:
    """Of many numbers they are made on the device, from the words that the CPU would take for them."""
    count = 1 << 15
    drawn_here = draw_from(distribution, Keystream(bytes(range(32)), gpu), count)
    assert drawn_here.device == gpu
    np.testing.assert_allclose(
        drawn_here.cpu().numpy(), draw_noise(distribution, Stream(bytes(range(32))), count), rtol=1e-11, atol=1e-12
    )
    zeros = torch.zeros(2 * ON_DEVICE + 7, dtype=torch.float64, device=gpu)
    stream = Secrets().stream("noise", 3)
    drawn = add_noise(zeros, distribution, 1.0, stream).cpu().numpy()
    if gpu.type == "cuda":
        with pytest.raises(ValueError, match="was shared"):  # the device has it, and the CPU draws nothing from it
            stream.words(1)
    for chunk in (drawn[:ON_DEVICE:9], drawn[ON_DEVICE : 2 * ON_DEVICE : 9]):
        assert distance(chunk, distribution) < 3.3
    assert not np.array_equal(drawn[:ON_DEVICE], drawn[ON_DEVICE : 2 * ON_DEVICE])


def test_05_copied_noise_waits_for_nobody_and_is_not_overwritten(cuda: torch.device) -> None:
    """The memory that a GPU still copies from is used for nothing else: of 50 steps, none has another's noise."""
    zeros = torch.zeros(100_000, dtype=torch.float64, device=cuda)
    busy = torch.randn(4096, 4096, device=cuda)
    add_noise(zeros.clone(), GAUSSIAN, 1.0, Secrets(5).stream("noise", 0))
    sums = [zeros.clone() for _ in range(50)]
    torch.cuda.synchronize(cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number, total in enumerate(sums):
            busy = busy @ busy  # what is copied waits behind it
            add_noise(total, GAUSSIAN, 1.0, Secrets(5).stream("noise", number))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for number, total in enumerate(sums):
        expected = add_noise(
            torch.zeros(100_000, dtype=torch.float64), GAUSSIAN, 1.0, Secrets(5).stream("noise", number)
        )
        assert float((total.cpu() - expected).abs().max()) <= lattice_spacing(1.0)


def test_06_single_precision_is_single_precision(gpu: torch.device) -> None:
    assert single_precision(gpu).passed
    for precision in ("high", "medium"):
        torch.set_float32_matmul_precision(precision)
        assert largest_error(gpu) <= MAX_ERROR
    torch.set_float32_matmul_precision("highest")
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.fp32_precision = "tf32"
        assert largest_error(gpu) <= MAX_ERROR
        torch.backends.fp32_precision = "none"


def test_06_the_measurement_sees_tf32(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU has it: from Ampere on."""
    from contextlib import nullcontext

    from dprecipe.training.engine import full_precision

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    monkeypatch.setattr(full_precision, "in_full_precision", nullcontext)
    has_it = torch.cuda.get_device_capability(cuda) >= (8, 0)
    assert (largest_error(cuda) > MAX_ERROR) == has_it


@pytest.mark.parametrize("variable", ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"])
def test_06_what_the_environment_asks_for_is_undone_or_refused(gpu: torch.device, variable: str) -> None:
    code = (
        "import sys, torch\n"
        "from dprecipe.faults import RunFailed\n"
        "from dprecipe.training.engine.full_precision import single_precision\n"
        "try:\n    print(single_precision(torch.device(sys.argv[1])).measured)\n"
        "except RunFailed as fault:\n    print('refused:', fault.message)\n"
    )
    command = [sys.executable, "-c", code, str(gpu)]
    done = subprocess.run(
        command, env={**os.environ, variable: "1"}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("largest relative error", "refused:"))
    if variable == "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE":
        assert done.stdout.startswith("largest")  # it is a setting of torch's, which can be set otherwise
