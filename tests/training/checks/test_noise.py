"""The noise check passes on what we draw, and fails on anything else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.training.checks.noise import DRAWS, keystream_known, noise_correlation, noise_scale
from dprecipe.training.steps.chacha import Keystream
from dprecipe.training.steps.noise import MIN_ON_DEVICE, add_noise

CPU = torch.device("cpu")


def test_sound_noise_passes(small: Callable[..., Plan]) -> None:
    check = noise_scale(small(), CPU)
    assert check.passed
    assert "from the planned distribution" in check.measured


@pytest.mark.parametrize("scale", [0.0, 0.97, 1.03])
def test_t13_noise_of_another_scale_stops_the_run(
    small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    def wrong(value: Tensor, distribution: Distribution, right: float, stream: Stream) -> Tensor:
        return add_noise(value, distribution, right, stream) * scale

    monkeypatch.setattr("dprecipe.training.run.gate.add_noise", wrong)
    with pytest.raises(RunFailed, match="not what the plan says"):
        noise_scale(small(), CPU)


@pytest.mark.parametrize("wrong", [False, True])
def test_the_noise_of_each_group_is_measured(
    small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    def evened(value: Tensor, distribution: Distribution, scale: float | Tensor, stream: Stream) -> Tensor:
        assert isinstance(scale, Tensor)
        return add_noise(value, distribution, torch.full_like(scale, 2.0) if wrong else scale, stream)

    monkeypatch.setattr("dprecipe.training.run.gate.add_noise", evened)
    plan = small("model={kind: mlp, hidden: [4]}", "mechanism.clip={mode: per_layer, norm: 1.0, noise: [1.0, 3.0]}")
    if wrong:
        with pytest.raises(RunFailed, match="not what the plan says"):
            noise_scale(plan, CPU)
    else:
        assert noise_scale(plan, CPU).measured.count("distance") == 2


def test_noise_with_a_mean_stops_the_run(small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(value: Tensor, distribution: Distribution, scale: float, stream: Stream) -> Tensor:
        return add_noise(value, distribution, scale, stream) + 0.1

    monkeypatch.setattr("dprecipe.training.run.gate.add_noise", moved)
    with pytest.raises(RunFailed, match="positive"):
        noise_scale(small(), CPU)


@pytest.mark.parametrize("few", [True, False])
def test_noise_is_drawn_on_the_device_of_the_run(
    small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    """A generator that is wrong on an accelerator, and right on the CPU, has to stop the run; also one that is wrong
    for few numbers alone, or for many, whose noise is made otherwise."""
    asked: list[tuple[str, torch.dtype, int]] = []

    def elsewhere(value: Tensor, distribution: Distribution, scale: float, stream: Stream) -> Tensor:
        asked.append((value.device.type, value.dtype, value.numel()))
        drawn = add_noise(torch.zeros(value.shape, dtype=value.dtype), distribution, scale, stream)
        return drawn if value.device.type == "cpu" or (value.numel() < MIN_ON_DEVICE) != few else 1.1 * drawn

    monkeypatch.setattr("dprecipe.training.run.gate.add_noise", elsewhere)
    monkeypatch.setattr("dprecipe.training.checks.noise.keystream_known", lambda device: None)
    with pytest.raises(RunFailed, match="not what the plan says"):
        noise_scale(small(), torch.device("meta"))
    assert asked == [("meta", torch.float64, count) for count in ([DRAWS] if few else [DRAWS, MIN_ON_DEVICE])]
    assert DRAWS < MIN_ON_DEVICE


def test_a_device_s_keystream_is_compared_with_another_s(
    small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    keystream_known(CPU)
    real, asked = Keystream.next, []
    monkeypatch.setattr("dprecipe.training.checks.noise.keystream_known", asked.append)
    monkeypatch.setattr(
        "dprecipe.training.run.gate.add_noise",
        lambda value, *given: add_noise(torch.zeros(value.shape, dtype=value.dtype), *given),
    )
    check = noise_scale(small(), torch.device("meta"))
    assert asked == [torch.device("meta")]
    assert "its keystream, made on meta, is OpenSSL's" in check.measured
    for wrong_from in (0, 2**31, 2**32 - 1):

        def wrong(stream: Keystream, count: int, wrong_from: int = wrong_from) -> Tensor:
            first = stream._blocks
            words = real(stream, count)
            if first <= wrong_from < first + count:
                words[16 * (wrong_from - first)] ^= 1
            return words

        monkeypatch.setattr(Keystream, "next", wrong)
        with pytest.raises(RunFailed, match="not that of ChaCha20"):
            keystream_known(CPU)


CORRELATED = (
    "mechanism={kind: correlated, clip: {norm: 1.0}, noise: {form: previous_step, previous: 0.8, multiplier: auto}, "
    "sampling: {scheme: fixed_order, batch_size: %d}}",
    "training.steps=null",
    "training.epochs=2",
)


@pytest.mark.parametrize("batch_size", [10, 40])
def test_correlated_noise_is_whitened_and_two_steps_are_compared(small: Callable[..., Plan], batch_size: int) -> None:
    """Also where a pass is one step."""
    (check,) = noise_correlation(small(CORRELATED[0] % batch_size, *CORRELATED[1:]), CPU)
    assert check.passed
    assert re.match(r"covariance -0\.(79|80)\d\d for -0\.8; whitened, gaussian: distance", check.measured)
    assert noise_correlation(small(), CPU) == ()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda *earlier: (), "not what the plan says"),
        (lambda *earlier: [(0.97 * weight, stream) for weight, stream in earlier], "not what the plan says|covariance"),
        (lambda *earlier: [(-weight, stream) for weight, stream in earlier], "not what the plan says"),
        (lambda *earlier: [(weight, Secrets().stream("noise", 0)) for weight, _ in earlier], "not what the plan says"),
    ],
    ids=["forgotten", "too little", "added", "of another step"],
)
def test_noise_that_takes_back_something_else_stops_the_run(
    small: Callable[..., Plan],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[..., Sequence[tuple[float, Stream]]],
    message: str,
) -> None:
    def wrong(
        value: Tensor, distribution: Distribution, scale: float, stream: Stream, *earlier: tuple[float, Stream]
    ) -> Tensor:
        return add_noise(value, distribution, scale, stream, *fault(*earlier))

    monkeypatch.setattr("dprecipe.training.run.gate.add_noise", wrong)
    with pytest.raises(RunFailed, match=message):
        noise_correlation(small(CORRELATED[0] % 10, *CORRELATED[1:]), CPU)
