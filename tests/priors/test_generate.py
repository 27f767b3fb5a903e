"""Images: the same bytes for good, each for itself, and what their processes say that they are."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from dprecipe.priors.generate import (
    GENERATORS,
    LEAVES,
    MIXED,
    amplitude_table,
    digest_images,
    draw_images,
    make_images,
    radius_table,
)
from dprecipe.priors.numbers import below, draw_numbers, sines
from dprecipe.priors.schema import Prior, fits_generators

ALL = [*GENERATORS, "mixed"]
GOLDEN = {
    ("dead_leaves", (3, 32, 32)): "4273e92ce9984b43ab0e87aee20a2ba4a9ec57eb3d9d2c6b2df237c46f22d3a9",
    ("dead_leaves", (1, 28, 28)): "45c7433ea22701fef962f6fed795457b26a0bc79a73f7f1129d0968071254c39",
    ("spectrum", (3, 32, 32)): "cec2195829dfd19478f8ce9ddbd0e7a5185f81509067a1e49fc749ae30454cab",
    ("spectrum", (1, 28, 28)): "cd34c0b8cf0976a833caf59a6580310040e6ca95ffe090aff8d24b0e17933c55",
    ("wavelets", (3, 32, 32)): "957e8809f9edf1a8f217a0bf98538388594d1f6557efe51ea7fa731efe5701bf",
    ("wavelets", (1, 28, 28)): "69e9e08126e520c2df3a0541874ac6e4180227a8ddf094bfe85330177b0ea7de",
    ("strokes", (3, 32, 32)): "01f8b934e2d251e8c59d7f65a6997aeeb50702712fa3bdbc4dd068186d48dcc6",
    ("strokes", (1, 28, 28)): "23f24355256a37b42ecf8b13e23f5b0a9b2ad04ec68af1d12407817521b46f82",
    ("mixed", (3, 32, 32)): "1d248ac311bc2b2208e9308df4091889757ec988f19f03adae158e03924d53f9",
    ("mixed", (1, 28, 28)): "0e4fc69e4d55e3a04a311a93b22b2f7ef083fb77ec235881fb19babf3cc435ff",
}


def prior(generator: str, **more: object) -> Prior:
    return Prior.model_validate({"generator": generator, "images": 64, **more})


@pytest.mark.parametrize(("generator", "shape"), GOLDEN)
def test_a_version_makes_the_same_bytes_for_good(generator: str, shape: tuple[int, int, int]) -> None:
    assert digest_images(prior(generator), shape) == f"sha256:{GOLDEN[generator, shape]}", (
        "images of version 1 are others than they were: a change of a generator needs a new version"
    )


@pytest.mark.parametrize("generator", ALL)
def test_an_image_depends_on_its_number_alone(generator: str) -> None:
    shape = (3, 12, 10)
    images = make_images(prior(generator), shape)
    assert images.shape == (64, *shape)
    for part in (range(1, 2), range(5, 11), range(62, 64)):
        assert np.array_equal(draw_images(prior(generator), shape, part), images[part.start : part.stop])
    assert len({image.tobytes() for image in images}) == 64
    assert digest_images(prior(generator), shape) == f"sha256:{hashlib.sha256(images.tobytes()).hexdigest()}"
    assert not np.array_equal(make_images(prior(generator, seed=1), shape), images)


def test_mixed_takes_turns() -> None:
    shape = (1, 8, 8)
    mixed = make_images(prior("mixed"), shape)
    for place, generator in enumerate(MIXED):
        assert np.array_equal(mixed[place::3], make_images(prior(generator), shape)[place::3])


def test_leaves_cover_each_other_as_a_loop_over_pixels_draws_them() -> None:
    """Shapes by real sines, pixel by pixel; a pixel on an edge may fall on the other side by rounding."""
    side = 16
    image = draw_images(prior("dead_leaves"), (3, side, side), range(5, 6))[0]
    drawn = draw_numbers(0, 1, range(5, 6), 8 * LEAVES).reshape(LEAVES, 8)
    expected = np.zeros_like(image)
    expected[:] = (drawn[0, 5:] >> np.uint64(24)).astype(np.uint8)[:, None, None]
    for leaf, number in enumerate(drawn):
        x, y = (int(below(number[k : k + 1], 4 * side)[0]) for k in (0, 1))
        radius = int(radius_table(side)[below(number[2:3], 4096)[0]])
        narrow = radius * (64 + int(below(number[3:4], 193)[0])) // 256
        angle = 2 * math.pi * int(below(number[4:5], 96)[0]) / 96

        def along(dx: float, dy: float, turn: float) -> float:
            return dx * math.cos(turn) + dy * math.sin(turn)

        for row in range(side):
            for column in range(side):
                dx, dy = 4 * column + 2 - x, 4 * row + 2 - y
                if leaf % 3 == 0:
                    inside = math.hypot(dx, dy) <= radius
                elif leaf % 3 == 1:
                    inside = abs(along(dx, dy, angle)) <= radius
                    inside = inside and abs(along(dx, dy, angle + math.pi / 2)) <= narrow
                else:
                    inside = all(along(dx, dy, angle + 2 * math.pi * k / 3) <= radius / 2 for k in range(3))
                if inside:
                    expected[:, row, column] = (number[5:] >> np.uint64(24)).astype(np.uint8)
    assert float((image != expected).any(axis=0).mean()) < 0.02


def test_a_spectrum_is_what_its_fourier_transform_says() -> None:
    """One channel against numpy's transform of the same amplitudes and phases, in real numbers."""
    side, image = 16, 9
    drawn = draw_numbers(0, 2, range(image, image + 1), 13 + side * (side // 2 + 1))[0]
    a, b = below(drawn[:2], 13)
    wave = amplitude_table(side)[a, b] * np.exp(2j * math.pi * below(drawn[13:], 1024).reshape(side, -1) / 1024)
    places = np.arange(side)
    down = np.exp(2j * math.pi * np.outer(places, places) / side)
    across = np.exp(2j * math.pi * np.outer(places[: side // 2 + 1], places) / side)
    plane = (down @ wave @ across).real
    low, high = int(below(drawn[11:12], 96)[0]), 255 - int(below(drawn[12:13], 96)[0])
    expected = low + (plane - plane.min()) * (high - low) / (plane.max() - plane.min())
    made = draw_images(prior("spectrum"), (1, side, side), range(image, image + 1))[0, 0]
    assert np.abs(made - expected).max() < 1.6
    assert made.min() == low
    assert made.max() == high


def test_wavelets_have_few_large_coefficients_and_spectra_have_not() -> None:
    """Kurtosis of the differences between neighbours: 3 of a Gaussian, more of what is sparse."""

    def kurtosis(generator: str) -> float:
        images = make_images(prior(generator, images=200), (1, 32, 32)).astype(float)
        steps = np.diff(images, axis=3).reshape(200, -1)
        return float(np.median((steps**4).mean(1) / (steps**2).mean(1) ** 2))

    assert kurtosis("spectrum") < 3.2
    assert kurtosis("wavelets") > 3.8
    assert kurtosis("dead_leaves") > 6


@pytest.mark.parametrize("shape", [(2, 8, 8), (1, 3, 8), (1, 8, 257), (64,), (4, 8, 8)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    assert not fits_generators(shape)
    if len(shape) == 3:
        with pytest.raises(ValueError, match="no generator"):
            draw_images(prior("mixed"), shape, range(1))


def test_sums_of_waves_stay_where_doubles_are_exact() -> None:
    """The largest possible sum at the largest size, with every sine at its greatest."""
    largest = int(amplitude_table(256).sum(axis=(2, 3)).max())
    assert 2 * largest * int(sines().max()) ** 2 < 2**53
