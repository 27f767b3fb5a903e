from __future__ import annotations

import numpy as np
import pytest

from dprecipe.data.image_steps import Whiten
from dprecipe.data.preprocess import prepare_features
from dprecipe.data.schema import Step
from dprecipe.data.whitening import find_whitening
from dprecipe.faults import DataFault
from dprecipe.priors.generate import make_images
from dprecipe.priors.schema import Prior
from tests.data.strange import spoil_one

SHAPE = (1, 8, 8)
SCATTERING = Step.model_validate({"scattering": {"scales": 1, "angles": 4}})
GROUPS = Step.model_validate({"group_norm": {"groups": 5}})
BEFORE = (SCATTERING, GROUPS)
PIXELS = np.random.default_rng(5).integers(0, 256, (23, *SHAPE), dtype=np.uint8)


def whiten(**settings: object) -> Step:
    return Step.model_validate({"whiten": {"images": 400, **settings}})


def public_features(images: int = 400, seed: int = 0) -> np.ndarray:
    made = make_images(Prior(generator="mixed", images=images, seed=seed), SHAPE)
    return prepare_features(made, BEFORE).reshape(images, -1).astype(np.float64)


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_it_is_the_power_of_the_covariance_of_generated_images(power: float) -> None:
    """By a series for the matrix power, (1 − A)^p, and no eigenvectors."""
    features = public_features()
    centred = features - features.mean(axis=0)
    moments = centred.T @ centred / len(centred)
    largest = np.linalg.norm(moments, 2)
    rest = np.eye(len(moments)) - (moments + 0.05 * largest * np.eye(len(moments))) / (1.05 * largest)
    term, total, exponent = np.eye(len(moments)), np.eye(len(moments)), -power / 2
    for n in range(1, 3000):
        term = term @ rest * ((n - 1 - exponent) / n)
        total += term
    expected = (1.05 * largest) ** exponent * total
    x = prepare_features(PIXELS, BEFORE).reshape(len(PIXELS), -1) - features.mean(axis=0)
    result = prepare_features(PIXELS, (*BEFORE, whiten(power=power, floor=0.05)))
    np.testing.assert_allclose(result, x @ expected, rtol=1e-4, atol=1e-4 * np.abs(result).max())


def test_generated_images_vary_alike_along_all_directions_afterwards() -> None:
    made = make_images(Prior(generator="mixed", images=400, seed=3), SHAPE)
    result = prepare_features(made, (*BEFORE, whiten(power=1.0, floor=1e-6, seed=3))).astype(np.float64)
    spectrum = np.linalg.eigvalsh(np.cov(result, rowvar=False, bias=True))
    np.testing.assert_allclose(result.mean(axis=0), 0, atol=1e-5)
    assert (spectrum > 0.95).mean() > 0.7  # the others vary by less than the floor
    assert spectrum.max() == pytest.approx(1, rel=1e-3)
    halfway = prepare_features(made, (*BEFORE, whiten(power=0.5, floor=1e-6, seed=3))).astype(np.float64)
    plain = np.linalg.eigvalsh(np.cov(public_features(seed=3), rowvar=False, bias=True))
    np.testing.assert_allclose(
        np.linalg.eigvalsh(np.cov(halfway, rowvar=False, bias=True))[-5:], plain[-5:] ** 0.5, rtol=1e-3
    )


def test_each_record_is_whitened_on_its_own() -> None:
    steps = (*BEFORE, whiten())
    whole = prepare_features(PIXELS, steps)
    assert prepare_features(PIXELS[:0], steps).shape == (0, 5 * 4 * 4)
    for place in (slice(0, 1), slice(4, 9), slice(22, 23)):
        np.testing.assert_allclose(prepare_features(PIXELS[place], steps), whole[place], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_stays_in_its_record(value: float) -> None:
    images = PIXELS.astype(np.float32) / 255
    strange, rest = spoil_one(images, value)
    steps = (*BEFORE, whiten())
    np.testing.assert_array_equal(prepare_features(strange, steps)[rest], prepare_features(images, steps)[rest])
    assert not np.isfinite(prepare_features(strange, steps)[7]).all()


def test_constants_are_kept_and_depend_on_public_settings_alone() -> None:
    step = Whiten(images=100)
    first = find_whitening(step, BEFORE, SHAPE, prepare_features)
    assert find_whitening(Whiten(images=100), BEFORE, SHAPE, prepare_features) is first
    for other in (
        find_whitening(Whiten(images=100, seed=1), BEFORE, SHAPE, prepare_features),
        find_whitening(Whiten(images=101), BEFORE, SHAPE, prepare_features),
        find_whitening(Whiten(images=100, generator="dead_leaves"), BEFORE, SHAPE, prepare_features),
    ):
        assert not np.allclose(other.mean, first.mean)


def test_features_that_never_vary_stay_as_they_are() -> None:
    steps = (Step.model_validate({"clip_features": {"norm": 1e-30}}), whiten())
    assert np.isfinite(prepare_features(PIXELS, steps)).all()


@pytest.mark.parametrize(("shape", "named"), [((1, 65, 64), "at most 4,096 features"), ((12,), "none")])
def test_a_release_that_no_recipe_makes_is_refused(shape: tuple[int, ...], named: str) -> None:
    with pytest.raises(DataFault, match=named):
        find_whitening(Whiten(images=64), (), shape, prepare_features)


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_channels_are_whitened_alike_at_all_places(power: float) -> None:
    """Generated images have the identity's power as moments of channels, over images and places, and no mean."""
    step = whiten(across="channels", power=power, floor=1e-6, seed=3)
    made = make_images(Prior(generator="mixed", images=400, seed=3), SHAPE)
    before, after = prepare_features(made, BEFORE), prepare_features(made, (*BEFORE, step))
    assert after.shape == before.shape == (400, 5, 4, 4)
    np.testing.assert_allclose(after.mean(axis=0), 0, atol=1e-5)

    def find_spectrum(maps: np.ndarray) -> np.ndarray:
        centred = (maps - maps.mean(axis=0)).transpose(0, 2, 3, 1).reshape(-1, 5).astype(np.float64)
        return np.linalg.eigvalsh(centred.T @ centred / len(centred))

    np.testing.assert_allclose(find_spectrum(after), find_spectrum(before) ** (1 - power), rtol=0.01)
    # one matrix for all places: two images that differ at one place differ there alone
    constants = find_whitening(step.whiten, BEFORE, SHAPE, prepare_features)  # type: ignore[arg-type]
    moved = before[:1].copy()
    moved[0, :, 2, 1] += 1
    difference = constants.apply(moved) - constants.apply(before[:1])
    np.testing.assert_allclose(difference[0, :, 2, 1], constants.matrix.sum(axis=1), rtol=1e-3)
    difference[0, :, 2, 1] = 0
    assert np.abs(difference).max() < 1e-5


def test_channels_are_counted_and_not_features_where_they_are_whitened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprecipe.data.whitening.MAX_WHITENED", 4)
    with pytest.raises(DataFault, match="at most 4 channels, not 5"):
        find_whitening(Whiten(images=64, across="channels", seed=9), BEFORE, SHAPE, prepare_features)
