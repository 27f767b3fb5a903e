from __future__ import annotations

import numpy as np
import pytest

from dprecipe.data import patches
from dprecipe.data.image_steps import Patches
from dprecipe.data.patches import choose_parts, cut_parts, find_patch_filters
from dprecipe.data.preprocess import prepare_features
from dprecipe.data.schema import Step
from dprecipe.faults import DataFault
from dprecipe.priors.generate import make_images
from dprecipe.priors.numbers import below, draw_numbers
from dprecipe.priors.schema import Prior
from tests.data.strange import spoil_one

SHAPE = (3, 8, 10)
SIDE = 4
PIXELS = np.random.default_rng(6).integers(0, 256, (13, *SHAPE), dtype=np.uint8)


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "IMAGES", 200)
    find_patch_filters.cache_clear()


def patch_step(**settings: object) -> Step:
    return Step.model_validate({"patches": {"filters": 20, "size": SIDE, "grid": 2, **settings}})


def cut_one(image: np.ndarray, row: int, column: int) -> np.ndarray:
    """A part of an image (C, H, W), centred, over its deviation."""
    part = image[:, row : row + SIDE, column : column + SIDE].ravel().astype(np.float64) / 255
    return (part - part.mean()) / np.sqrt(part.var() + 0.01)


def responses_by_definition(image: np.ndarray) -> np.ndarray:
    """r_k(p), (K, rows, columns), from the module's formula: each part is whitened by itself, by a series."""
    made = make_images(Prior(generator="mixed", images=200, seed=0), SHAPE)
    numbers = draw_numbers(0, 4, range(200), 32)
    rows, columns = below(numbers[:, :16], 5), below(numbers[:, 16:], 7)
    every = [[cut_one(made[i], rows[i, j], columns[i, j]) for j in range(16)] for i in range(200)]
    flat = np.array(every).reshape(-1, 48)
    mean = flat.mean(axis=0)
    moments = (flat - mean).T @ (flat - mean) / len(flat) + 0.03 * np.eye(48)
    values, vectors = np.linalg.eigh(np.linalg.inv(moments))
    root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    filters = []
    for i in range(20):
        pixels = [
            made[i, :, r : r + SIDE, c : c + SIDE].ravel() / 255 for r, c in zip(rows[i], columns[i], strict=True)
        ]
        chosen = max((0, 1), key=lambda j: (pixels[j].var(), -j))
        white = root @ (every[i][chosen] - mean)
        filters.append(white / np.linalg.norm(white))
    return np.array([[[f @ root @ (cut_one(image, r, c) - mean) for c in range(7)] for r in range(5)] for f in filters])


