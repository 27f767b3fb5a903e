from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from dprecipe.data.augment import make_augmentation, random_crop, random_flip  # noqa: E402
from dprecipe.data.image_steps import Crop, Flip, Scattering  # noqa: E402
from dprecipe.data.scattering import mirror_coefficients, scatter_images  # noqa: E402
from dprecipe.data.schema import Scale, Step  # noqa: E402

IMAGES = torch.arange(1.0, 1 + 64 * 2 * 4 * 5).reshape(64, 2, 4, 5)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_no_augmentation_without_its_steps() -> None:
    assert make_augmentation([Step(scale=Scale(mean=0.0, std=1.0))], generator()) is None


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    result = random_crop(IMAGES, Crop(padding=2), generator())
    padded = torch.nn.functional.pad(IMAGES, (2, 2, 2, 2))
    places = set()
    for record in range(64):
        windows = [
            (r, c)
            for r in range(5)
            for c in range(5)
            if torch.equal(padded[record, :, r : r + 4, c : c + 5], result[record])
        ]
        assert windows
        places.add(windows[0])
    assert len(places) > 15  # each record at a place of its own: 64 draws out of 25


def test_a_flip_mirrors_each_record_or_not() -> None:
    result = random_flip(IMAGES, Flip(), generator())
    mirrored = [torch.equal(result[i], IMAGES[i].flip(2)) for i in range(64)]
    kept = [torch.equal(result[i], IMAGES[i]) for i in range(64)]
    assert all(m != k for m, k in zip(mirrored, kept, strict=True))
    assert 16 < sum(mirrored) < 48  # outside by chance: below 1e-4
    assert torch.equal(random_flip(IMAGES, Flip(probability=0.0), generator()), IMAGES)
    assert torch.equal(random_flip(IMAGES, Flip(probability=1.0), generator()), IMAGES.flip(3))


@pytest.mark.parametrize(("copies", "probability", "least"), [(2, 0.5, 1), (4, 0.25, 1), (4, 0.9, 3), (1, 0.3, 0)])
def test_of_the_copies_of_a_record_as_many_are_mirrored_as_can_be(copies: int, probability: float, least: int) -> None:
    """Each copy with the probability of the step: by chance four deviations away once in 16,000 times."""
    records = 64_000
    one = torch.tensor([0.0, 1.0]).expand(records * copies, 1, 1, 2)
    mirrored = random_flip(one, Flip(probability=probability), generator(), copies)[:, 0, 0, 0].view(records, copies)
    assert set(mirrored.sum(1).tolist()) <= {least, least + int(probability * copies > least)}
    for copy in range(copies):
        deviation = (probability * (1 - probability) / records) ** 0.5
        assert abs(float(mirrored[:, copy].mean()) - probability) < 4 * deviation


@pytest.mark.parametrize(("scales", "angles"), [(2, 8), (2, 5), (3, 4), (1, 6)])
def test_a_mirrored_image_has_the_coefficients_of_mirrored_waves(scales: int, angles: int) -> None:
    """A mirrored map is of an image that is mirrored and moved by 2^J - 1 pixels, but for what the margin reaches."""
    side, step = 64, 2**scales
    images = torch.rand((2, 2, side, side), generator=generator()).numpy()
    moved = images.copy()
    moved[..., : side - step + 1] = images[..., side - step :: -1]
    steps = [
        Step(scattering=Scattering(scales=scales, angles=angles)),
        Step(flip=Flip(probability=1.0)),
    ]
    maps = torch.from_numpy(scatter_images(images, scales, angles))
    flipped = make_augmentation(steps, generator())(maps, 1)
    expected = torch.from_numpy(scatter_images(moved, scales, angles))
    inner = (..., slice(0, side // step), slice(5, side // step - 5)) if scales < 3 else (..., slice(3, 5))
    torch.testing.assert_close(flipped[inner], expected[inner], rtol=2e-3, atol=1e-4)
    order = mirror_coefficients(scales, angles)
    assert sorted(order) == list(range(len(order)))
    assert (order[order] == np.arange(len(order))).all()


def test_t27_one_record_stays_one_record_and_its_norm_never_grows() -> None:
    apply = make_augmentation([Step(crop=Crop(padding=1)), Step(flip=Flip())], generator())
    result = apply(IMAGES, 1)
    assert result.shape == IMAGES.shape
    assert bool((result.flatten(1).norm(dim=1) <= IMAGES.flatten(1).norm(dim=1) * (1 + 1e-6)).all())


def test_records_move_alone() -> None:
    changed = IMAGES.clone()
    changed[3] = torch.nan
    rest = torch.arange(64) != 3
    steps = [Step(crop=Crop(padding=1)), Step(flip=Flip())]
    one, other = make_augmentation(steps, generator())(IMAGES, 1), make_augmentation(steps, generator())(changed, 1)
    assert torch.equal(one[rest], other[rest])


def test_the_generator_alone_decides_and_an_empty_batch_is_fine() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    steps = [Step(crop=Crop(padding=1)), Step(flip=Flip())]
    assert torch.equal(
        make_augmentation(steps, generator(1))(IMAGES, 1), make_augmentation(steps, generator(1))(IMAGES, 1)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert make_augmentation(steps, generator())(IMAGES[:0], 1).shape == (0, 2, 4, 5)
