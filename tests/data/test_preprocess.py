from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.data.image_steps import Scattering
from dprecipe.data.preprocess import clip_features, group_norm, prepare_features
from dprecipe.data.scattering import scatter_images
from dprecipe.data.schema import ClipFeatures, Flatten, GroupNorm, Scale, Step

RNG = np.random.default_rng(0)
IMAGES = RNG.random((5, 3, 4, 2), dtype=np.float32)


def test_scale_by_channel() -> None:
    step = Step(scale=Scale(mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0)))
    result = prepare_features(IMAGES, [step])
    for channel, (mean, std) in enumerate([(0.1, 1.0), (0.2, 2.0), (0.3, 4.0)]):
        np.testing.assert_allclose(result[:, channel], (IMAGES[:, channel] - mean) / std, rtol=1e-5, atol=1e-7)


def test_scale_of_vectors_by_feature() -> None:
    step = Step(scale=Scale(mean=(1.0, 2.0), std=(1.0, 2.0)))
    result = prepare_features(np.array([[1, 4], [2, 2]], np.float32), [step])
    np.testing.assert_array_equal(result, [[0, 1], [1, 0]])


def test_steps_run_in_order() -> None:
    scale, clip = Step(scale=Scale(mean=0.0, std=0.01)), Step(clip_features=ClipFeatures(norm=1.0))
    assert np.linalg.norm(prepare_features(IMAGES, [scale, clip])[0]) == pytest.approx(1.0, rel=1e-5)
    assert np.linalg.norm(prepare_features(IMAGES, [clip, scale])[0]) == pytest.approx(100.0, rel=1e-5)
    assert prepare_features(IMAGES, [Step(flatten=Flatten())]).shape == (5, 24)


@given(st.integers(0, 4), st.floats(-1e30, 1e30) | st.just(math.nan) | st.just(math.inf))
def test_each_record_is_prepared_on_its_own(j: int, value: float) -> None:
    steps = [
        Step(scale=Scale(mean=0.3, std=0.2)),
        Step(group_norm=GroupNorm(groups=3)),
        Step(clip_features=ClipFeatures(norm=0.7)),
    ]
    changed = IMAGES.copy()
    changed[j] = value
    rest = np.arange(5) != j
    np.testing.assert_array_equal(prepare_features(changed, steps)[rest], prepare_features(IMAGES, steps)[rest])


@given(
    st.lists(st.floats(width=32), min_size=3, max_size=3),
    st.sampled_from([1e-6, 0.1, 1.0, 2.5, 3.0, 1e6]),
)
def test_clip_features_bounds_every_record_there_can_be(record: list[float], norm: float) -> None:
    result = clip_features(np.array([record], np.float32), norm)[0]
    exact = math.sqrt(math.fsum(float(x) ** 2 for x in result))
    assert exact <= norm


def test_clip_features_keeps_short_and_zero_records() -> None:
    x = np.array([[0, 0], [0.3, 0.4], [3, 4]], np.float32)
    result = clip_features(x, 1.0)
    np.testing.assert_array_equal(result[:2], x[:2])
    np.testing.assert_allclose(result[2], [0.6, 0.8], rtol=1e-5)


def test_t11_a_non_finite_record_becomes_zero_and_stays_alone() -> None:
    x = np.array([[np.nan, 1], [np.inf, 1], [-np.inf, np.nan], [0.3, 0.4]], np.float32)
    np.testing.assert_array_equal(clip_features(x, 1.0), np.array([[0, 0]] * 3 + [[0.3, 0.4]], np.float32))


def test_group_norm_makes_mean_0_and_variance_1_of_each_group_of_each_record() -> None:
    x = RNG.normal(3.0, 5.0, (4, 6, 2, 3)).astype(np.float32)
    result = group_norm(x, 3)
    assert result.shape == x.shape
    for record in range(4):
        for group in range(3):
            part = x[record, 2 * group : 2 * group + 2].astype(np.float64)
            expected = (part - part.mean()) / math.sqrt(part.var() + 1e-5)
            np.testing.assert_allclose(result[record, 2 * group : 2 * group + 2], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(group_norm(x.reshape(4, 36), 3), result.reshape(4, 36))


def test_group_norm_of_equal_features_is_zero() -> None:
    np.testing.assert_array_equal(group_norm(np.ones((1, 4), np.float32), 2), np.zeros((1, 4)))


def test_scattering_is_a_step_among_others() -> None:
    images = RNG.random((3, 2, 8, 12), dtype=np.float32)
    steps = [Step(scattering=Scattering(scales=1, angles=2)), Step(group_norm=GroupNorm(groups=3))]
    expected = group_norm(scatter_images(images, 1, 2), 3)
    np.testing.assert_array_equal(prepare_features(images, steps), expected)
    assert expected.shape == (3, 2 * 3, 4, 6)
    assert prepare_features(images, [*steps, Step(flatten=Flatten())]).shape == (3, 144)


def test_t10_an_empty_batch_stays_empty() -> None:
    steps = [Step(group_norm=GroupNorm(groups=3)), Step(clip_features=ClipFeatures(norm=0.7))]
    assert prepare_features(IMAGES[:0], steps).shape == (0, 3, 4, 2)
    assert prepare_features(IMAGES[:0], [*steps, Step(flatten=Flatten())]).shape == (0, 24)


def test_numbers_too_large_for_single_precision_become_infinite() -> None:
    assert np.isinf(prepare_features(np.array([[1e300]]), [])).all()
