"""Statistics of noise: none accuses sound noise, and each kind of fault is seen by the test that is meant for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.audit.verdicts import p_value
from dprecipe.privacy.noisy_sums import PoissonGaussian, PoissonLaplace
from dprecipe.training.audit.noise import examine_blind, examine_divisor, examine_noise, normal_scores
from dprecipe.training.audit.rig import Seen

LEVEL = 1e-7
"""A sound program fails here in one of a million runs of this file, at most."""
STEPS, SIZE, DIVISOR = 12, 2000, 32.0
Noise = NDArray[np.float64]


def see(noise: Noise, event: PoissonGaussian | PoissonLaplace | None = None, divisor: float = DIVISOR) -> Seen:
    event = event or PoissonGaussian(0.1, 2.0)
    summed = torch.linspace(-1, 1, len(noise), dtype=torch.float64)
    noisy = summed + 2.0 * torch.from_numpy(noise)
    return Seen(event, summed, 1.0, noisy, (noisy / divisor).float().double())


def failed(noise: Noise, event: PoissonGaussian | PoissonLaplace | None = None) -> set[str]:
    """Which tests fail: noise (2 attempts, steps, numbers), in scales."""
    findings = examine_noise([[see(row, event) for row in attempt] for attempt in noise])
    return {each.id for each in findings if each.choices * p_value(each.evidence) <= LEVEL}


def draw(seed: int = 0) -> Noise:
    return np.random.default_rng(seed).normal(size=(2, STEPS, SIZE))


def repeat_coordinates(noise: Noise) -> Noise:
    return np.concatenate([noise[..., : SIZE // 2], noise[..., : SIZE // 2]], axis=-1)


FAULTS: dict[str, tuple[Callable[[Noise], Noise], str]] = {
    "halved": (lambda noise: noise / 2, "noise_scale"),
    "3 % less": (lambda noise: 0.97 * noise, "noise_scale"),
    "uniform": (
        lambda noise: np.random.default_rng(1).uniform(-(3**0.5), 3**0.5, noise.shape),
        "noise_distribution",
    ),
    "each step as the one before": (lambda noise: np.repeat(noise[:, :1], STEPS, axis=1), "noise_steps"),
    "again after a resume": (lambda noise: np.stack([noise[0], noise[0]]), "noise_attempts"),
    "one draw for two layers": (repeat_coordinates, "noise_reuse"),
    "none in one step": (lambda noise: noise * (np.arange(STEPS) != 3)[None, :, None], "noise_present"),
}


def test_sound_noise_is_not_accused() -> None:
    assert failed(draw()) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str) -> None:
    change, expected = FAULTS[fault]
    assert expected in failed(change(draw()))


def test_noise_of_any_family_becomes_normal_scores() -> None:
    laplace = Distribution("laplace")
    noise = np.stack([[draw_noise(laplace, Secrets().stream("noise", n), SIZE) for n in range(STEPS)] for _ in "ab"])
    event = PoissonLaplace(0.1, 2.0)
    assert failed(noise, event) == set()
    assert {"noise_scale", "noise_distribution"} <= failed(draw(), event)
    extreme = normal_scores(np.array([0.0, 700.0, -700.0, 1e9]), laplace)
    assert np.isfinite(extreme).all()
    assert extreme[1] == -extreme[2] > 30


def test_a_divisor_of_the_actual_batch_is_seen() -> None:
    noise = draw()[0]
    sound = [see(row) for row in noise]
    (finding,) = examine_divisor(sound)
    assert p_value(finding.evidence) == 1
    (finding,) = examine_divisor([*sound[:3], see(noise[3], divisor=31.0)])
    assert p_value(finding.evidence) == 0
    assert list(examine_divisor([see(noise[0]), see(noise[1], divisor=17.0)])) == []  # scaled by what it says itself


def test_noise_that_grows_with_the_sum_is_seen() -> None:
    noise = draw()[0, 0]
    one, other = see(noise), see(noise)
    assert p_value(examine_blind(one, other).evidence) == 1
    more = Seen(other.event, other.summed + 1, 1.0, other.noisy + 1 + 1e-3 * torch.from_numpy(noise), other.gradient)
    assert p_value(examine_blind(one, more).evidence) == 0
