from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from dprecipe.data.augment import make_augmentation, random_crop, random_flip  # noqa: E402
from dprecipe.data.schema import Crop, Flip, Scale, Step  # noqa: E402

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


def test_t27_one_record_stays_one_record_and_its_norm_never_grows() -> None:
    apply = make_augmentation([Step(crop=Crop(padding=1)), Step(flip=Flip())], generator())
    result = apply(IMAGES)
    assert result.shape == IMAGES.shape
    assert bool((result.flatten(1).norm(dim=1) <= IMAGES.flatten(1).norm(dim=1) * (1 + 1e-6)).all())


def test_records_move_alone() -> None:
    changed = IMAGES.clone()
    changed[3] = torch.nan
    rest = torch.arange(64) != 3
    steps = [Step(crop=Crop(padding=1)), Step(flip=Flip())]
    one, other = make_augmentation(steps, generator())(IMAGES), make_augmentation(steps, generator())(changed)
    assert torch.equal(one[rest], other[rest])


def test_the_generator_alone_decides_and_an_empty_batch_is_fine() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    steps = [Step(crop=Crop(padding=1)), Step(flip=Flip())]
    assert torch.equal(make_augmentation(steps, generator(1))(IMAGES), make_augmentation(steps, generator(1))(IMAGES))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert make_augmentation(steps, generator())(IMAGES[:0]).shape == (0, 2, 4, 5)