def test_features_are_the_averages_that_the_module_defines() -> None:
    result = prepare_features(PIXELS[:2], [patch_step(threshold=0.5)])
    assert result.shape == (2, 40, 2, 2)
    for image, features in zip(PIXELS[:2], result, strict=True):
        r = responses_by_definition(image)
        for part, values in ((features[:20], np.maximum(r - 0.5, 0)), (features[20:], np.maximum(-r - 0.5, 0))):
            # of 5 rows the first 4 and the last 4; of 7 columns the first 5 and the last 5
            expected = [[values[:, :4, :5], values[:, :4, 2:]], [values[:, 1:, :5], values[:, 1:, 2:]]]
            expected_means = np.array([[cell.mean(axis=(1, 2)) for cell in row] for row in expected])
            np.testing.assert_allclose(part, np.moveaxis(expected_means, 2, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("grid", "cells"), [(1, [(0, 27)]), (3, [(0, 14), (6, 21), (13, 27)])])
def test_cells_overlap_by_half_and_are_alike_from_left_and_right(grid: int, cells: list[tuple[int, int]]) -> None:
    cut = patches._cut_side(27, grid)
    assert [(part.start, part.stop) for part in cut] == cells
    assert [(27 - part.stop, 27 - part.start) for part in reversed(cut)] == cells


@pytest.mark.parametrize("grid", [1, 2, 3])
def test_an_image_and_its_mirror_image_have_the_same_features(grid: int) -> None:
    step = patch_step(mirror=True, grid=grid)
    images, mirrored = (prepare_features(x, [step]) for x in (PIXELS, PIXELS[..., ::-1]))
    np.testing.assert_allclose(images, mirrored, rtol=1e-5, atol=1e-6)
    plain = patch_step(grid=grid)
    each = [prepare_features(x, [plain]) for x in (PIXELS, PIXELS[..., ::-1])]
    assert not np.allclose(each[0], each[1], atol=0.01)
    np.testing.assert_allclose(images, (each[0] + each[1]) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mirror", [False, True])
def test_each_record_is_transformed_on_its_own(mirror: bool) -> None:
    step = patch_step(mirror=mirror)
    whole = prepare_features(PIXELS, [step])
    assert prepare_features(PIXELS[:0], [step]).shape == (0, 40, 2, 2)
    for place in (slice(0, 1), slice(4, 9), slice(12, 13)):
        np.testing.assert_array_equal(prepare_features(PIXELS[place], [step]), whole[place])


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_stays_in_its_record(value: float) -> None:
    images = PIXELS.astype(np.float32) / 255
    strange, rest = spoil_one(images, value)
    step = patch_step()
    np.testing.assert_array_equal(prepare_features(strange, [step])[rest], prepare_features(images, [step])[rest])
    assert np.isfinite(value) or not np.isfinite(prepare_features(strange, [step])[7]).all()


def test_a_flat_image_is_like_no_filter_more_than_the_mean_is() -> None:
    """All flat images have the same features: their parts are zero once they are centred."""
    flat = np.concatenate([np.full((1, *SHAPE), level, np.uint8) for level in (0, 90, 255)])
    features = prepare_features(flat, [patch_step()])
    np.testing.assert_allclose(features[1:], features[:1].repeat(2, axis=0), atol=1e-4)


def test_filters_depend_on_public_settings_alone_and_are_kept() -> None:
    first = find_patch_filters(Patches(filters=8, size=SIDE, grid=2), SHAPE)
    assert find_patch_filters(Patches(filters=8, size=SIDE, grid=2), SHAPE) is first
    for other in ({"seed": 1}, {"generator": "dead_leaves"}):
        step = Patches.model_validate({"filters": 8, "size": SIDE, "grid": 2, **other})
        assert not np.allclose(find_patch_filters(step, SHAPE).weights, first.weights)
    more = find_patch_filters(Patches(filters=9, size=SIDE, grid=2), SHAPE)
    np.testing.assert_array_equal(more.weights[:, :8], first.weights)


def test_of_two_parts_the_one_that_varies_most_is_chosen_and_the_first_of_equals() -> None:
    parts = np.array([[[9, 9, 9], [0, 0, 255]], [[0, 3, 0], [3, 0, 0]], [[7, 0, 1], [2, 2, 2]]], dtype=np.uint8)
    np.testing.assert_array_equal(choose_parts(parts), [[0, 0, 255], [0, 3, 0], [7, 0, 1]])


def test_parts_are_cut_by_rows_and_columns() -> None:
    image = PIXELS[4].astype(np.float32)
    parts = cut_parts(image, SIDE)
    assert parts.shape == (5 * 7, 48)
    np.testing.assert_array_equal(parts[2 * 7 + 3], image[:, 2:6, 3:7].ravel())


@pytest.mark.parametrize("mirror", [False, True])
def test_filters_may_be_taken_in_any_number_at_once(mirror: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    step = patch_step(mirror=mirror, filters=37)
    whole = prepare_features(PIXELS, [step])
    monkeypatch.setattr(patches, "CACHED", 0)
    np.testing.assert_allclose(prepare_features(PIXELS, [step]), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 8, 8), (12,), (1, 5, 8), (1, 300, 300)])
def test_a_release_that_no_recipe_makes_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataFault, match="none"):
        find_patch_filters(Patches(size=SIDE, grid=3), shape)
