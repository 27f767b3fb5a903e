from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dprecipe.data.scattering import scatter_images
from tests.data.strange import spoil_one

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "scattering.json").read_text(encoding="utf-8"))
RNG = np.random.default_rng(3)
IMAGES = RNG.random((37, 2, 8, 12), dtype=np.float32)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"J={case['scales']}, L={case['angles']}")
def test_coefficients_are_those_of_an_independent_program(case) -> None:
    image = np.array(case["image_sixteenths"], np.float32) / 16
    result = scatter_images(image[None, None], case["scales"], case["angles"])[0]
    assert list(result.shape) == case["shape"]
    np.testing.assert_allclose(result.ravel(), case["coefficients"], rtol=5e-4, atol=5e-5)


def test_first_order_by_its_definition() -> None:
    """|x ∗ ψ| ∗ φ of one angle, by sums over pixels: no Fourier transform, no subsampling."""
    size, margin, sigma = 12, 2, 0.8
    x = np.pad(IMAGES[0, 0, :, :8].astype(np.float64), margin, mode="reflect")
    down, right = (g.astype(np.float64) for g in np.meshgrid(*[np.arange(size)] * 2, indexing="ij"))

    def circular(kernel) -> np.ndarray:
        return sum(kernel(down + size * i, right + size * j) for i in range(-2, 3) for j in range(-2, 3))

    # one angle: waves run across the rows (θ = −π of the formula, that is 0), four times as slim as they are long
    bell = circular(lambda v, u: np.exp(-(v**2 + (4 * u) ** 2) / (2 * sigma**2)))
    wave = circular(lambda v, u: np.exp(-(v**2 + (4 * u) ** 2) / (2 * sigma**2) + 0.75j * np.pi * v))
    psi = (wave - wave.sum() / bell.sum() * bell) * 4 / (2 * np.pi * sigma**2)
    phi = circular(lambda v, u: np.exp(-(v**2 + u**2) / (2 * sigma**2))) / (2 * np.pi * sigma**2)

    def convolved(a, kernel) -> np.ndarray:
        rolled = [kernel[i, j] * np.roll(a, (i, j), (0, 1)) for i in range(size) for j in range(size)]
        return np.sum(rolled, axis=0)

    expected = [convolved(x, phi), convolved(np.abs(convolved(x, psi)), phi)]
    result = scatter_images(IMAGES[:1, :1, :, :8], 1, 1)[0]
    for order in (0, 1):
        np.testing.assert_allclose(result[order], expected[order][margin:-margin:2, margin:-margin:2], rtol=1e-4)


def test_each_image_is_transformed_on_its_own_to_the_last_bit() -> None:
    whole = scatter_images(IMAGES, 2, 4)
    for first, count in ((0, 1), (5, 1), (5, 30), (36, 1)):
        np.testing.assert_array_equal(scatter_images(IMAGES[first : first + count], 2, 4), whole[first : first + count])


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_t11_what_is_not_finite_stays_in_its_image(value: float) -> None:
    strange, rest = spoil_one(IMAGES, value)
    np.testing.assert_array_equal(scatter_images(strange, 2, 4)[rest], scatter_images(IMAGES, 2, 4)[rest])


def test_t10_no_image_makes_no_coefficient() -> None:
    assert scatter_images(IMAGES[:0], 2, 4).shape == (0, 2 * 25, 2, 3)


def test_an_even_image_has_its_mean_and_nothing_else() -> None:
    result = scatter_images(np.full((1, 1, 16, 16), 0.7, np.float32), 2, 8)[0]
    np.testing.assert_allclose(result[0], 0.7, rtol=1e-4)
    np.testing.assert_allclose(result[1:], 0, atol=1e-4)


def test_channels_are_transformed_one_after_another() -> None:
    whole = scatter_images(IMAGES[:3], 1, 2)
    for channel in (0, 1):
        part = scatter_images(IMAGES[:3, channel : channel + 1], 1, 2)
        np.testing.assert_array_equal(whole[:, 3 * channel : 3 * channel + 3], part)
